package volumedriver

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func TestSeal(t *testing.T) {
	b := newBench(t)
	tree := b.stage("s1", "shop", nil)
	before, err := os.ReadFile(filepath.Join(tree, contract.StagingManifest))
	assert.NilError(t, err)
	assert.NilError(t, os.MkdirAll(filepath.Join(tree, rootDir, contract.RuntimeDir, "x"), 0o755))
	_, err = b.d.Mount(t.Context(), "s1", "id")
	assert.NilError(t, err)
	assert.Check(t, is.ErrorContains(b.create("tk", "op", "seal", "volume", "s1"), "a container is still using it"))
	b.d.Unmount(t.Context(), "s1", "id")
	b.mustCreate("tk", "op", "seal", "volume", "s1")
	assert.Equal(t, b.status("tk").SealedAs, "shop@1")
	b.absent("s1")

	s := b.status("shop@1")
	assert.Equal(t, s.Kind, contract.KindSeed)
	assert.Equal(t, s.Manifest.User, "app")
	assert.Check(t, s.OwnedBytes > 0)
	dir := b.path(b.volume("shop@1").dir())
	_, err = os.Lstat(filepath.Join(dir, rootDir, contract.RuntimeDir))
	assert.Check(t, os.IsNotExist(err), "the runtime layer must not be hidden")
	after, err := os.ReadFile(filepath.Join(dir, manifestFile))
	assert.NilError(t, err)
	assert.Equal(t, string(after), string(before), "the manifest stays as the agent wrote it")
	// A seal that dockerd sends again.
	b.mustCreate("t2", "op", "seal", "volume", "s1")
	assert.Equal(t, b.status("t2").SealedAs, "shop@1")
	b.restart()
	b.mustCreate("t3", "op", "seal", "volume", "s1")
	assert.Equal(t, b.status("t3").SealedAs, "shop@1")
	assert.Equal(t, b.seal("shop"), "shop@2")
}

func TestSealRefuses(t *testing.T) {
	control := func(state uint32, id uint64) []byte {
		c := make([]byte, 8192)
		binary.NativeEndian.PutUint64(c, id)
		binary.NativeEndian.PutUint32(c[16:], state)
		return c
	}
	write := func(name string, data []byte) func(*testing.T, string) {
		return func(t *testing.T, tree string) {
			assert.NilError(t, os.WriteFile(filepath.Join(tree, name), data, 0o600))
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, tree string) { assert.NilError(t, os.RemoveAll(filepath.Join(tree, name))) }
	}
	manifest := func(edit func(*contract.Manifest)) func(*testing.T, string) {
		return func(t *testing.T, tree string) {
			m := testManifest()
			edit(&m)
			writeManifest(t, tree, m)
		}
	}
	link := func(name, to string) func(*testing.T, string) {
		return func(t *testing.T, tree string) {
			assert.NilError(t, os.RemoveAll(filepath.Join(tree, name)))
			assert.NilError(t, os.Symlink(to, filepath.Join(tree, name)))
		}
	}
	fifo := func(name string) func(*testing.T, string) {
		return func(t *testing.T, tree string) {
			assert.NilError(t, os.RemoveAll(filepath.Join(tree, name)))
			assert.NilError(t, unix.Mkfifo(filepath.Join(tree, name), 0o600))
		}
	}
	for name, c := range map[string]struct {
		spoil func(*testing.T, string)
		want  string
	}{
		"no manifest":        {remove("manifest.json"), "no usable manifest.json"},
		"no JSON":            {write("manifest.json", []byte("{")), "no JSON that makes sense"},
		"linked manifest":    {link("manifest.json", "/etc/passwd"), "no usable manifest.json"},
		"FIFO manifest":      {fifo("manifest.json"), "is no regular file"},
		"huge manifest":      {func(t *testing.T, tree string) { assert.NilError(t, os.Truncate(tree+"/manifest.json", 1<<30)) }, "has more than"},
		"newer format":       {manifest(func(m *contract.Manifest) { m.Format = 2 }), "has format 2"},
		"no format":          {manifest(func(m *contract.Manifest) { m.Format = 0 }), "has no format"},
		"no major":           {manifest(func(m *contract.Manifest) { m.Major = 0 }), "no major"},
		"absolute dataDir":   {manifest(func(m *contract.Manifest) { m.DataDir = "/etc" }), "no clean relative path"},
		"dataDir outside":    {manifest(func(m *contract.Manifest) { m.DataDir = "../root" }), "no clean relative path"},
		"empty dataDir":      {manifest(func(m *contract.Manifest) { m.DataDir = "" }), "no clean relative path"},
		"relative mountPath": {manifest(func(m *contract.Manifest) { m.MountPath = "data" }), "no absolute path"},
		"walHead outside":    {manifest(func(m *contract.Manifest) { m.WALHead = "pg_wal/../../x" }), "no file in pg_wal"},
		"walHead elsewhere":  {manifest(func(m *contract.Manifest) { m.WALHead = "base/1" }), "no file in pg_wal"},
		"walHead missing":    {remove("root/" + testWALHead), "its walHead is missing"},
		"other uid":          {manifest(func(m *contract.Manifest) { m.UID++ }), "and the manifest says"},
		"negative uid":       {manifest(func(m *contract.Manifest) { m.UID = -1 }), "are no owner"},
		"open mode":          {func(t *testing.T, tree string) { assert.NilError(t, os.Chmod(tree+"/root", 0o755)) }, "which Postgres refuses"},
		"no root":            {remove("root"), "no folder root"},
		"linked root":        {link("root", "/"), "no folder root"},
		"other major":        {write("root/PG_VERSION", []byte("16\n")), `of major "16"`},
		"no version":         {remove("root/PG_VERSION"), "it holds no cluster"},
		"linked version":     {link("root/PG_VERSION", "/etc/hostname"), "it holds no cluster"},
		"FIFO version":       {fifo("root/PG_VERSION"), "it holds no cluster"},
		"backup_label":       {write("root/backup_label", nil), "backup_label"},
		"postmaster.pid":     {write("root/postmaster.pid", nil), "postmaster.pid"},
		"standby.signal":     {write("root/standby.signal", nil), "standby.signal"},
		"recovery.signal":    {write("root/recovery.signal", nil), "recovery.signal"},
		"in production":      {write("root/global/pg_control", control(6, testSystemID)), "not shut down cleanly"},
		"shut down in rec.":  {write("root/global/pg_control", control(2, testSystemID)), "not shut down cleanly"},
		"other system":       {write("root/global/pg_control", control(1, 5)), "system identifier is 5"},
		"short control":      {write("root/global/pg_control", []byte("x")), "has 1 bytes"},
		"linked global":      {link("root/global", "/etc"), "no control file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			tree := b.stage("s1", "shop", nil)
			c.spoil(t, tree)
			begin := time.Now()
			err := b.create("tk", "op", "seal", "volume", "s1")
			assert.Check(t, is.ErrorContains(err, c.want))
			assert.Check(t, is.ErrorContains(err, `staging "s1": cannot be sealed`))
			assert.Check(t, time.Since(begin) < 5*time.Second)
			assert.DeepEqual(t, b.names(), []string{"s1"})
			assert.Equal(t, len(b.d.store.list(seedsDir)), 0)
			// Mended, it can be sealed.
			assert.NilError(t, os.RemoveAll(tree))
			assert.NilError(t, os.MkdirAll(filepath.Join(tree, rootDir), 0o700))
			fillCluster(t, tree, nil)
			assert.Equal(t, b.sealStaging("s1"), "shop@1")
		})
	}
}

