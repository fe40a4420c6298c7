//go:build e2e

package faults

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// TestDockerdBootsOnADiskThatTakesNothing has the data root on a disk that is full of
// bytes, or of files, or read-only, when dockerd boots: it comes up, the volumes are
// there, and a create says what is wrong. Where dockerd's own root is on that disk,
// too, dockerd ends at once, with or without the plugin: it makes a folder there.
func TestDockerdBootsOnADiskThatTakesNothing(t *testing.T) {
	seeds, branch := newRig(t), fresh("b")
	e, err := New()
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, e.Close()) })
	r := &rig{t: t}
	r.Plugin = &Plugin{Engine: e, Name: "pgoverlay", Data: filepath.Join(e.Dir, "data")}
	image := filepath.Join(e.Dir, "disk")
	r.ok(os.WriteFile(image, nil, 0o600))
	r.ok(os.Truncate(image, 192<<20))
	r.ok(os.Mkdir(r.Data, 0o700))
	r.shell("mkfs.ext4 -q -F -m 0 -N 6000 $0 && mount -o loop $0 $1", image, r.Data)
	r.ok(e.Boot())
	build := filepath.Join(shared.Dir, "build")
	_, err = e.InstallPlugin(r.Name, build, r.Data)
	r.ok(err)
	r.ok(r.pin())
	staging, ticket := fresh("s"), fresh("tk")
	r.create(staging, "staging="+seedName)
	r.fill(staging)
	r.create(ticket, "op=seal", "volume="+staging)
	r.docker("volume", "rm", "-f", ticket, staging)
	r.create(branch, "seed="+seedName)
	seeds.check()

	for _, c := range []struct{ name, induce, end, want string }{
		{"no block is free", `fallocate -l $(df --output=avail -B1 $0 | tail -1) $0/fill || true; dd if=/dev/zero of=$0/fill2 bs=4k 2>/dev/null || true`, "rm -f $0/fill*", "no space left on device"},
		{"no inode is free", `mkdir $0/many && seq -f $0/many/%.0f 9000 | xargs touch 2>/dev/null; df --output=iavail $0 | grep -qw 0`, "rm -rf $0/many", "no space left on device"},
		{"the data root is read-only", "mount -o remount,ro $0", "mount -o remount,rw $0", "read-only file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &rig{t: t, Plugin: r.Plugin}
			r.ok(r.Stop())
			r.shell(c.induce, r.Data)
			t.Logf("the plugin listens after %v", r.listensAfter(build))
			begin := time.Now()
			r.ok(r.Boot())
			t.Logf("dockerd answers after %v", time.Since(begin).Round(time.Millisecond))
			volumes := strings.Join(r.Volumes(), " ")
			assert.Check(t, is.Contains(volumes, branch))
			assert.Check(t, is.Contains(volumes, sealed))
			assert.Equal(t, r.status(branch).Seed, seedName)
			said := r.fails(createArgs(fresh("b"), "seed="+seedName)...)
			t.Log(said)
			assert.Check(t, is.Contains(said, c.want))
			assert.Equal(t, len(r.Volumes()), 2, "nothing half-made is listed")
			r.shell(c.end, r.Data)
			if strings.Contains(c.end, "remount") {
				// The plugin's mount was made read-only with the disk's, and stays so.
				r.docker("plugin", "disable", "-f", r.Name)
				r.docker("plugin", "enable", r.Name)
			}
			made := fresh("b")
			r.create(made, "seed="+seedName)
			r.docker("volume", "rm", made)
		})
	}
	r.docker("volume", "rm", branch)
}

// shell runs a script with arguments from $0 on.
func (r *rig) shell(script string, args ...string) {
	r.t.Helper()
	out, err := exec.Command("sh", append([]string{"-c", script}, args...)...).CombinedOutput()
	assert.NilError(r.t, err, "%s: %s", script, out)
}

// listensAfter starts the plugin's program on the data root, without dockerd, and gives
// how long it takes to listen. dockerd waits half a second before it looks.
func (r *rig) listensAfter(build string) (least time.Duration) {
	r.t.Helper()
	least = time.Hour
	// The fastest of three: what else the machine does can only add.
	for range 3 {
		dir := r.t.TempDir()
		socket := filepath.Join(dir, "s")
		serve := exec.Command("unshare", "--mount", filepath.Join(build, "rootfs/pgoverlay"), "serve",
			"-data", r.Store(), "-mounts", filepath.Join(dir, "mnt"), "-socket", socket)
		begin := time.Now()
		r.ok(serve.Start())
		for {
			conn, err := net.Dial("unix", socket)
			if err == nil {
				r.ok(conn.Close())
				break
			}
			assert.Assert(r.t, time.Since(begin) < 10*time.Second, err)
			time.Sleep(time.Millisecond)
		}
		least = min(least, time.Since(begin))
		r.ok(serve.Process.Signal(syscall.SIGTERM))
		r.ok(serve.Wait())
	}
	assert.Check(r.t, least < 500*time.Millisecond, "%v", least)
	return least
}
