//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"
)

// Two containers that have nothing but the volume. Each server takes the other's
// postmaster.pid for a stale one, since it loads the shim only after that: the second
// must end with one line, and the first must find its file as it was. Its check comes
// once a minute; E2E_LONG waits for that.
func TestSecondServerWithoutPreload(t *testing.T) {
	const at = ":/var/lib/postgresql/data"
	name, second := prefix+"first", prefix+"second"
	byHand(t, name, mainSeed(t))
	runBranch(t, name, name+at, "postgres:17")
	answers(t, name)
	claim := func() string {
		return docker(t, "exec", name, "sh", "-c", `stat -c %i "$PGDATA/postmaster.pid"; cat "$PGDATA/postmaster.pid"`)
	}
	before := claim()
	// As process 1, whose number the first one's file has too, and as another.
	for _, flags := range [][]string{nil, {"--init"}} {
		args := append([]string{"run", "--name", second, "-v", name + at}, flags...)
		r := command("", "docker", append(args, "postgres:17")...)
		t.Logf("exit %d: %s", r.code, r.stderr)
		docker(t, "rm", "-f", second)
		if r.code != 1 || strings.Count(r.stderr+r.stdout, "lazyrw") != 1 ||
			!strings.Contains(r.stderr, "is in use by another Postgres server on this branch") {
			t.Errorf("%v: the second server: exit %d\n%s", flags, r.code, r.stderr)
		}
		if now := claim(); now != before {
			t.Errorf("%v: postmaster.pid was\n%s\nand is\n%s", flags, before, now)
		}
	}
	ask(t, name, "shop", "CREATE TABLE after_all AS SELECT 1 AS one")
	if os.Getenv("E2E_LONG") != "" {
		time.Sleep(65 * time.Second)
	}
	if got := ask(t, name, "shop", "SELECT one FROM after_all"); got != "1" {
		t.Errorf("the first server says %q", got)
	}
	if logs := command("", "docker", "logs", name); strings.Contains(logs.stderr, "invalid") {
		t.Errorf("the first server's log:\n%s", logs.stderr)
	}

	// The same container again is no second server, nor is one whose server was killed.
	docker(t, "restart", name)
	answers(t, name)
	docker(t, "kill", "-s", "KILL", name)
	docker(t, "start", name)
	answers(t, name)
	if got := ask(t, name, "shop", "SELECT one FROM after_all"); got != "1" {
		t.Errorf("after a kill the server says %q", got)
	}
}

// io_uring goes around the shim: a lazy branch refuses it, naming the setting, by both ways
// in, and runs with what else 18 has.
func TestIOMethods(t *testing.T) {
	seed := makeSeed(t, startSource(t, "postgres:18", 60_000), prefix+"small18")
	const at = ":/var/lib/postgresql"
	name := prefix + "io"
	byHand(t, name, seed)
	for _, env := range []string{"X=", "LD_PRELOAD=/var/lib/postgresql/.pgoverlay/lazyrw.so"} {
		r := command("", "docker", "run", "--rm", "--name", name, "-v", name+at, "-e", env, "postgres:18", "-c", "io_method=io_uring")
		var lines []string
		for line := range strings.Lines(r.stderr + "\n" + r.stdout) {
			if strings.Contains(line, "FATAL") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		if r.code != 1 || len(lines) != 1 || !strings.Contains(lines[0], "set io_method to worker or sync") {
			t.Errorf("%s: exit %d\n%s", env, r.code, r.stderr)
		}
	}
	for _, method := range []string{"sync", "worker"} {
		runBranch(t, name, name+at, "postgres:18", "-c", "io_method="+method)
		answers(t, name)
		if got := ask(t, name, "shop", "SELECT count(pad) FROM big"); got != "60000" {
			t.Errorf("%s: read %q", method, got)
		}
		if c := cowOf(t, name); c.CowMode != "lazyrw" || c.CowVia != "shared_preload_libraries" {
			t.Errorf("%s: %+v", method, c)
		}
		docker(t, "rm", "-f", name)
	}
	if copied := relationFiles(t, upper(t, name)); len(copied) != 0 {
		t.Errorf("reading copied %v", copied)
	}
}
