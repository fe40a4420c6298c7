//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// Bad input gets a clear error, the right exit code, and leaves nothing behind.
func TestRefusals(t *testing.T) {
	s := startSource(t, "postgres:17", bigRows)
	seed := mainSeed(t)
	long := strings.Repeat("n", 200)
	from := func(url string, more ...string) []string {
		return append([]string{"seed", "create", prefix + "bad", "--network", s.network, "--from", url}, more...)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"unknown seed", []string{"create", prefix + "b", "--from", prefix + "nothere"}, 3, []string{prefix + "nothere", "does not exist", "seeds here", seed}},
		{"unknown generation", []string{"create", prefix + "b", "--from", prefix + "shop@9"}, 3, []string{"shop@9", seed}},
		{"no seed given", []string{"create", prefix + "b"}, 2, []string{"from"}},
		{"unknown flag", []string{"create", prefix + "b", "--from", seed, "--colour", "red"}, 2, []string{"--colour"}},
		{"bad cow", []string{"create", prefix + "b", "--from", seed, "--cow", "purple"}, 2, []string{"cow", "auto"}},
		{"bad port", []string{"create", prefix + "b", "--from", seed, "-p", "99999"}, 2, []string{"99999"}},
		{"unknown network", []string{"create", prefix + "b", "--from", seed, "--network", prefix + "nonet"}, 3, []string{prefix + "nonet"}},
		{"slash", []string{"create", "a/b", "--from", seed}, 2, []string{"a/b", "characters"}},
		{"dots", []string{"create", "..", "--from", seed}, 2, []string{"characters"}},
		{"spaces", []string{"create", "a b", "--from", seed}, 2, []string{"characters"}},
		// docker takes -v x:/path for a path on a Windows drive, and mounts an empty volume.
		{"one letter", []string{"create", "x", "--from", seed}, 2, []string{"characters"}},
		{"200 characters", []string{"create", long, "--from", seed}, 2, []string{"characters"}},
		{"unknown branch", []string{"psql", prefix + "nobody"}, 3, []string{prefix + "nobody", "does not exist"}},
		{"unknown verb", []string{"branchify"}, 2, []string{"branchify"}},

		{"seed name in use", []string{"seed", "create", prefix + "shop", "--from", s.url("shop")}, 4, []string{prefix + "shop"}},
		{"seed name with a slash", []string{"seed", "create", "a/b", "--from", s.url("shop")}, 2, []string{"characters"}},
		{"no URL", []string{"seed", "create", prefix + "bad"}, 2, []string{"from"}},
		{"not a URL", from("shop"), 2, []string{"postgres://"}},
		{"a data folder", from("/var/lib/postgresql/data"), 2, []string{"is a path", "a server that runs", "docker run"}},
		{"a volume", from("volume:shop_pgdata"), 2, []string{"names files", "a server that runs", "-v shop_pgdata:"}},
		{"wrong password", from("postgres://postgres:wrong@" + s.container + "/shop"), 6, []string{"password"}},
		{"no password", from(s.url("shop")), 6, []string{"password"}},
		{"unknown host", from("postgres://postgres:x@" + prefix + "no-host/shop"), 6, []string{prefix + "no-host"}},
		{"nobody listens", from("postgres://postgres:x@" + s.container + ":5999/shop"), 6, []string{"5999", "refused"}},
		{"unknown database", from("postgres://postgres:" + password + "@" + s.container + "/nosuchdb"), 6, []string{"nosuchdb"}},
		{"unknown seed network", append(from("postgres://postgres:"+password+"@"+s.container+"/shop"), "--network", prefix+"nonet"), 3, []string{prefix + "nonet"}},
		{"image of another major", from("postgres://postgres:"+password+"@"+s.container+"/shop", "--image", "postgres:15"), 2, []string{"15", "17"}},
		{"image that is nowhere", from("postgres://postgres:"+password+"@"+s.container+"/shop", "--image", "localhost:1/nothing:1"), 3, []string{"localhost:1/nothing:1"}},
		{"seed rm of nothing", []string{"seed", "rm", prefix + "nothere"}, 3, []string{prefix + "nothere"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := state(t)
			r := try(c.args...)
			t.Logf("exit %d: %s", r.code, r.stderr)
			if r.code != c.code {
				t.Errorf("exit %d, want %d", r.code, c.code)
			}
			if r.stdout != "" {
				t.Errorf("stdout holds %q", r.stdout)
			}
			for _, w := range c.want {
				if !strings.Contains(r.stderr, w) {
					t.Errorf("%q does not say %q", r.stderr, w)
				}
			}
			if strings.Contains(r.stderr, password) {
				t.Error("the password is printed")
			}
			if after := state(t); after != before {
				t.Errorf("left behind\n%s\nwas\n%s", after, before)
			}
		})
	}
}

