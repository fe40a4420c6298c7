package volumedriver

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func blocks(t *testing.T, name string) int64 {
	t.Helper()
	info, err := os.Lstat(name)
	assert.NilError(t, err)
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// TestWALHead checks the copy of the WAL head in a new upper, for both layouts of the
// stock image.
func TestWALHead(t *testing.T) {
	for _, dataDir := range []string{".", "18/docker"} {
		t.Run(dataDir, func(t *testing.T) {
			b := newBench(t)
			tree := b.stage("s1", "shop", func(m *contract.Manifest) {
				m.DataDir, m.MountPath = dataDir, "/var/lib/postgresql"
				if dataDir != "." {
					m.Major = 18
				}
			})
			old := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
			data := filepath.Join(tree, rootDir, dataDir)
			assert.NilError(t, os.Chtimes(filepath.Join(data, testWALHead), old, old))
			assert.NilError(t, os.Chmod(filepath.Join(data, testWALHead), 0o640))
			assert.NilError(t, os.Chmod(filepath.Join(data, "pg_wal"), 0o750))
			b.sealStaging("s1")
			b.mustCreate("b1", "seed", "shop")

			upper := b.path(b.volume("b1").tree())
			lower := b.path(b.volume("shop@1").dir(), rootDir)
			head := filepath.Join(dataDir, testWALHead)
			want, err := os.ReadFile(filepath.Join(lower, head))
			assert.NilError(t, err)
			got, err := os.ReadFile(filepath.Join(upper, head))
			assert.NilError(t, err)
			assert.Check(t, bytes.Equal(got, want))
			assert.Check(t, blocks(t, filepath.Join(upper, head)) <= 16<<10, "the holes are kept")
			for _, name := range []string{".", dataDir, filepath.Join(dataDir, "pg_wal"), head} {
				l, err := os.Lstat(filepath.Join(lower, name))
				assert.NilError(t, err)
				u, err := os.Lstat(filepath.Join(upper, name))
				assert.NilError(t, err)
				assert.Equal(t, u.Mode(), l.Mode(), name)
				assert.Equal(t, u.Sys().(*syscall.Stat_t).Uid, l.Sys().(*syscall.Stat_t).Uid, name)
				if !l.IsDir() {
					assert.Check(t, u.ModTime().Equal(old), name)
				}
			}
		})
	}
}

// TestWALHeadOfZeros has a segment that is allocated in full, as a server leaves it.
func TestWALHeadOfZeros(t *testing.T) {
	b := newBench(t)
	tree := b.stage("s1", "shop", nil)
	segment := make([]byte, testWALBytes)
	copy(segment[100:], "a record")
	assert.NilError(t, os.WriteFile(filepath.Join(tree, rootDir, testWALHead), segment, 0o600))
	b.sealStaging("s1")
	b.mustCreate("b1", "seed", "shop")
	copied := filepath.Join(b.path(b.volume("b1").tree()), testWALHead)
	got, err := os.ReadFile(copied)
	assert.NilError(t, err)
	assert.Check(t, bytes.Equal(got, segment))
	assert.Check(t, blocks(t, copied) <= copyBlock)
}

// TestWALHeadTooFull has a segment that is full: the kernel copies it when needed.
func TestWALHeadTooFull(t *testing.T) {
	b := newBench(t)
	tree := b.stage("s1", "shop", nil)
	assert.NilError(t, os.WriteFile(filepath.Join(tree, rootDir, testWALHead), bytes.Repeat([]byte("x"), testWALBytes), 0o600))
	b.sealStaging("s1")
	b.mustCreate("b1", "seed", "shop")
	_, err := os.Lstat(filepath.Join(b.path(b.volume("b1").tree()), testWALHead))
	assert.Check(t, os.IsNotExist(err))
	assert.Check(t, b.status("b1").OwnedBytes <= 64<<10)
}

func ownedIn(root *os.Root, tree string) (bytes int64, err error) {
	err = eachOwned(root, grounds{own: []string{tree}}, func(_ string, owned int64) { bytes += owned })
	return bytes, err
}

func TestSpans(t *testing.T) {
	for name, c := range map[string]struct{ spans, others, want []span }{
		"apart":           {[]span{{0, 4, "a"}, {4, 8, "b"}}, nil, nil},
		"two":             {[]span{{2, 6, "b"}, {0, 4, "a"}}, nil, []span{{2, 4, "b"}}},
		"three":           {[]span{{0, 9, "a"}, {0, 9, "b"}, {0, 9, "c"}}, nil, []span{{0, 9, "b"}}},
		"three, stepped":  {[]span{{0, 6, "a"}, {2, 8, "b"}, {4, 9, "c"}}, nil, []span{{2, 6, "b"}, {6, 8, "c"}}},
		"one within":      {[]span{{0, 9, "a"}, {2, 4, "b"}, {5, 6, "c"}}, nil, []span{{2, 4, "b"}, {5, 6, "c"}}},
		"all below":       {[]span{{0, 9, "a"}, {0, 9, "b"}}, []span{{5, 9, ""}, {0, 5, ""}}, nil},
		"some below":      {[]span{{0, 9, "a"}, {0, 9, "b"}}, []span{{7, 12, ""}, {2, 3, ""}}, []span{{0, 2, "b"}, {3, 7, "b"}}},
		"others overlap":  {[]span{{0, 9, "a"}, {0, 9, "b"}}, []span{{1, 5, ""}, {2, 3, ""}}, []span{{0, 1, "b"}, {5, 9, "b"}}},
		"below elsewhere": {[]span{{4, 9, "a"}, {4, 9, "b"}}, []span{{0, 4, ""}, {9, 12, ""}}, []span{{4, 9, "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := without(coveredTwice(c.spans), c.others)
			assert.Assert(t, slices.Equal(got, c.want), "%v", got)
		})
	}
}

func TestOwnedBytesCountsHardLinksOnce(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	v := b.volume("b1")
	before, err := ownedIn(b.d.store.root, v.tree())
	assert.NilError(t, err)
	file := filepath.Join(b.path(v.tree()), "base-file")
	assert.NilError(t, os.WriteFile(file, bytes.Repeat([]byte("x"), 1<<20), 0o600))
	assert.NilError(t, os.Link(file, file+"2"))
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	assert.NilError(t, err)
	assert.NilError(t, f.Sync())
	assert.NilError(t, f.Truncate(1<<30))
	assert.NilError(t, f.Close())
	after, err := ownedIn(b.d.store.root, v.tree())
	assert.NilError(t, err)
	assert.Equal(t, after-before, int64(1<<20))
}

func TestBranchOfBranch(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	upper := b.path(b.volume("b1").tree())
	assert.NilError(t, os.WriteFile(filepath.Join(upper, "one"), []byte("1"), 0o600))
	assert.NilError(t, os.MkdirAll(filepath.Join(upper, contract.RuntimeDir), 0o755))
	_, err := b.d.Mount(t.Context(), "b1", "leaked")
	assert.NilError(t, err)
	b.m.setHeld(upper, true)
	assert.Check(t, is.ErrorContains(b.create("b2", "branch", "b1"), "only of one at rest"))
	b.absent("b2")
	b.m.setHeld(upper, false)
	b.mustCreate("b2", "branch", "b1")
	b.mustCreate("b2", "branch", "b1")
	assert.NilError(t, os.WriteFile(filepath.Join(b.path(b.volume("b2").tree()), "two"), []byte("2"), 0o600))
	b.mustCreate("b3", "branch", "b2", "ttl", "1h")
	b.restart()
	assert.Equal(t, b.status("b3").Parent, "b2")
	assert.Equal(t, b.status("b3").Seed, "shop")
	assert.DeepEqual(t, b.status("b1").Branches, []string{"b2"})
	mountpoint, err := b.d.Mount(t.Context(), "b3", "id")
	assert.NilError(t, err)
	lower := b.m.plans[mountpoint].Lower
	assert.Equal(t, len(lower), 5, "two layers, the seed, the preload configuration and the runtime")
	_, err = os.Lstat(filepath.Join(lower[0], "two"))
	assert.NilError(t, err, "the nearest layer comes first")
	_, err = os.Lstat(filepath.Join(lower[1], "one"))
	assert.NilError(t, err)
	_, err = os.Lstat(filepath.Join(lower[1], contract.RuntimeDir))
	assert.Check(t, os.IsNotExist(err), "a layer must not hide the runtime")
	for _, name := range []string{"b1", "b2", "b3"} {
		_, err = os.Lstat(filepath.Join(b.path(b.volume(name).tree()), testWALHead))
		assert.Equal(t, os.IsNotExist(err), true, "the seed's WAL head must not hide the layer's: "+name)
	}
	// A layer lives as long as something stands on it.
	assert.NilError(t, b.d.Remove(t.Context(), "b1"))
	assert.NilError(t, b.d.Remove(t.Context(), "b2"))
	assert.Equal(t, len(b.d.store.list(layersDir)), 2)
	assert.Check(t, is.ErrorContains(b.d.Remove(t.Context(), "shop@1"), "b3"))
	b.d.Unmount(t.Context(), "b3", "id")
	b.mustCreate("tk", "op", "reset", "volume", "b3")
	assert.Equal(t, len(b.volume("b3").branch.Layers), 2, "a reset goes back to what the branch was made of")
	assert.NilError(t, b.d.Remove(t.Context(), "b3"))
	assert.Equal(t, len(b.d.store.list(layersDir)), 0)
}

// TestResetOfAParent puts a branch back to the seed although its first upper is frozen.
func TestResetOfAParent(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	assert.NilError(t, os.WriteFile(filepath.Join(b.path(b.volume("b1").tree()), "one"), make([]byte, 1<<20), 0o600))
	b.mustCreate("b2", "branch", "b1")
	shared := b.status("b1").OwnedBytes
	assert.Check(t, shared < 1<<20, "the layer is shared: %d", shared)
	b.mustCreate("tk", "op", "reset", "volume", "b1")
	assert.Equal(t, len(b.volume("b1").branch.Layers), 0)
	_, err := os.Lstat(filepath.Join(b.path(b.volume("b1").tree()), testWALHead))
	assert.NilError(t, err)
	assert.Check(t, b.findInLayers("b2", "one") != "")
	b.d.usage = newUsageCache(b.d.store.root)
	assert.Check(t, b.status("b2").OwnedBytes >= 1<<20, "the layer is its own now")
}

func TestDepthIsBounded(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b0", "seed", "shop")
	for i := 1; ; i++ {
		assert.Assert(t, i < 200, "nothing bounds the depth")
		err := b.create("b"+string(rune('0'+i%10))+newID(), "branch", "b0")
		if err == nil {
			continue
		}
		assert.Check(t, is.ErrorContains(err, "too deep"))
		t.Logf("depth %d is refused", i)
		break
	}
	_, err := b.d.Mount(t.Context(), "b0", "id")
	assert.NilError(t, err, "the parent of a refused branch still works")
}

// TestStaleRuntimeFiles has an upper with copies of another version's files.
func TestStaleRuntimeFiles(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	dir := filepath.Join(b.path(b.volume("b1").tree()), contract.RuntimeDir)
	assert.NilError(t, os.MkdirAll(dir, 0o755))
	assert.NilError(t, os.WriteFile(filepath.Join(dir, "agent-0123456789ab"), nil, 0o555))
	b.m.setHeld(b.path(b.volume("b1").tree()), true)
	_, err := b.d.Mount(t.Context(), "b1", "id")
	assert.Check(t, is.ErrorContains(err, "still hold it"))
	_, err = os.Lstat(dir)
	assert.NilError(t, err, "an upper in use is not touched")
	b.m.setHeld(b.path(b.volume("b1").tree()), false)
	_, err = b.d.Mount(t.Context(), "b1", "id")
	assert.NilError(t, err)
	_, err = os.Lstat(dir)
	assert.Check(t, os.IsNotExist(err))
}
