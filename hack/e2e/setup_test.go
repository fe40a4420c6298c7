//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSetupIsIdempotent(t *testing.T) {
	ready(t)
	r := try("setup")
	if r.code != 0 || !strings.Contains(r.stderr, "nothing to do") || !strings.Contains(r.stdout, "is ready") {
		t.Errorf("exit %d\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	r = try("setup", "--data", "/somewhere/else")
	if r.code != 4 || !strings.Contains(r.stderr, "keeps its data in") {
		t.Errorf("moving the data: exit %d, %s", r.code, r.stderr)
	}
}

// What the plugin may do is one capability and one mount, and no network.
func TestThePluginsPrivileges(t *testing.T) {
	ready(t)
	got := docker(t, "plugin", "inspect", "pgoverlay", "-f",
		`{{json .Config.Linux.Capabilities}} {{json .Config.Linux.Devices}} {{.Config.Linux.AllowAllDevices}} {{json .Config.Network.Type}} {{.Config.PidHost}} {{.Config.IpcHost}} {{len .Config.Mounts}}`)
	if got != `["CAP_SYS_ADMIN"] null false "" false false 1` && got != `["CAP_SYS_ADMIN"] [] false "" false false 1` {
		t.Errorf("the plugin has %s", got)
	}
}

// The plugin is taken away and put back: verbs say what is missing, and nothing is
// lost.
func TestWithoutThePlugin(t *testing.T) {
	seed := mainSeed(t)
	name := prefix + "survivor"
	branch(t, name, seed)
	sql(t, name, "shop", "CREATE TABLE mine AS SELECT 42 AS n")
	pgbranch(t, "stop", name)
	for _, c := range strings.Fields(docker(t, "ps", "-q", "--filter", "label=io.github.pgbranch.branch")) {
		t.Fatalf("container %s runs on the plugin, which this test takes away", c)
	}

	docker(t, "plugin", "disable", "-f", "pgoverlay")
	wants := func(state, want string) {
		for _, args := range [][]string{{"ls"}, {"seed", "ls"}, {"create", prefix + "none", "--from", seed}, {"psql", name}} {
			r := try(args...)
			if r.code != 5 || !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "pgbranch setup") {
				t.Errorf("%s, %q: exit %d, %s", state, args, r.code, r.stderr)
			}
		}
	}
	wants("disabled", "disabled")
	docker(t, "plugin", "rm", "-f", "pgoverlay")
	wants("removed", "not installed")

	t.Log(try("setup").stderr)
	pgbranch(t, "start", name)
	if got := sql(t, name, "shop", "SELECT n FROM mine"); got != "42" {
		t.Errorf("the branch's own data reads %q", got)
	}
	if r := try("setup"); !strings.Contains(r.stderr, "nothing to do") {
		t.Errorf("setup is not done: %s", r.stderr)
	}
}

// The data root may lie on another disk of the engine's host. A plugin that is put
// back over the first data root finds what was there.
func TestSetupElsewhere(t *testing.T) {
	seed := mainSeed(t)
	for line := range strings.Lines(docker(t, "volume", "ls", "-q", "--filter", "driver=pgoverlay:latest")) {
		if name := strings.TrimSpace(line); !strings.HasPrefix(name, prefix) && !strings.HasPrefix(name, "demo") {
			t.Fatalf("the volume %s is not of these tests, and the engine would forget its labels", name)
		}
	}
	elsewhere := t.TempDir()
	remove := func() {
		docker(t, "plugin", "disable", "-f", "pgoverlay")
		docker(t, "plugin", "rm", "-f", "pgoverlay")
	}
	remove()
	t.Cleanup(func() {
		remove()
		pgbranch(t, "setup")
		if seedRef(prefix+"shop") != seed {
			t.Error("the seed of the first data root is not back")
		}
	})
	if r := try("setup", "--data", elsewhere+"/missing"); r.code != 5 || !strings.Contains(r.stderr, "create it") {
		t.Errorf("a folder that is not there: exit %d, %s", r.code, r.stderr)
	}
	if out := docker(t, "plugin", "ls", "--format", "{{.Name}}"); strings.Contains(out, "pgoverlay:") {
		t.Errorf("the refused setup left %s", out)
	}
	pgbranch(t, "setup", "--data", elsewhere)
	if _, err := os.Stat(filepath.Join(elsewhere, "pgoverlay", "store.json")); err != nil {
		t.Error(err)
	}
	if out := pgbranch(t, "seed", "ls", "-q"); out != "" {
		t.Errorf("an empty data root has the seeds %s", out)
	}
}