// The volume driver itself refuses what no CLI of ours has looked at.
func TestVolumeRefusals(t *testing.T) {
	seed := mainSeed(t)
	for _, c := range []struct {
		name   string
		volume string
		opts   []string
		want   []string
	}{
		{"unknown seed", prefix + "v", []string{"seed=" + prefix + "nothere"}, []string{prefix + "nothere", prefix + "shop"}},
		{"no option", prefix + "v", nil, []string{"seed", "ttl", "cow"}},
		{"unknown option", prefix + "v", []string{"seed=" + seed, "colour=red"}, []string{"colour", "seed", "ttl"}},
		{"two parents", prefix + "v", []string{"seed=" + seed, "branch=x"}, []string{"seed", "branch"}},
		{"slash", "a/b", []string{"seed=" + seed}, []string{"a/b"}},
		{"dots", "..", []string{"seed=" + seed}, []string{".."}},
		{"spaces", "a b", []string{"seed=" + seed}, []string{"a b"}},
		{"one letter", "x", []string{"seed=" + seed}, []string{"2 to 128"}},
		{"200 characters", strings.Repeat("n", 200), []string{"seed=" + seed}, []string{"128"}},
		{"bad ttl", prefix + "v", []string{"seed=" + seed, "ttl=tomorrow"}, []string{"ttl", "tomorrow"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := state(t)
			args := []string{"volume", "create", "-d", "pgoverlay"}
			for _, o := range c.opts {
				args = append(args, "-o", o)
			}
			r := command("", "docker", append(args, c.volume)...)
			t.Log(r.stderr)
			if r.code == 0 {
				t.Error("it was created")
			}
			for _, w := range c.want {
				if !strings.Contains(r.stderr, w) {
					t.Errorf("%q does not say %q", r.stderr, w)
				}
			}
			if after := state(t); after != before {
				t.Errorf("left behind\n%s\nwas\n%s", after, before)
			}
		})
	}
}

// A source without a replication line is refused before anything is copied, with
// the line that it lacks.
func TestNoReplicationLine(t *testing.T) {
	s := startSource(t, "postgres:17", bigRows)
	hba := func(script string) {
		docker(t, "exec", s.container, "sh", "-c", script+` && psql -qAtXU postgres -c 'SELECT pg_reload_conf()'`)
	}
	hba(`sed -i 's/^host replication all all/#&/' "$PGDATA/pg_hba.conf"`)
	defer hba(`sed -i 's/^#host replication all all/host replication all all/' "$PGDATA/pg_hba.conf"`)
	before := state(t)
	r := command(password, "docker", "pgbranch", "seed", "create", prefix+"norepl", "--from", s.url("shop"), "--network", s.network, "--password-stdin")
	t.Log(r.stderr)
	if r.code != 6 || !strings.Contains(r.stderr, "pg_hba.conf") || !strings.Contains(r.stderr, "replication") {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	if after := state(t); after != before {
		t.Errorf("left behind\n%s", after)
	}
}

// Wherever Ctrl-C comes, and whatever kills the command, nothing stays, neither here nor
// on the source.
func TestInterruptedSeeding(t *testing.T) {
	s := startSource(t, "postgres:17", bigRows)
	for _, stage := range []string{"probe", "prepare", "recover", "freeze", "checkpoint"} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
			t.Run(fmt.Sprint(stage, " ", sig), func(t *testing.T) {
				interrupt(t, s, sig, func(p engine.Progress) (time.Duration, bool) { return 0, p.Stage == stage })
			})
		}
	}
}

