//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// cow is what ls and inspect say of a branch's cow mode.
type cow struct{ CowMode, CowVia, CowReason string }

func cowOf(t testing.TB, branch string) (c cow) {
	t.Helper()
	raw := pgbranch(t, "inspect", branch, "--format", "{{json .}}")
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	return c
}

// byHand makes a branch's volume as anybody may, to be removed at the test's end.
func byHand(t testing.TB, name, seed string, options ...string) {
	t.Helper()
	t.Cleanup(func() { command("", "docker", "volume", "rm", "-f", name) })
	args := []string{"volume", "create", "-d", "pgoverlay", "-o", "seed=" + seed}
	for _, o := range options {
		args = append(args, "-o", o)
	}
	docker(t, append(args, name)...)
}

// runBranch starts a container over a branch's volume, removed at the test's end.
func runBranch(t testing.TB, name, volume string, args ...string) {
	t.Helper()
	t.Cleanup(func() { command("", "docker", "rm", "-f", "-v", name) })
	docker(t, append([]string{"run", "-d", "--name", name, "-v", volume}, args...)...)
}

func answers(t testing.TB, container string) {
	t.Helper()
	waitFor(t, time.Minute, container+" answers", func() bool {
		return command("", "docker", "exec", container, "pg_isready", "-q", "-h", "/var/run/postgresql", "-U", "postgres").code == 0
	})
}

func ask(t testing.TB, container, database, statement string) string {
	t.Helper()
	return docker(t, "exec", container, "psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-c", statement)
}

// A container that has nothing but the volume is lazy, in every layout, and the branch
// says which way the shim came in: what the server left is read, not what was intended.
func TestBothWaysIn(t *testing.T) {
	for image, mountPath := range map[string]string{"postgres:17": "/var/lib/postgresql/data", "postgres:18": "/var/lib/postgresql"} {
		t.Run(image, func(t *testing.T) {
			seed := mainSeed(t)
			if image == "postgres:18" {
				seed = makeSeed(t, startSource(t, image, 60_000), prefix+"small18")
			}
			name := prefix + "ways" + image[len("postgres:"):]
			byHand(t, name, seed)
			if c := cowOf(t, name); c.CowMode != "lazyrw" || c.CowVia != "" || !strings.Contains(c.CowReason, "unproven") {
				t.Errorf("before any server: %+v", c)
			}
			runBranch(t, name, name+":"+mountPath, image)
			answers(t, name)
			if got := ask(t, name, "shop", "SELECT count(pad) > 0 FROM big"); got != "t" {
				t.Errorf("read %q", got)
			}
			if c := cowOf(t, name); c != (cow{CowMode: "lazyrw", CowVia: "shared_preload_libraries"}) {
				t.Errorf("with nothing but the volume: %+v", c)
			}
			if copied := relationFiles(t, upper(t, name)); len(copied) != 0 {
				t.Errorf("reading copied %v", copied)
			}
			docker(t, "stop", name)
			if c := cowOf(t, name); c.CowVia != "shared_preload_libraries" {
				t.Errorf("stopped: %+v", c)
			}
			docker(t, "start", name)
			answers(t, name)
			docker(t, "rm", "-f", name)
			runBranch(t, name, name+":"+mountPath, "-e", "LD_PRELOAD="+mountPath+"/.pgoverlay/lazyrw.so", image)
			answers(t, name)
			if c := cowOf(t, name); c != (cow{CowMode: "lazyrw", CowVia: "LD_PRELOAD"}) {
				t.Errorf("with LD_PRELOAD: %+v", c)
			}
		})
	}
}

