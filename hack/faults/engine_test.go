//go:build e2e

package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// TestDockerdIsKilled has dockerd end with SIGKILL under a server on a branch, once
// without and once with live-restore. It comes back with the branch as it was.
func TestDockerdIsKilled(t *testing.T) {
	r := newRig(t)
	branch := r.branch()
	other := r.branch()
	container := r.serve(branch, "--restart", "always")
	gone := r.hold(other)
	r.query(container, "update t set v = 'x' where id = 7")

	r.ok(r.Kill())
	r.ok(r.Boot())
	r.ready(container)
	assert.Equal(t, r.query(container, "select v from t where id = 7"), "x")
	// The other container was ended at the boot, and dockerd sent no Unmount for it.
	assert.Check(t, is.Contains(r.fails("volume", "rm", other), "in use"), "docker knows the container")
	r.create(fresh("tk"), "op=reset", "volume="+other)
	r.docker("rm", "-f", gone)
	r.docker("volume", "rm", other)
	r.check()

	r.restart(true)
	r.ready(container)
	other = r.branch()
	gone = r.hold(other)
	running := r.docker("inspect", "-f", "{{.State.Pid}}", container)
	plugin := r.PID()
	pid := r.docker("inspect", "-f", "{{.State.Pid}}", gone)
	r.ok(r.Kill())
	// A container that ends while dockerd is down leaves a Mount that nobody takes back.
	r.ok(syscall.Kill(atoi(t, pid), syscall.SIGKILL))
	r.ok(r.Boot())
	assert.Equal(t, r.docker("inspect", "-f", "{{.State.Pid}}", container), running, "the server has outlived dockerd")
	assert.Equal(t, r.PID(), plugin, "and so has the plugin")
	assert.Equal(t, r.query(container, "select v from t where id = 7"), "x")
	assert.Equal(t, r.Refs()[other], 1, "the count has leaked, which this test is about")
	r.create(fresh("tk"), "op=reset", "volume="+other)
	r.docker("start", gone)
	r.docker("rm", "-f", gone)
	r.docker("volume", "rm", other)

	// C28: prune and rm in all forms leave what runs.
	r.docker("volume", "prune", "-a", "-f")
	r.fails("volume", "rm", "-f", branch)
	assert.Equal(t, r.query(container, "select v from t where id = 7"), "x")
	r.docker("rm", "-f", container)
	r.restart(false)
	r.check()
}

// restart starts dockerd anew, with or without live-restore.
func (r *rig) restart(liveRestore bool) {
	r.t.Helper()
	r.ok(r.Stop())
	r.LiveRestore = liveRestore
	r.ok(r.Boot())
}

// TestAPluginThatHangs is stopped, and dockerd with everything else goes on.
func TestAPluginThatHangs(t *testing.T) {
	r := newRig(t)
	branch := r.branch()
	container := r.hold(branch)
	stranger := fresh("c")
	r.docker("run", "-d", "--init", "--name", stranger, "--network", "none", "--entrypoint", "sleep", testImage, "1000")

	pid := r.PID()
	r.ok(syscall.Kill(pid, syscall.SIGSTOP))
	// A failure below must not stop the tests that follow.
	t.Cleanup(func() { _ = syscall.Kill(r.PID(), syscall.SIGCONT) })
	start := time.Now()
	r.docker("ps")
	r.docker("exec", container, "test", "-f", "/v/PG_VERSION")
	r.docker("rm", "-f", stranger)
	assert.Check(t, time.Since(start) < 30*time.Second, "what needs no plugin waits for none: %v", time.Since(start))
	// A request that comes meanwhile is served when the plugin goes on.
	made := make(chan error)
	go func() {
		_, err := r.Try(createArgs(fresh("b"), "seed="+seedName)...)
		made <- err
	}()
	select {
	case err := <-made:
		t.Errorf("a plugin that hangs has answered: %v", err)
	case <-time.After(time.Second):
	}
	r.ok(syscall.Kill(pid, syscall.SIGCONT))
	r.ok(<-made)
	assert.Equal(t, len(r.Volumes()), 3)
	r.check()

	// dockerd has a SIGSTOPped plugin ended when it is disabled by force.
	r.ok(syscall.Kill(r.PID(), syscall.SIGSTOP))
	r.docker("plugin", "disable", "-f", r.Name)
	r.docker("exec", container, "test", "-f", "/v/PG_VERSION")
	r.docker("plugin", "enable", r.Name)
	r.docker("restart", "-t", "0", container)
	r.check()
}

// TestASlowPluginIsRolledBack has a client give up while the plugin works: dockerd ends
// the request, and sends nothing to undo it.
func TestASlowPluginIsRolledBack(t *testing.T) {
	r := newRig(t)
	// dockerd gives a plugin as long as `enable --timeout` says; the default is 30 s.
	r.docker("plugin", "disable", "-f", r.Name)
	r.docker("plugin", "enable", "--timeout", "2", r.Name)
	defer func() {
		r.docker("plugin", "disable", "-f", r.Name)
		r.docker("plugin", "enable", r.Name)
	}()
	branch := r.branch()
	for _, args := range [][]string{
		createArgs(fresh("b"), "seed="+seedName),
		createArgs(fresh("s"), "staging="+fresh("other")),
		r.holdArgs(fresh("c"), branch),
		createArgs(fresh("b"), "branch="+branch),
		createArgs(fresh("tk"), "op=reset", "volume="+branch),
	} {
		before := len(r.Volumes())
		r.ok(r.Order(1, "sleep 3s"))
		// dockerd sends it again after its own timeout, as after a crash, without content.
		assert.Check(t, is.Contains(r.fails(args...), "please retry"), "%v", args)
		assert.Check(t, r.Hit() != "")
		time.Sleep(2 * time.Second)
		assert.Equal(t, len(r.Volumes()), before, "%v", args)
		r.check()
		for _, id := range strings.Fields(r.docker("ps", "-aq")) {
			r.docker("rm", "-f", id)
		}
	}
	r.check()
}