// A tenth, the half and nearly all of the bytes are there, of a source that may send so
// many each second.
func TestInterruptedBaseBackup(t *testing.T) {
	s := startSource(t, "postgres:17", 1)
	const rate = 16 << 20
	for _, c := range []struct {
		part float64
		sig  syscall.Signal
	}{{0.1, syscall.SIGINT}, {0.5, syscall.SIGKILL}, {0.99, syscall.SIGINT}, {0.99, syscall.SIGKILL}} {
		t.Run(fmt.Sprintf("%v of the bytes %s", c.part, c.sig), func(t *testing.T) {
			last := interrupt(t, s, c.sig, func(p engine.Progress) (time.Duration, bool) {
				// pg_basebackup says once a second how far it is (progress_report in pg_basebackup.c).
				left := c.part*float64(p.Total) - float64(p.Done)
				return time.Duration(left / rate * float64(time.Second)), p.Done > 0 && left < rate
			}, "--max-rate", fmt.Sprint(rate))
			if last.Stage != "base backup" {
				t.Errorf("it was in the stage %q by then", last.Stage)
			}
			t.Logf("last heard of: %d of %d bytes", last.Done, last.Total)
		})
	}
}

// interrupt seeds from the source, sends the signal when due says so, after the time that
// it gives, and sees that all is as before. It gives the last progress of the command.
func interrupt(t *testing.T, s source, sig syscall.Signal, due func(engine.Progress) (time.Duration, bool), more ...string) engine.Progress {
	t.Helper()
	before := state(t)
	name := prefix + "broken"
	cmd := exec.Command("docker", append([]string{"pgbranch", "seed", "create", name, "--from", s.url("shop"),
		"--network", s.network, "--password-stdin", "--progress", "json"}, more...)...)
	cmd.Stdin = strings.NewReader(password)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var last engine.Progress
	var text string
	sent := false
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		text += lines.Text() + "\n"
		var p engine.Progress
		if json.Unmarshal(lines.Bytes(), &p) != nil {
			continue
		}
		last = p
		if after, now := due(p); now && !sent {
			sent = true
			// To the group, as a terminal does.
			time.AfterFunc(after, func() { _ = syscall.Kill(-cmd.Process.Pid, sig) })
		}
	}
	_ = cmd.Wait()
	if !sent {
		t.Fatalf("the moment never came: %s", text)
	}
	if cmd.ProcessState.ExitCode() == 0 {
		t.Error("an interrupted seeding ended well")
	}
	// Nobody is left to clean up after SIGKILL: the helper ends by itself, and the
	// next seeding of that name clears the rest.
	waitAsBefore(t, before, func() {
		if sig != syscall.SIGKILL {
			return
		}
		r := command("wrong", "docker", "pgbranch", "seed", "create", name, "--from", s.url("shop"), "--network", s.network, "--password-stdin")
		if r.code != 6 {
			t.Errorf("the next seeding: exit %d, %s", r.code, r.stderr)
		}
	})
	left := docker(t, "exec", s.container, "psql", "-qAtXU", "postgres", "-c",
		"SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_stat_replication)")
	if left != "0|0" {
		t.Errorf("slots and walsenders that stay on the source: %s", left)
	}
	return last
}

func TestKilledBaseBackup(t *testing.T) {
	s := startSource(t, "postgres:17", bigRows)
	before := state(t)
	done := make(chan result, 1)
	name := prefix + "killed"
	go func() {
		done <- command(password, "docker", "pgbranch", "seed", "create", name, "--from", s.url("shop"), "--network", s.network, "--password-stdin")
	}()
	waitFor(t, time.Minute, "pg_basebackup runs", func() bool {
		id := docker(t, "ps", "-q", "--filter", "label=io.github.pgbranch.helper="+name, "--filter", "name=pgbranch-basebackup-")
		if id == "" {
			return false
		}
		top := command("", "docker", "top", id, "-eo", "pid,comm")
		for line := range strings.Lines(top.stdout) {
			var pid int
			var comm string
			if n, _ := fmt.Sscan(line, &pid, &comm); n == 2 && comm == "pg_basebackup" {
				return syscall.Kill(pid, syscall.SIGKILL) == nil
			}
		}
		return false
	})
	r := <-done
	t.Log(r.stderr)
	if r.code == 0 || !strings.Contains(r.stderr, "pg_basebackup") {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	waitAsBefore(t, before, func() {})
}

func TestNoEngine(t *testing.T) {
	for _, args := range [][]string{{"ls"}, {"setup"}, {"create", "bx", "--from", "shop"}, {"seed", "ls"}} {
		r := command("", "docker", append([]string{"-H", "unix:///nonexistent/docker.sock", "pgbranch"}, args...)...)
		if r.code != 5 || !strings.Contains(r.stderr, "cannot be reached") || !strings.Contains(r.stderr, "hint:") {
			t.Errorf("%q: exit %d, %s", args, r.code, r.stderr)
		}
	}
}