// Where a branch is eager it says why, whoever started its server.
func TestEagerSaysWhy(t *testing.T) {
	seed := mainSeed(t)
	const at = ":/var/lib/postgresql/data"
	name := prefix + "eager"
	byHand(t, name, seed)
	expect := func(c cow, reason string) {
		t.Helper()
		if got := cowOf(t, name); got.CowMode != c.CowMode || got.CowVia != c.CowVia || !strings.Contains(got.CowReason, reason) {
			t.Errorf("%+v, want %+v with reason %q", got, c, reason)
		}
	}
	eager, lazy := cow{CowMode: "eager", CowVia: "none"}, cow{CowMode: "lazyrw", CowVia: "shared_preload_libraries"}
	again := func(args ...string) {
		t.Helper()
		docker(t, "rm", "-f", name)
		runBranch(t, name, name+at, args...)
		answers(t, name)
	}
	runBranch(t, name, name+at, "postgres:17", "-c", "shared_preload_libraries=auto_explain")
	answers(t, name)
	expect(eager, "-c shared_preload_libraries")
	again("postgres:17", "-c", "shared_preload_libraries=.pgoverlay/lazyrw.so,auto_explain")
	expect(lazy, "")
	ask(t, name, "shop", "ALTER SYSTEM SET shared_preload_libraries = 'auto_explain'")
	again("-e", "LD_PRELOAD=/nonexistent/jemalloc.so", "postgres:17")
	expect(eager, "ALTER SYSTEM")
	expect(eager, "/nonexistent/jemalloc.so")
	ask(t, name, "shop", "ALTER SYSTEM RESET shared_preload_libraries")
	again("-e", "LD_PRELOAD=/nonexistent/jemalloc.so", "postgres:17")
	expect(lazy, "")

	off := prefix + "off"
	byHand(t, off, seed, "cow=off")
	runBranch(t, off, off+at, "-e", "LD_PRELOAD=/var/lib/postgresql/data/.pgoverlay/lazyrw.so", "postgres:17")
	answers(t, off)
	ask(t, off, "shop", "SELECT count(*) FROM small")
	if c := cowOf(t, off); c.CowMode != "eager" || c.CowReason != "cow=off" {
		t.Errorf("cow=off: %+v", c)
	}
	if len(relationFiles(t, upper(t, off))) == 0 {
		t.Error("a branch with cow=off is lazy")
	}
}

// The loader takes no LD_PRELOAD for a server whose file has a set-id bit (ld.so(8), secure-execution mode), and by the other way
// the shim is in but finds nothing: such a process may not read its own /proc/self/auxv. The branch says so either way.
func TestEagerOfASetIDServer(t *testing.T) {
	seed := anySeed(t)
	const at = ":/var/lib/postgresql/data"
	odd, container := prefix+"setid:17", prefix+"setid-image"
	t.Cleanup(func() { command("", "docker", "rm", "-f", container); command("", "docker", "image", "rm", odd) })
	docker(t, "run", "--name", container, "--entrypoint", "chmod", "postgres:17", "g+s", "/usr/lib/postgresql/17/bin/postgres")
	docker(t, "commit", "--change", `ENTRYPOINT ["docker-entrypoint.sh"]`, "--change", `CMD ["postgres"]`, container, odd)
	for _, c := range []struct {
		name, reason string
		args         []string
		want         cow
	}{
		{"setid-library", "found none of the calls", nil, cow{CowMode: "eager", CowVia: "shared_preload_libraries"}},
		{"setid-neither", "set-id bits", []string{"postgres", "-c", "shared_preload_libraries="}, cow{CowMode: "eager", CowVia: "none"}},
	} {
		name := prefix + c.name
		byHand(t, name, seed)
		runBranch(t, name, name+at, append([]string{"-e", "LD_PRELOAD=/var/lib/postgresql/data/.pgoverlay/lazyrw.so", odd}, c.args...)...)
		answers(t, name)
		if got := cowOf(t, name); got.CowMode != c.want.CowMode || got.CowVia != c.want.CowVia || !strings.Contains(got.CowReason, c.reason) {
			t.Errorf("%s: %+v, want %+v with reason %q", name, got, c.want, c.reason)
		}
	}
}

// create warns where the branch turns out eager and that was not asked for, here by an
// image whose entrypoint drops both ways in, and is silent otherwise.
func TestCreateWarnsOfEager(t *testing.T) {
	s := startSource(t, "postgres:17", 60_000)
	odd := prefix + "unloads:17"
	container := prefix + "unloads"
	t.Cleanup(func() { command("", "docker", "rm", "-f", container); command("", "docker", "image", "rm", odd) })
	docker(t, "create", "--name", container, "postgres:17")
	docker(t, "commit", "--change", `ENTRYPOINT ["sh", "-c", "unset LD_PRELOAD; exec docker-entrypoint.sh postgres -c shared_preload_libraries="]`, container, odd)
	r := command(password+"\n", "docker", "pgbranch", "seed", "create", prefix+"unloads", "--from", s.url("shop"), "--image", odd,
		"--network", s.network, "--password-stdin")
	if r.code != 0 {
		t.Fatalf("seed create: exit %d\n%s", r.code, r.stderr)
	}
	t.Cleanup(func() { try("seed", "rm", prefix+"unloads") })
	for flag, warns := range map[string]bool{"auto": true, "off": false} {
		name := prefix + "unloads-" + flag
		r := try("create", name, "--from", prefix+"unloads", "--cow", flag)
		if r.code != 0 || strings.Contains(r.stderr, "warning: the branch is eager") != warns {
			t.Errorf("--cow %s: exit %d, %s", flag, r.code, r.stderr)
		}
		if warns && !strings.Contains(r.stderr, "-c shared_preload_libraries") {
			t.Errorf("no reason: %s", r.stderr)
		}
		try("rm", "-f", name)
	}
	r = try("create", prefix+"quiet", "--from", mainSeed(t))
	t.Cleanup(func() { try("rm", "-f", prefix+"quiet") })
	if r.code != 0 || strings.Contains(r.stderr, "warning") {
		t.Errorf("a lazy branch: exit %d, %s", r.code, r.stderr)
	}
}

