//go:build e2e

package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// onDisk gives a rig of a plugin of its own, with its data root on a small disk of its
// own, and a seed named as the test is.
func onDisk(t *testing.T, bytes int64, mkfs ...string) *rig {
	t.Helper()
	r := &rig{t: t, run: newRig(t).run}
	image, at := filepath.Join(shared.Dir, fresh("disk")), filepath.Join(shared.Dir, fresh("at"))
	r.ok(os.WriteFile(image, nil, 0o600))
	r.ok(os.Truncate(image, bytes))
	r.ok(os.Mkdir(at, 0o755))
	for _, args := range [][]string{append(append([]string{"mkfs.ext4", "-q", "-F", "-m", "0"}, mkfs...), image), {"mount", "-o", "loop", image, at}} {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		assert.NilError(t, err, "%v: %s", args, out)
	}
	t.Cleanup(func() {
		out, err := exec.Command("umount", at).CombinedOutput()
		assert.Check(t, err, "%s", out)
		assert.Check(t, os.Remove(image))
	})
	// dockerd stores a plugin by its content, and refuses the same one twice.
	name, build := fresh("disk"), at+".build"
	out, err := exec.Command("cp", "-a", filepath.Join(shared.Dir, "build"), build).CombinedOutput()
	assert.NilError(t, err, "%s", out)
	r.ok(os.WriteFile(filepath.Join(build, "rootfs", name), nil, 0o600))
	r.Plugin, err = shared.InstallPlugin(name, build, at)
	r.ok(err)
	t.Cleanup(func() { assert.Check(t, r.Remove()) })
	return r
}

// TestAFullDisk fills the disk of the data root from one branch.
func TestAFullDisk(t *testing.T) {
	r := onDisk(t, 224<<20)
	seed := fresh("full")
	r.ok(makeSeed(r.Plugin, seed))
	sealed, err := filepath.Glob(r.Store("seeds/*/root"))
	r.ok(err)
	sum := sumOf(sealed[0])
	create := func(name string, opts ...string) string {
		t.Helper()
		r.docker(append([]string{"volume", "create", "-d", r.Name}, createArgs(name, opts...)[4:]...)...)
		return name
	}
	writer, sibling, victim := create(fresh("b"), "seed="+seed), create(fresh("b"), "seed="+seed), create(fresh("b"), "seed="+seed)
	staging := create(fresh("s"), "staging="+fresh("other"))
	seeding := r.hold(staging)
	r.docker("exec", seeding, "sh", "-c", "head -c 3000000 /dev/urandom >/v/half; sync; md5sum /v/half >/tmp/sum")
	r.docker("run", "--rm", "--network", "none", "-v", victim+":/v", "--entrypoint", "sh", testImage, "-c", "head -c 30000000 /dev/zero >/v/ballast")
	busy, calm := r.serve(writer), r.serve(sibling)
	r.query(calm, "update t set v = 'calm' where id = 7; checkpoint")

	_, err = r.Try("exec", busy, "psql", "-U", "postgres", "-Atc", "create table fill as select g, repeat(md5(g::text), 30) from generate_series(1, 1000000) g")
	assert.Check(t, is.ErrorContains(err, "No space left on device"), "Postgres' own error")
	t.Log(err)
	// Whatever Postgres gave back goes, too, to the last block.
	r.docker("run", "--rm", "--network", "none", "-v", writer+":/v", "--entrypoint", "sh", testImage, "-c",
		"dd if=/dev/zero of=/v/last bs=1M 2>/dev/null; dd if=/dev/zero of=/v/last2 bs=512 2>/dev/null; sync; true")

	// The sibling is on the same full disk: it reads on until it must write, too, and then
	// ends as any server does. What it has committed is looked for below.
	_, err = r.Try("exec", calm, "psql", "-U", "postgres", "-Atc", "select count(*) from t")
	t.Log("the sibling on a full disk:", err)
	r.docker("exec", seeding, "md5sum", "-c", "/tmp/sum")
	_, err = r.Try("volume", "create", "-d", r.Name, "-o", "seed="+seed, fresh("b"))
	t.Log("create on a full disk:", err)
	if err != nil {
		assert.Check(t, is.ErrorContains(err, "no space left on device"))
	}

	// Removing a branch is what makes room again.
	r.docker("volume", "rm", victim)
	r.docker("run", "--rm", "--network", "none", "-v", writer+":/v", "--entrypoint", "rm", testImage, "-f", "/v/last", "/v/last2")
	for deadline := time.Now().Add(20 * time.Second); r.free() < 20<<20; time.Sleep(50 * time.Millisecond) {
		assert.Assert(t, time.Now().Before(deadline), "no room comes back")
	}
	if r.docker("inspect", "-f", "{{.State.Running}}", busy) != "true" {
		t.Log("the server had ended:", r.docker("logs", "--tail", "3", busy))
	}
	r.docker("restart", busy)
	r.ready(busy)
	assert.Equal(t, r.query(busy, "select count(*) from t"), "50000")
	r.query(busy, "update t set v = 'again' where id = 7")
	r.docker("restart", calm)
	r.ready(calm)
	assert.Equal(t, r.query(calm, "select v from t where id = 7"), "calm")
	r.docker("exec", seeding, "md5sum", "-c", "/tmp/sum")
	assert.Equal(t, sumOf(sealed[0]), sum, "the sealed tree is what it was")
}

// free is the room on the disk of the data root, in bytes.
func (r *rig) free() int64 {
	r.t.Helper()
	out, err := exec.Command("df", "--output=avail", "-B1", r.Data).Output()
	r.ok(err)
	return int64(atoi(r.t, strings.Fields(string(out))[1]))
}
