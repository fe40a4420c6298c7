//go:build e2e

package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// reachable waits until a container of a branch starts.
func (r *rig) reachable(branch string) {
	r.t.Helper()
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		var out string
		if out, err = r.Try("run", "--rm", "--network", "none", "-v", branch+":/v", "--entrypoint", "cat", testImage, "/v/PG_VERSION"); err == nil {
			assert.Equal(r.t, out, "17")
			return
		}
	}
	r.t.Fatal(err)
}

// TestAPluginThatIsCutOff has the plugin's mounts no longer reach the host. It ends, and
// dockerd starts it again and binds them anew. Where that is no help it stays, and no
// container may start on the bare mountpoint: an image would make a new, empty cluster
// there, in the place of the user's.
func TestAPluginThatIsCutOff(t *testing.T) {
	r := newRig(t)
	branch := r.branch()
	propagated := filepath.Join(r.Root(), "plugins", r.id(), "propagated-mount")
	running := r.serve(r.branch())
	restarts := filepath.Join(propagated, "restarts")
	r.docker("plugin", "disable", "-f", r.Name)
	_ = os.Remove(restarts)
	// The plugin's mount then has no peer but its own on the host, and that goes.
	r.ok(unix.Mount("", r.Root(), "", unix.MS_PRIVATE, ""))
	restored := false
	restore := func() {
		if !restored {
			restored = true
			r.docker("plugin", "disable", "-f", r.Name)
			r.ok(unix.Mount("", r.Root(), "", unix.MS_SHARED, ""))
			r.docker("plugin", "enable", r.Name)
		}
	}
	defer restore()
	r.docker("plugin", "enable", r.Name)
	for range 3 {
		old := r.PID()
		r.ok(unix.Unmount(propagated, unix.MNT_DETACH))
		assert.NilError(t, r.Restarted(old), r.LogTail("dockerd"))
	}
	r.reachable(branch)
	assert.Equal(t, r.query(running, "select count(*) from t"), "50000", "what runs has noticed nothing")

	old := r.PID()
	r.ok(unix.Unmount(propagated, unix.MNT_DETACH))
	for _, args := range [][]string{
		{"run", "--rm", "--network", "none", "-v", branch + ":/v", "--entrypoint", "ls", testImage, "-a", "/v"},
		{"run", "--rm", "--network", "none", "-e", "POSTGRES_PASSWORD=x", "-v", branch + ":/var/lib/postgresql/data", testImage},
	} {
		assert.Check(t, is.Contains(r.fails(args...), "no longer reach the engine's host"))
	}
	assert.Equal(t, r.PID(), old, "it does not end again and again")
	restore()
	r.reachable(branch)
}

// TestDockerdUnmountsLate has dockerd be slow in what it does when the old plugin has
// ended, at its boot after it was killed: it unmounts the propagated mount beside the
// start of the new plugin. That is one call of a busy machine's that comes late; strace
// delays it.
func TestDockerdUnmountsLate(t *testing.T) {
	r := newRig(t)
	branch := r.branch()
	propagated := filepath.Join(r.Root(), "plugins", r.id(), "propagated-mount")
	defer func() { r.Wrap = nil }()
	cutOff := 0
	for _, delay := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second} {
		_ = os.Remove(filepath.Join(propagated, "restarts"))
		before := strings.Count(r.logAll(), "binds them anew")
		r.ok(r.Kill())
		r.Wrap = []string{"strace", "-D", "-f", "-o", filepath.Join(r.Dir, "strace.log"), "-P", propagated, "-e", "trace=umount2",
			"-e", fmt.Sprintf("inject=umount2:delay_enter=%d:when=1", delay.Microseconds())}
		r.ok(r.Boot())
		time.Sleep(delay)
		r.reachable(branch)
		n := strings.Count(r.logAll(), "binds them anew") - before
		t.Logf("unmounted %v late: the plugin was cut off %d times", delay, n)
		cutOff += n
		r.Wrap = nil
		r.restart(false)
	}
	assert.Check(t, cutOff > 0, "dockerd unmounts nothing late by now: say so in docs/how-it-works.md")
}
