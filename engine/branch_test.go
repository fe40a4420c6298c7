package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func create(f *fakeAPI, name string) (Branch, error) {
	b, _, err := newEngine(f).Create(context.Background(), CreateOptions{Name: name, From: "shop", Timeout: time.Second})
	return b, err
}

func TestCreateMakesAnUnprivilegedContainerWithTheShim(t *testing.T) {
	f := newFake()
	b, err := create(f, "bx")
	if err != nil {
		t.Fatal(err)
	}
	if b.State != StateRunning || b.CowMode != contract.ModeLazyRW || b.Port < portFirst || b.Container != "pgbranch-bx" {
		t.Errorf("branch is %+v", b)
	}
	c := f.containers["pgbranch-bx"]
	if c.host.Privileged || len(c.host.CapAdd) > 0 || len(c.host.SecurityOpt) > 0 || c.config.Entrypoint != nil || c.config.User != "999:999" {
		t.Errorf("container is not stock and unprivileged: %+v %+v", c.config, c.host)
	}
	if m := c.host.Mounts[0]; m.VolumeOptions.DriverConfig.Name != contract.DriverName {
		t.Errorf("a missing volume would become an empty local one: %+v", m)
	}
	if !slices.Contains(c.config.Env, "LD_PRELOAD=/var/lib/postgresql/data/.pgoverlay/lazyrw.so") ||
		!slices.Contains(c.config.Env, "PGDATA=/var/lib/postgresql/data") {
		t.Errorf("env is %q", c.config.Env)
	}
}

func TestCreateKeepsTheImagesOwnPreload(t *testing.T) {
	f := newFake()
	f.images["postgres:17"] = image.InspectResponse{ID: "sha256:17", Config: imageConfig([]string{"LD_PRELOAD=/opt/jemalloc.so"})}
	if _, err := create(f, "bx"); err != nil {
		t.Fatal(err)
	}
	want := "LD_PRELOAD=/opt/jemalloc.so:/var/lib/postgresql/data/.pgoverlay/lazyrw.so"
	if env := f.containers["pgbranch-bx"].config.Env; !slices.Contains(env, want) {
		t.Errorf("env is %q, want %q in it", env, want)
	}
}

// An image's own arguments to the server would hold over the seed's configuration; another
// program than the server is left alone.
func TestCreateLeavesOutTheImagesArguments(t *testing.T) {
	for _, c := range []struct{ cmd, want, said []string }{
		{[]string{"postgres"}, nil, nil},
		{[]string{"/run.sh", "-D", "/x"}, nil, nil},
		{[]string{"postgres", "-D", "/etc/postgresql"}, []string{"postgres"}, []string{"-D /etc/postgresql", "left out"}},
		{[]string{"/usr/lib/postgresql/17/bin/postgres", "-cshared_preload_libraries=pg_cron"}, []string{"/usr/lib/postgresql/17/bin/postgres"}, []string{"pg_cron"}},
	} {
		f := newFake()
		config := imageConfig(nil)
		config.Cmd = c.cmd
		f.images["postgres:17"] = image.InspectResponse{ID: "sha256:17", Config: config}
		b, err := create(f, "bx")
		if err != nil {
			t.Fatal(err)
		}
		if got := f.containers["pgbranch-bx"].config.Cmd; !slices.Equal(got, c.want) {
			t.Errorf("%q: the container runs %q", c.cmd, got)
		}
		said := fmt.Sprint(b.Unfit)
		for _, w := range c.said {
			if !strings.Contains(said, w) {
				t.Errorf("%q: %s does not say %q", c.cmd, said, w)
			}
		}
		if (len(b.Unfit) == 0) != (len(c.said) == 0) {
			t.Errorf("%q: it says %s", c.cmd, said)
		}
	}
}

// A tag that was pulled again since the seed was settled must not change the
// image under a branch, as long as the old one is there.
func TestCreateUsesTheImageThatSettledTheSeed(t *testing.T) {
	f := newFake()
	f.images["sha256:17"] = f.images["postgres:17"]
	f.images["postgres:17"] = image.InspectResponse{ID: "sha256:newer", Config: imageConfig(nil)}
	if _, err := create(f, "bx"); err != nil {
		t.Fatal(err)
	}
	if got := f.containers["pgbranch-bx"].config.Image; got != "sha256:17" {
		t.Errorf("image is %q", got)
	}
}

func TestCreateOfAnExistingBranchTouchesNothing(t *testing.T) {
	f := newFake()
	if _, err := create(f, "bx"); err != nil {
		t.Fatal(err)
	}
	_, err := create(f, "bx")
	wantKind(t, err, KindConflict)
	if f.volumes["bx"] == nil || f.containers["pgbranch-bx"] == nil {
		t.Error("the refused create removed the branch that was there")
	}
}

func refuseVolume(f *fakeAPI, words string) {
	f.volumeCreate = func(volume.CreateOptions) error {
		return errors.New("Error response from daemon: create x: VolumeDriver.Create: " + words)
	}
}

