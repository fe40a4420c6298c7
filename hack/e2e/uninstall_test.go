//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Uninstall refuses while volumes exist, can leave them for a reinstall to find, and
// removes everything when asked. It is shown on a data root of its own, beside which the
// one of the other tests lies.
func TestUninstall(t *testing.T) {
	seed := anySeed(t)
	settings := moveStore(t)
	name := prefix + "kept"
	branch(t, name, seed)
	sql(t, name, "shop", "CREATE TABLE mine AS SELECT 42 AS n")

	r := try("uninstall", "-f")
	if r.code != 4 || !strings.Contains(r.stderr, name) || !strings.Contains(r.stderr, seed) || !strings.Contains(r.stderr, "--purge") {
		t.Errorf("with volumes: exit %d, %s", r.code, r.stderr)
	}
	if r := try("uninstall", "--purge"); r.code != 2 || !strings.Contains(r.stderr, "--force") {
		t.Errorf("without -f and a terminal: exit %d, %s", r.code, r.stderr)
	}
	if got := sql(t, name, "shop", "SELECT n FROM mine"); got != "42" {
		t.Fatalf("a refused uninstall left %q", got)
	}
	r = try("uninstall", "--keep-data", "-f")
	if r.code != 0 || !strings.Contains(r.stderr, "setup --data "+settings.data) {
		t.Fatalf("--keep-data: exit %d, %s", r.code, r.stderr)
	}
	t.Log(r.stderr)
	if plugins := docker(t, "plugin", "ls", "-q"); plugins != "" {
		t.Errorf("plugins are left: %s", plugins)
	}
	// The name is free: the engine keeps no record of a volume of a driver that is gone.
	docker(t, "volume", "create", name)
	docker(t, "volume", "rm", name)

	pgbranch(t, "setup", "--data", settings.data)
	pgbranch(t, "start", name)
	if got := sql(t, name, "shop", "SELECT n FROM mine"); got != "42" {
		t.Errorf("after a reinstall the branch reads %q", got)
	}
	purge(t, settings)
}

// purge removes everything from a second data root.
func purge(t *testing.T, settings plugSettings) {
	t.Helper()
	stopAll(t)
	docker(t, "plugin", "disable", "-f", "pgoverlay")
	root := filepath.Join(settings.data, "pgoverlay")
	aside := settings.data + "-aside"
	if err := os.Rename(root, aside); err != nil {
		t.Fatal(err)
	}
	defer func() {
		// The other tests' seeds come back.
		if err := os.Rename(aside, root); err != nil {
			t.Fatal(err)
		}
		pgbranch(t, "setup", "--data", settings.data)
	}()
	if r := try("uninstall", "-f"); r.code != 0 {
		t.Fatalf("of a plugin whose store is gone: exit %d, %s", r.code, r.stderr)
	}
	pgbranch(t, "setup", "--data", settings.data)
	if out := pgbranch(t, "seed", "ls", "-q"); out != "" {
		t.Fatalf("the second data root has %s", out)
	}
	docker(t, "volume", "create", "-d", "pgoverlay", "-o", "staging="+prefix+"half", prefix+"staging")
	if r := try("uninstall", "-f"); r.code != 4 || !strings.Contains(r.stderr, prefix+"staging") {
		t.Errorf("with an unfinished seed: exit %d, %s", r.code, r.stderr)
	}
	for range 2 {
		if r := try("uninstall", "--purge", "-f"); r.code != 0 {
			t.Errorf("--purge: exit %d, %s", r.code, r.stderr)
		}
	}
	if _, err := os.Lstat(root); !os.IsNotExist(err) {
		t.Errorf("the data root is still there: %v", err)
	}
	left := docker(t, "plugin", "ls", "-q") + docker(t, "images", "-q", "--filter", "label=io.github.pgbranch.helper") +
		docker(t, "ps", "-aq", "--filter", "label=io.github.pgbranch.helper")
	if left != "" {
		t.Errorf("left: %s", left)
	}
}