// A base backup of a branch starts where there is no volume of ours.
func TestBackupOfABranchStartsElsewhere(t *testing.T) {
	name := prefix + "backedup"
	branch(t, name, mainSeed(t))
	container := "pgbranch-" + name
	docker(t, "exec", container, "sh", "-c", `pg_basebackup -U postgres -D /tmp/copy -c fast >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }`)
	out := docker(t, "exec", container, "sh", "-c",
		`cd / && env -u LD_PRELOAD pg_ctl -D /tmp/copy -w -o "-p 6000 -c listen_addresses=" -l /tmp/log start >/dev/null || { cat /tmp/log; exit 1; }
		psql -qAtX -p 6000 -U postgres -d shop -c "SELECT count(*) FROM small" -c "SHOW shared_preload_libraries"; pg_ctl -D /tmp/copy -m fast stop >/dev/null`)
	if strings.TrimSpace(out) != "200" {
		t.Errorf("the copy says %q", out)
	}
}

// The shim is in every process of a server, however it was started (field case C08),
// a user's own preload stays effective, and one that does not exist leaves the output of
// programs parseable (C10).
func TestEveryProcessHasTheShim(t *testing.T) {
	seed := mainSeed(t)
	const at = ":/var/lib/postgresql/data"
	script := filepath.Join(t.TempDir(), "entry.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec docker-entrypoint.sh \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, args := range [][]string{
		{"postgres:17"},
		{"--user", "999:999", "--init", "postgres:17"},
		{"-v", script + ":/entry.sh:ro", "--entrypoint", "/entry.sh", "-e", "LD_PRELOAD=/nonexistent/own.so:/var/lib/postgresql/data/.pgoverlay/lazyrw.so", "postgres:17", "postgres"},
	} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			name := fmt.Sprintf("%severy%d", prefix, i)
			byHand(t, name, seed)
			runBranch(t, name, name+at, args...)
			answers(t, name)
			out := docker(t, "exec", "-u", "999", name, "sh", "-c", `for p in /proc/[0-9]*; do
				case $(readlink $p/exe) in */postgres) ;; *) continue ;; esac
				grep -q /.pgoverlay/lazyrw- $p/maps && echo with || echo "without: $(cat $p/comm)"; done 2>/dev/null`)
			if strings.Contains(out, "without") || strings.Count(out, "with") < 5 {
				t.Errorf("processes: %s", out)
			}
			r := command("", "docker", "exec", name, "psql", "-qAtX", "-U", "postgres", "-d", "shop", "-c", "SELECT count(*) FROM small")
			if r.stdout != "200" {
				t.Errorf("psql says %q", r.stdout)
			}
			for _, tool := range [][]string{{"true"}, {"pg_isready", "-q"}} {
				r := command("", "docker", append([]string{"exec", name}, tool...)...)
				if r.code != 0 || r.stdout != "" || strings.Contains(r.stderr, "lazyrw") {
					t.Errorf("%q: exit %d, %q, %q", tool, r.code, r.stdout, r.stderr)
				}
			}
		})
	}
}

// A container whose port somebody has fails to start when its volume is mounted already.
// It leaves the branch at rest, and starts once the port is free.
func TestAPortThatIsTaken(t *testing.T) {
	seed, name := anySeed(t), prefix+"port"
	docker(t, "volume", "create", "-d", "pgoverlay", "-o", "seed="+seed, name)
	t.Cleanup(func() {
		command("", "docker", "rm", "-f", name)
		command("", "docker", "volume", "rm", name)
	})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	r := command("", "docker", "run", "-d", "--name", name, "-p", taken.Addr().String()+":5432", "-v", name+":/var/lib/postgresql/data", "postgres:17")
	if r.code == 0 || !strings.Contains(r.stderr, "address already in use") {
		t.Fatalf("over a port that is taken: exit %d, %s", r.code, r.stderr)
	}
	if got := docker(t, "volume", "inspect", "-f", "{{.Status.mounted}} {{.Status.lastError}}", name); got != "false <no value>" {
		t.Errorf("the branch is left mounted, or with an error: %s", got)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	docker(t, "start", name)
	waitFor(t, time.Minute, "its server", func() bool {
		return command("", "docker", "exec", name, "pg_isready", "-q").code == 0
	})
	if got := docker(t, "volume", "inspect", "-f", "{{.Status.mounted}}", name); got != "true" {
		t.Errorf("mounted: %s", got)
	}
}
