package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// healthy is an engine in which nothing is wrong: a seed and a branch that runs.
func healthy(t *testing.T) *fakeAPI {
	t.Helper()
	f := newFake()
	f.info.KernelVersion = "6.1.0-1-amd64"
	f.status = contract.PluginStatus{FileSystem: "ext4", CopyUpMode: "copy", TotalBytes: 100 << 30, FreeBytes: 50 << 30,
		Volumes: []string{"bx", "shop@1"}, Branches: 1, Seeds: 1}
	f.addSeed("shop", 1, "bx")
	if _, err := create(f, "bx"); err != nil {
		t.Fatal(err)
	}
	return f
}

func problems(checks []Check) []Check {
	var found []Check
	for _, c := range checks {
		if c.State == CheckProblem {
			found = append(found, c)
		}
	}
	return found
}

func TestDoctorFindsNothingInAHealthyEngine(t *testing.T) {
	checks := newEngine(healthy(t)).Doctor(context.Background(), nil)
	seen := map[string]bool{}
	for _, c := range checks {
		seen[c.Check] = true
		if c.State != CheckOK {
			t.Errorf("%+v", c)
		}
	}
	for _, check := range []string{"engine", "kernel", "plugin", "data", "volumes"} {
		if !seen[check] {
			t.Errorf("%s was not looked at", check)
		}
	}
}

// Each case makes one thing wrong, which must be the one problem that is found, with
// these words in it, and a command that mends it.
func TestDoctorFindsEachProblem(t *testing.T) {
	old := time.Now().Add(-time.Hour).Unix()
	for name, c := range map[string]struct {
		make        func(f *fakeAPI)
		check, says string
		fix         string
	}{
		"rootless":   {func(f *fakeAPI) { f.info.SecurityOptions = []string{"name=rootless"} }, "engine", "runs rootless", "docker context use"},
		"userns":     {func(f *fakeAPI) { f.info.SecurityOptions = []string{"name=userns"} }, "engine", "remaps user namespaces", "docker context use"},
		"old kernel": {func(f *fakeAPI) { f.info.KernelVersion = "5.4.0-99-generic" }, "kernel", "older than 5.6", "kernel"},
		"no plugin":  {func(f *fakeAPI) { f.plugin = nil }, "plugin", "not installed", "docker pgbranch setup"},
		"disabled":   {func(f *fakeAPI) { f.plugin.Enabled = false }, "plugin", "is disabled", "docker pgbranch setup"},
		"version":    {func(f *fakeAPI) { f.version = "v0" }, "plugin", "pgoverlay is v0, and this program is v1", "docker pgbranch setup"},
		"not pinned": {func(f *fakeAPI) { f.plugin.Settings.Env = nil }, "plugin", "not pinned", "docker pgbranch setup"},
		"broken off": {func(f *fakeAPI) { f.spare = &types.Plugin{} }, "plugin", "was broken off", "docker pgbranch setup"},
		"unfit":      {func(f *fakeAPI) { f.status.Unfit = "it is on nfs\nmove it" }, "data", "it is on nfs", "docker pgbranch setup --data"},
		"space":      {func(f *fakeAPI) { f.status.FreeBytes = 1 << 30 }, "data", "little is left", "docker pgbranch df"},
		"damage": {func(f *fakeAPI) {
			f.volumes["bx"].Status["damaged"], f.volumes["bx"].Status["lastError"] = true, "meta.json is damaged"
		}, "damage", "branch bx: cannot be used", "docker volume rm bx"},
		"expired": {func(f *fakeAPI) {
			f.volumes["bx"].Status["expired"] = true
			f.volumes["bx"].Status["expiresAt"] = time.Now()
		}, "branch", "has expired", "docker pgbranch prune -f --running"},
		"no container": {func(f *fakeAPI) { delete(f.containers, "pgbranch-bx") }, "branch", "its container is gone", "docker pgbranch rm bx"},
		"eager": {func(f *fakeAPI) {
			f.volumes["bx"].Status["cowMode"], f.volumes["bx"].Status["cowReason"] = contract.ModeEager, "the server has no shim"
		}, "branch", "the server has no shim", "docker pgbranch create bx --from shop@1"},
		"last error": {func(f *fakeAPI) { f.volumes["bx"].Status["lastError"] = "no space" }, "branch", "no space", "docker pgbranch inspect bx"},
		"shadowed": {func(f *fakeAPI) {
			f.status.Volumes = append(f.status.Volumes, "hidden")
			f.volumes["hidden"] = &volume.Volume{Name: "hidden", Driver: "local"}
		}, "volume", "hides the plugin's own", "docker volume rm hidden"},
		"staging": {func(f *fakeAPI) {
			f.volumes["st"] = &volume.Volume{Name: "st", Driver: contract.DriverNameInEngine, CreatedAt: time.Now().Add(-time.Hour).Format(time.RFC3339),
				Status: statusMap(contract.Status{Kind: contract.KindStaging, Seed: "shop"})}
		}, "staging", "nobody goes on with", "docker volume rm st"},
		"helper": {func(f *fakeAPI) {
			f.containers["pgbranch-settle-1"] = &fakeContainer{config: &container.Config{Labels: map[string]string{LabelHelper: "shop"}}, host: &container.HostConfig{}, created: old}
		}, "container", "helper container that was left", "docker rm pgbranch-settle-1"},
		"orphan": {func(f *fakeAPI) {
			f.containers["pgbranch-by"] = &fakeContainer{config: &container.Config{Labels: map[string]string{LabelBranch: "by"}}, host: &container.HostConfig{}}
		}, "container", "the branch by that it runs is gone", "docker rm -f pgbranch-by"},
	} {
		f := healthy(t)
		c.make(f)
		found := problems(newEngine(f).Doctor(context.Background(), nil))
		if len(found) != 1 || found[0].Check != c.check || !strings.Contains(found[0].Detail, c.says) || !strings.Contains(found[0].Fix, c.fix) {
			t.Errorf("%s: found %+v", name, found)
		}
	}
}