// TestThePluginIsKilled under a server.
func TestThePluginIsKilled(t *testing.T) {
	r := newRig(t)
	branch := r.branch()
	container := r.serve(branch)
	old := r.PID()
	r.ok(r.Signal(syscall.SIGKILL))
	r.ok(r.Restarted(old))
	assert.Check(t, r.status(branch).Mounted, "the count survives")
	assert.Equal(t, r.Refs()[branch], 1)
	assert.Equal(t, r.query(container, "update t set v = 'x' where id = 7; select count(*) from t"), "UPDATE 1\n50000")
	r.check()
	r.docker("restart", container)
	r.ready(container)
	assert.Equal(t, r.Refs()[branch], 1)
	assert.Equal(t, r.query(container, "select v from t where id = 7"), "x")
}

// TestDockerdComesUp whatever has become of the store: an engine that does not start is
// worse than any volume that is not there.
func TestDockerdComesUp(t *testing.T) {
	r := newRig(t)
	branch := r.branch()
	r.docker("volume", "create", "-d", r.Name, "--label", "kept=yes", "-o", "seed="+seedName, "labelled")
	store := r.Store("store.json")
	good, err := os.ReadFile(store)
	r.ok(err)
	var meta map[string]any
	r.ok(json.Unmarshal(good, &meta))
	meta["format"] = 99
	newer, err := json.Marshal(meta)
	r.ok(err)

	for name, content := range map[string]string{"garbage": "\x00{", "empty": "", "newer": string(newer)} {
		t.Run("store.json is "+name, func(t *testing.T) {
			r.ok(r.Stop())
			r.ok(os.WriteFile(store, []byte(content), 0o600))
			r.ok(r.Boot())
			assert.Check(t, is.Contains(r.fails("volume", "inspect", branch), "disabled"))
			r.docker("run", "--rm", "--network", "none", "--entrypoint", "true", testImage)
			if name == "newer" {
				log := r.LogTail("dockerd") + r.logAll()
				assert.Check(t, is.Contains(log, "has format 99, and this plugin knows up to"))
			}
			r.ok(os.WriteFile(store, good, 0o600))
			r.docker("plugin", "enable", r.Name)
			assert.Equal(t, r.docker("volume", "inspect", "-f", "{{.Labels.kept}}", "labelled"), "yes")
		})
	}
	t.Run("one branch's metadata is damaged", func(t *testing.T) {
		file := r.Store("branches", r.idsByName()["labelled"], "meta.json")
		kept, err := os.ReadFile(file)
		r.ok(err)
		r.ok(r.Stop())
		r.ok(os.WriteFile(file, kept[:len(kept)/2], 0o600))
		r.ok(r.Boot())
		s := r.status("labelled")
		assert.Check(t, s.Damaged && strings.Contains(s.LastError, "damaged"), "%+v", s)
		assert.Check(t, is.Contains(r.fails("run", "--rm", "--network", "none", "-v", "labelled:/x", "--entrypoint", "true", testImage), "cannot be used"))
		r.ok(r.Stop())
		r.ok(os.WriteFile(file, kept, 0o600))
		r.ok(r.Boot())
		assert.Equal(t, r.docker("volume", "inspect", "-f", "{{.Labels.kept}}", "labelled"), "yes", "docker has forgotten nothing")
		r.docker("run", "--rm", "--network", "none", "-v", "labelled:/x", "--entrypoint", "true", testImage)
	})
	t.Run("the source of the data mount is gone", func(t *testing.T) {
		// dockerd panics at such a boot (facts of moby: plugin/manager_linux.go leaves the
		// plugin enabled without a client). The two ways out are those of the documentation.
		r.ok(r.Stop())
		r.ok(os.Rename(r.Data, r.Data+".away"))
		assert.Check(t, r.Boot() != nil, "dockerd starts by now: say so in docs/recovery.md")
		r.ok(os.Mkdir(r.Data, 0o700))
		r.ok(r.Boot())
		assert.Check(t, is.Contains(r.fails("volume", "inspect", branch), "disabled"), "the store's id keeps an empty folder off")
		r.ok(os.Remove(r.Data))
		r.ok(os.Rename(r.Data+".away", r.Data))
		r.docker("plugin", "enable", r.Name)
		assert.Equal(t, r.docker("volume", "inspect", "-f", "{{.Labels.kept}}", "labelled"), "yes")

		r.ok(r.Stop())
		r.ok(os.Rename(r.Data, r.Data+".away"))
		config := filepath.Join(r.Root(), "plugins", r.id(), "config.json")
		data, err := os.ReadFile(config)
		r.ok(err)
		r.ok(os.WriteFile(config, []byte(strings.Replace(string(data), `"Enabled":true`, `"Enabled":false`, 1)), 0o600))
		r.ok(r.Boot())
		r.ok(os.Rename(r.Data+".away", r.Data))
		r.docker("plugin", "enable", r.Name)
		assert.Equal(t, r.docker("volume", "inspect", "-f", "{{.Labels.kept}}", "labelled"), "yes")
	})
}

func (r *rig) logAll() string {
	data, _ := os.ReadFile(r.LogFile("dockerd"))
	return string(data)
}

func atoi(t *testing.T, s string) (n int) {
	t.Helper()
	_, err := fmt.Sscan(s, &n)
	assert.NilError(t, err)
	return n
}