// TestHostileSeed has a seed whose names point outside; nothing may be read, written
// or owned through them.
func TestHostileSeed(t *testing.T) {
	b := newBench(t)
	outside := filepath.Join(b.dir, "outside")
	assert.NilError(t, os.MkdirAll(outside, 0o755))
	secret := filepath.Join(outside, "000000010000000000000004")
	assert.NilError(t, os.WriteFile(secret, []byte("secret"), 0o644))
	t.Run("WAL head through a linked folder", func(t *testing.T) {
		tree := b.stage("s1", "hostile1", nil)
		assert.NilError(t, os.RemoveAll(filepath.Join(tree, "root/pg_wal")))
		assert.NilError(t, os.Symlink(outside, filepath.Join(tree, "root/pg_wal")))
		assert.Check(t, is.ErrorContains(b.create("tk", "op", "seal", "volume", "s1"), "its walHead is missing"))
	})
	t.Run("changed after the seal", func(t *testing.T) {
		assert.Equal(t, b.seal("hostile2"), "hostile2@1")
		root := b.path(b.volume("hostile2@1").dir(), rootDir)
		assert.NilError(t, os.RemoveAll(filepath.Join(root, "pg_wal")))
		assert.NilError(t, os.Symlink(outside, filepath.Join(root, "pg_wal")))
		assert.Check(t, b.create("b1", "seed", "hostile2") != nil)
		b.absent("b1")
		assert.Equal(t, len(b.d.store.list(branchesDir)), 0, "no half-made branch is left")
	})
	t.Run("removal and usage follow no link", func(t *testing.T) {
		tree := b.stage("s3", "hostile3", nil)
		assert.NilError(t, os.Symlink(outside, filepath.Join(tree, "root/base/link")))
		assert.NilError(t, os.Symlink("..", filepath.Join(tree, "root/base/up")))
		assert.NilError(t, unix.Mkfifo(filepath.Join(tree, "root/base/fifo"), 0o600))
		assert.Equal(t, b.sealStaging("s3"), "hostile3@1")
		assert.Check(t, b.status("hostile3@1").OwnedBytes < 1<<20)
		assert.NilError(t, b.d.Remove(t.Context(), "hostile3@1"))
		b.emptyTrash()
	})
	data, err := os.ReadFile(secret)
	assert.NilError(t, err)
	assert.Equal(t, string(data), "secret")
}