func TestDoctorTellsTheNotesOfBranches(t *testing.T) {
	f := healthy(t)
	f.volumes["bx"].Options = map[string]string{contract.OptSeed: "other"}
	found := problems(newEngine(f).Doctor(context.Background(), func(_ context.Context, b Branch) []Note {
		if b.Branch != "bx" {
			return nil
		}
		return []Note{{Detail: "the file asks for cow=off", Fix: "docker compose down -v"}}
	}))
	if len(found) != 2 || !strings.Contains(found[0].Detail, "seed=other") || found[1].Fix != "docker compose down -v" {
		t.Errorf("found %+v", found)
	}
}

func TestDoctorSaysWhyADisabledPluginWouldNotStart(t *testing.T) {
	f := healthy(t)
	f.plugin.Enabled = false
	f.plugin.Settings.Mounts = []types.PluginMount{{Name: "data", Source: ptr("/srv/data")}}
	f.check = func(string, string) error { return errors.New("data root /data/pgoverlay: is no store") }
	found := problems(newEngine(f).Doctor(context.Background(), nil))
	if len(found) != 1 || !strings.Contains(found[0].Detail, "is no store") || !strings.Contains(found[0].Detail, "was in /srv/data before") {
		t.Errorf("found %+v", found)
	}
}

func TestDoctorOfAnEngineThatDoesNotAnswer(t *testing.T) {
	f := healthy(t)
	f.infoErr = errors.New("connection refused")
	checks := newEngine(f).Doctor(context.Background(), nil)
	found := problems(checks)
	if len(found) != 1 || found[0].Check != "engine" || !strings.Contains(found[0].Detail, "connection refused") || len(checks) != 4 {
		t.Errorf("checks %+v", checks)
	}
}