func TestCreateOfAnUnknownSeedNamesThoseThereAre(t *testing.T) {
	f := newFake()
	f.addSeed("catalog", 1)
	refuseVolume(f, `branch "bx": seed "shop" does not exist`)
	_, err := create(f, "bx")
	wantKind(t, err, KindNotFound)
	var ours *Error
	if !errors.As(err, &ours) || ours.Hint != "seeds here: catalog@1" {
		t.Errorf("error is %#v", err)
	}
}

func TestCreateShowsTheDriversOwnWords(t *testing.T) {
	f := newFake()
	f.addSeed("shop", 1)
	refuseVolume(f, "branch \"bx\": the disk is full\nremove a branch")
	_, err := create(f, "bx")
	var ours *Error
	if !errors.As(err, &ours) || err.Error() != `branch "bx": the disk is full` || ours.Hint != "remove a branch" {
		t.Errorf("error is %#v", err)
	}
}

func TestCreateTriesAnotherPortWhereOneIsTaken(t *testing.T) {
	f := newFake()
	starts := 0
	f.containerStart = func(string) error {
		if starts++; starts == 1 {
			return errors.New("driver failed programming external connectivity: Bind for 127.0.0.1:20000 failed: port is already allocated")
		}
		return nil
	}
	if _, err := create(f, "bx"); err != nil {
		t.Fatal(err)
	}
	if starts != 2 || len(f.containers) != 1 {
		t.Errorf("%d starts, %d containers", starts, len(f.containers))
	}
}

func TestCreateOnATakenPortThatWasAskedForFails(t *testing.T) {
	f := newFake()
	f.containerStart = func(string) error { return errors.New("port is already allocated") }
	_, _, err := newEngine(f).Create(context.Background(), CreateOptions{Name: "bx", From: "shop", Publish: Publish{Port: 5433}})
	wantKind(t, err, KindConflict)
	wantNothing(t, f)
}

func TestCreateThatNeverAnswersShowsTheLogAndLeavesNothing(t *testing.T) {
	f := newFake()
	f.agent = func(string, []byte) []contract.AgentEvent {
		return []contract.AgentEvent{{Error: &contract.AgentError{Message: "no answer"}}}
	}
	_, err := create(f, "bx")
	var ours *Error
	if !errors.As(err, &ours) || len(ours.Log) != 1 || !strings.Contains(ours.Log[0], "FATAL") {
		t.Fatalf("error is %#v", err)
	}
	wantNothing(t, f)
}

func TestInterruptedCreateLeavesNothing(t *testing.T) {
	for _, at := range []string{"volume", "start", "ready"} {
		t.Run(at, func(t *testing.T) {
			f := newFake()
			ctx, interrupt := context.WithCancel(context.Background())
			defer interrupt()
			// The engine does the work, and the answer comes too late.
			switch at {
			case "volume":
				f.volumeCreate = func(o volume.CreateOptions) error {
					f.volumes[o.Name] = &volume.Volume{Name: o.Name, Driver: contract.DriverNameInEngine, Labels: o.Labels}
					interrupt()
					return ctx.Err()
				}
			case "start":
				f.containerStart = func(string) error { interrupt(); return ctx.Err() }
			case "ready":
				f.agent = func(string, []byte) []contract.AgentEvent { interrupt(); return nil }
			}
			_, _, err := newEngine(f).Create(ctx, CreateOptions{Name: "bx", From: "shop"})
			if err == nil {
				t.Fatal("an interrupted create succeeded")
			}
			wantNothing(t, f)
		})
	}
}

func wantNothing(t *testing.T, f *fakeAPI) {
	t.Helper()
	if len(f.volumes) > 0 || len(f.containers) > 0 {
		t.Errorf("left behind: volumes %v, containers %v", f.volumes, f.containers)
	}
}

func TestRemoveRefusesARunningBranch(t *testing.T) {
	f := newFake()
	if _, err := create(f, "bx"); err != nil {
		t.Fatal(err)
	}
	e := newEngine(f)
	wantKind(t, e.Remove(context.Background(), "bx", false), KindConflict)
	if err := e.Remove(context.Background(), "bx", true); err != nil {
		t.Fatal(err)
	}
	wantNothing(t, f)
	wantKind(t, e.Remove(context.Background(), "bx", false), KindNotFound)
	if err := e.Remove(context.Background(), "bx", true); err != nil {
		t.Errorf("rm -f of what is gone: %v", err)
	}
}

func TestRemoveRefusesABranchThatAnotherContainerUses(t *testing.T) {
	f := newFake()
	if _, err := create(f, "bx"); err != nil {
		t.Fatal(err)
	}
	stranger := *f.containers["pgbranch-bx"]
	config := *stranger.config
	config.Labels = nil
	stranger.config = &config
	f.containers["stranger"] = &stranger
	err := newEngine(f).Remove(context.Background(), "bx", true)
	wantKind(t, err, KindConflict)
	if !strings.Contains(err.Error(), "stranger") {
		t.Errorf("%q does not name the container", err)
	}
	if f.volumes["bx"] == nil {
		t.Error("the volume is gone")
	}
}

// The plugin knows how the last server ran; the container tells what it left open.
func TestCowModeIsExplained(t *testing.T) {
	shim := "/var/lib/postgresql/data/.pgoverlay/lazyrw.so"
	for name, c := range map[string]struct {
		via, mode string // the plugin's
		env, cmd  []string
		arch      string // the image's
		want      string
		reason    string
	}{
		"no server yet":                   {via: "", mode: "lazyrw", want: "lazyrw"},
		"no server yet, and none with it": {via: "", mode: "lazyrw", cmd: []string{"postgres", "-c", "shared_preload_libraries=x"}, want: "eager", reason: "command"},
		"the other way is left":           {via: "", mode: "lazyrw", env: []string{"LD_PRELOAD=" + shim}, cmd: []string{"postgres", "--shared-preload-libraries=x"}, want: "lazyrw"},
		"the shim is among them":          {via: "", mode: "lazyrw", cmd: []string{"-c", "shared_preload_libraries=.pgoverlay/lazyrw.so,x"}, want: "lazyrw"},
		"proved":                          {via: "shared_preload_libraries", mode: "lazyrw", want: "lazyrw"},
		"another preload":                 {via: "none", mode: "eager", env: []string{"LD_PRELOAD=/usr/lib/libjemalloc.so"}, want: "eager", reason: "libjemalloc"},
		"not taken":                       {via: "none", mode: "eager", env: []string{"LD_PRELOAD=" + shim}, want: "eager", reason: "static or of another architecture"},
		"another layout's path":           {via: "none", mode: "eager", env: []string{"LD_PRELOAD=/var/lib/postgresql/.pgoverlay/lazyrw.so"}, want: "eager", reason: "the shim is /var/lib/postgresql/data/.pgoverlay/lazyrw.so"},
		"another architecture":            {via: "none", mode: "eager", arch: "s390x", want: "eager", reason: "s390x"},
		"asked for":                       {via: "", mode: "eager", want: "eager"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			if _, err := create(f, "bx"); err != nil {
				t.Fatal(err)
			}
			status := f.volumes["bx"].Status
			status["cowVia"], status["cowMode"] = c.via, c.mode
			config := f.containers["pgbranch-bx"].config
			config.Env, config.Cmd = c.env, c.cmd
			img := f.images["postgres:17"]
			img.Architecture = c.arch
			f.images["sha256:17"] = img
			b, err := newEngine(f).Branch(context.Background(), "bx")
			if err != nil {
				t.Fatal(err)
			}
			if b.CowMode != c.want || !strings.Contains(b.CowReason, c.reason) {
				t.Errorf("cow mode is %q, reason %q", b.CowMode, b.CowReason)
			}
		})
	}
}

func TestResetRunsTheBranchAgainAlsoWhenRefused(t *testing.T) {
	f := newFake()
	if _, err := create(f, "bx"); err != nil {
		t.Fatal(err)
	}
	f.volumeCreate = func(o volume.CreateOptions) error {
		if o.DriverOpts[contract.OptOp] == contract.OpReset {
			return errors.New("VolumeDriver.Create: it is mounted")
		}
		return nil
	}
	if _, err := newEngine(f).Reset(context.Background(), "bx", time.Second); err == nil {
		t.Fatal("the refusal was swallowed")
	}
	if !f.containers["pgbranch-bx"].running {
		t.Error("the branch that ran does not run any more")
	}
}

func TestParsePublish(t *testing.T) {
	for in, want := range map[string]string{"5433": "127.0.0.1", "0.0.0.0:5433": "0.0.0.0", "[::1]:5433": "::1"} {
		p, err := ParsePublish(in)
		if err != nil || p.Port != 5433 || p.hostIP() != want {
			t.Errorf("%s: %+v %v", in, p, err)
		}
	}
	for _, in := range []string{"0", "65536", "x", "host:1", "1:2:3", "", "-1"} {
		if _, err := ParsePublish(in); err == nil {
			t.Errorf("%q was taken", in)
		}
	}
}

func TestLayoutFollowsTheImage(t *testing.T) {
	for _, c := range []struct {
		major     int
		data      string
		volumes   []string
		path, dir string
	}{
		{17, "/var/lib/postgresql/data", []string{"/var/lib/postgresql/data"}, "/var/lib/postgresql/data", "."},
		{18, "/var/lib/postgresql/18/docker", []string{"/var/lib/postgresql"}, "/var/lib/postgresql", "18/docker"},
		{17, "/var/lib/postgresql/data/pgdata", []string{"/var/lib/postgresql/data"}, "/var/lib/postgresql/data", "pgdata"},
		{17, "/srv/pg", nil, "/srv/pg", "."},
		{17, "", nil, "/var/lib/postgresql/data", "."},
		{18, "", nil, "/var/lib/postgresql", "18/docker"},
	} {
		path, dir := layout(c.major, c.data, c.volumes)
		if path != c.path || dir != c.dir {
			t.Errorf("%+v: got %q, %q", c, path, dir)
		}
	}
}
