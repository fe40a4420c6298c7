package volumedriver

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// emptyTrash runs the sweeper until there is nothing to sweep.
func (b *bench) emptyTrash() {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() { b.d.store.sweepTrash(ctx); close(done) }()
	for deadline := time.Now().Add(5 * time.Second); len(b.d.store.list(trashDir)) > 0; time.Sleep(time.Millisecond) {
		assert.Assert(b.t, time.Now().Before(deadline), "the trash is not emptied")
	}
	stop()
	<-done
}

type crash struct{ step string }

// crashAt runs an operation that dies at its n-th step, and starts a new Driver. It
// gives the step's name, empty where the operation has fewer steps.
func (b *bench) crashAt(n int, operation func()) (step string) {
	b.t.Helper()
	count := 0
	b.d.cfg.Step = func(name string) {
		if count++; count == n {
			panic(crash{name})
		}
	}
	func() {
		defer func() {
			if r := recover(); r != nil {
				c, ok := r.(crash)
				if !ok {
					panic(r)
				}
				step = c.step
			}
		}()
		operation()
	}()
	b.restart()
	return step
}

// TestCrashes kills every operation at every step. After the restart the volume is as
// before or as after, nothing is left over, and the operation can be done again.
func TestCrashes(t *testing.T) {
	operations := map[string]struct {
		prepare func(*bench)
		do      func(*bench)
		// whole checks the state after the restart: it is as before, or as after.
		whole func(b *bench)
		// done checks the state after the operation was repeated.
		done func(b *bench)
	}{
		"create": {
			prepare: func(b *bench) { b.seal("shop") },
			do:      func(b *bench) { _ = b.create("b1", "seed", "shop") },
			whole: func(b *bench) {
				if b.d.find("b1") == nil {
					return
				}
				_, err := b.d.Mount(b.t.Context(), "b1", "id")
				assert.Check(b.t, err)
				b.d.Unmount(b.t.Context(), "b1", "id")
				assert.Check(b.t, b.findInLayers("b1", testWALHead) != "")
			},
			done: func(b *bench) { assert.Equal(b.t, b.status("b1").Seed, "shop") },
		},
		"create staging": {
			prepare: func(*bench) {},
			do:      func(b *bench) { _ = b.create("s1", "staging", "shop") },
			done:    func(b *bench) { b.status("s1") },
		},
		"seal": {
			prepare: func(b *bench) { b.stage("s1", "shop", nil) },
			do:      func(b *bench) { _ = b.create("tk", "op", "seal", "volume", "s1") },
			whole: func(b *bench) {
				names := b.names()
				assert.Check(b.t, slices.Equal(names, []string{"s1"}) || slices.Equal(names, []string{"shop@1"}), "%v", names)
			},
			done: func(b *bench) {
				assert.Equal(b.t, b.status("tk").SealedAs, "shop@1")
				assert.DeepEqual(b.t, b.names(), []string{"shop@1"})
				b.mustCreate("b1", "seed", "shop")
			},
		},
		"reset": {
			prepare: func(b *bench) {
				b.seal("shop")
				b.mustCreate("b1", "seed", "shop")
				assert.NilError(b.t, os.WriteFile(b.path(b.volume("b1").tree(), "written"), nil, 0o600))
			},
			do: func(b *bench) { _ = b.create("tk", "op", "reset", "volume", "b1") },
			done: func(b *bench) {
				_, err := os.Lstat(b.path(b.volume("b1").tree(), "written"))
				assert.Check(b.t, os.IsNotExist(err))
			},
		},
		"remove": {
			prepare: func(b *bench) { b.seal("shop"); b.mustCreate("b1", "seed", "shop") },
			do:      func(b *bench) { _ = b.d.Remove(b.t.Context(), "b1") },
			done:    func(b *bench) { b.absent("b1") },
		},
		"mount": {
			prepare: func(b *bench) { b.seal("shop"); b.mustCreate("b1", "seed", "shop") },
			do:      func(b *bench) { _, _ = b.d.Mount(b.t.Context(), "b1", "id") },
			whole: func(b *bench) {
				assert.Check(b.t, !b.status("b1").Mounted, "dockerd takes a Mount without an answer for failed")
				assert.Equal(b.t, len(b.m.table()), 0)
			},
			done: func(b *bench) {
				b.d.Answered("b1", "id")
				assert.Equal(b.t, len(b.m.table()), 1)
				for range b.volume("b1").mounts.Refs["id"] {
					b.d.Unmount(b.t.Context(), "b1", "id")
				}
				assert.Equal(b.t, len(b.m.table()), 0)
			},
		},
		"unmount": {
			prepare: func(b *bench) {
				b.seal("shop")
				b.mustCreate("b1", "seed", "shop")
				b.mountAnswered("b1", "id")
			},
			whole: func(b *bench) { assert.Equal(b.t, len(b.m.table()), 0) },
			do:    func(b *bench) { b.d.Unmount(b.t.Context(), "b1", "id") },
			done:  func(b *bench) { assert.Equal(b.t, len(b.m.table()), 0) },
		},
		"branch of a branch": {
			prepare: func(b *bench) {
				b.seal("shop")
				b.mustCreate("b1", "seed", "shop")
				assert.NilError(b.t, os.WriteFile(b.path(b.volume("b1").tree(), "written"), nil, 0o600))
			},
			do: func(b *bench) { _ = b.create("b2", "branch", "b1") },
			whole: func(b *bench) {
				assert.Check(b.t, is.Contains(b.findInLayers("b1", "written"), "written"), "the parent keeps what it wrote")
			},
			done: func(b *bench) {
				b.findInLayers("b1", "written")
				b.findInLayers("b2", "written")
			},
		},
	}
	for name, o := range operations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := 1
			for ; ; n++ {
				b := newBench(t)
				b.mustCreate("probe", "op", "status") // the file system's probe has been here
				o.prepare(b)
				b.emptyTrash()
				step := b.crashAt(n, func() { o.do(b) })
				if step == "" {
					break
				}
				t.Log("crash after", step)
				if o.whole != nil {
					o.whole(b)
				}
				b.emptyTrash()
				b.checkNothingLeft()
				o.do(b)
				o.done(b)
				b.restart()
				b.emptyTrash()
				b.checkNothingLeft()
			}
			assert.Check(t, n > 1, "the operation has no steps")
		})
	}
}

// findInLayers gives where a branch has a file, upper or frozen layer.
func (b *bench) findInLayers(branch, file string) string {
	b.t.Helper()
	v := b.volume(branch)
	dirs := []string{b.path(v.tree())}
	for _, id := range v.branch.Layers {
		dirs = append(dirs, b.path(layersDir, id, upperDir))
	}
	for _, dir := range dirs {
		if _, err := os.Lstat(filepath.Join(dir, file)); err == nil {
			return filepath.Join(dir, file)
		}
	}
	b.t.Errorf("branch %s has lost %s", branch, file)
	return ""
}

// checkNothingLeft checks that every folder of the store belongs to a volume.
func (b *bench) checkNothingLeft() {
	b.t.Helper()
	belongs := map[string]bool{}
	for _, v := range b.d.volumes {
		belongs[v.dir()] = true
		if v.branch != nil {
			for _, id := range v.branch.Layers {
				belongs[filepath.Join(layersDir, id)] = true
			}
		}
	}
	for _, dir := range []string{seedsDir, branchesDir, stagingDir, layersDir, draftDir} {
		entries, err := os.ReadDir(b.path(dir))
		assert.NilError(b.t, err)
		for _, e := range entries {
			assert.Check(b.t, belongs[filepath.Join(dir, e.Name())], "%s/%s is left over", dir, e.Name())
		}
	}
}

func TestHalfMadeFoldersAreSwept(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	for _, dir := range []string{
		"seeds/00000000000000aa/root", "seeds/00000000000000ab", "branches/00000000000000aa/upper", "branches/00000000000000ab",
		"staging/00000000000000aa/volume/root", "layers/00000000000000aa/upper", "draft/00000000000000aa/upper", "trash/00000000000000aa/deep/tree",
	} {
		assert.NilError(t, os.MkdirAll(b.path(dir), 0o755))
	}
	// What is not ours is left alone.
	assert.NilError(t, os.MkdirAll(b.path("branches/lost+found"), 0o755))
	b.restart()
	b.emptyTrash()
	assert.DeepEqual(t, b.names(), []string{"b1", "shop@1"})
	assert.Equal(t, len(b.d.store.list(branchesDir)), 1)
	assert.Equal(t, len(b.d.store.list(seedsDir)), 1)
	assert.Equal(t, len(b.d.store.list(layersDir)), 0)
	assert.Equal(t, len(b.d.store.list(draftDir)), 0)
	_, err := os.Lstat(b.path("branches/lost+found"))
	assert.NilError(t, err)
}

func TestOpenStore(t *testing.T) {
	b := newBench(t)
	id := b.d.StoreID()
	_, err := Open(b.cfg)
	assert.Check(t, is.ErrorContains(err, "another pgoverlay plugin is using it"))
	b.restart()
	assert.Equal(t, b.d.StoreID(), id)
	b.end()

	open := func(want string) error {
		cfg := b.cfg
		cfg.StoreID = want
		d, err := Open(cfg)
		if err == nil {
			d.Close()
		}
		return err
	}
	assert.NilError(t, open(id))
	err = open("other")
	assert.Check(t, is.ErrorContains(err, "is store "+id+", but the plugin is set up with store other"))
	assert.NilError(t, os.WriteFile(b.path(storeFile), []byte(fmt.Sprintf(`{"format":2,"id":%q}`, id)), 0o600))
	assert.Check(t, is.ErrorContains(open(""), "has format 2, and this plugin knows up to 1"))
	assert.NilError(t, os.WriteFile(b.path(storeFile), []byte(`{}`), 0o600))
	assert.Check(t, is.ErrorContains(open(""), "is damaged"))
	assert.NilError(t, os.WriteFile(b.path(storeFile), nil, 0o600))
	assert.Check(t, is.ErrorContains(open(""), "is damaged"))
	assert.NilError(t, os.Remove(b.path(storeFile)))
	assert.Check(t, is.ErrorContains(open(id), "is no store"))
	assert.NilError(t, os.RemoveAll(b.cfg.DataRoot))
	assert.Check(t, is.ErrorContains(open(id), "does not exist"))
	_, err = os.Lstat(b.cfg.DataRoot)
	assert.Check(t, os.IsNotExist(err), "nothing is made in place of a store that is missing")
}

func TestTypedEntries(t *testing.T) {
	entry := func(kind byte) []byte {
		e := make([]byte, 24)
		binary.NativeEndian.PutUint16(e[16:], 24)
		e[18] = kind
		return e
	}
	assert.Check(t, typedEntries(append(entry(unix.DT_DIR), entry(unix.DT_REG)...)))
	assert.Check(t, !typedEntries(append(entry(unix.DT_DIR), entry(unix.DT_UNKNOWN)...)))
	assert.Check(t, typedEntries(make([]byte, 5)))
}

func TestFileSystemIsProbed(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.d.probe = probeCache{}
	b.m.fail = unix.EINVAL
	err := b.create("b1", "seed", "shop")
	assert.Check(t, is.ErrorContains(err, "which cannot hold branches"))
	assert.Check(t, is.ErrorContains(err, fileSystemOf(b.cfg.DataRoot)))
	b.m.fail = nil
	b.m.sharedUppers = true
	assert.Check(t, is.ErrorContains(b.create("b1", "seed", "shop"), "nothing stops two mounts"))
	b.m.sharedUppers = false
	b.mustCreate("b1", "seed", "shop")
	assert.Equal(t, len(b.m.table()), 0)
	entries, err := os.ReadDir(b.cfg.MountRoot)
	assert.NilError(t, err)
	assert.Equal(t, len(entries), 0)
}

// TestUnfitFileSystems refuses by name what no mount shows as well: the kernels of this
// project's tests have no NFS, 9p or virtiofs to mount.
func TestUnfitFileSystems(t *testing.T) {
	for kind, want := range map[int64]string{0x6969: "nfs", 0x01021997: "9p", 0x65735546: "virtiofs", 0x01021994: "tmpfs", 0x794c7630: "overlay"} {
		b := newBench(t)
		b.seal("shop")
		b.d.probe = probeCache{}
		b.m.fsType = kind
		for _, opts := range [][]string{{"seed", "shop"}, {"staging", "other"}, {"branch", "b0"}} {
			err := b.create("v1", opts...)
			assert.Check(t, is.ErrorContains(err, want+", which cannot hold branches"))
			assert.Check(t, is.ErrorContains(err, "move it to ext4, XFS or btrfs"))
			b.absent("v1")
		}
		assert.Equal(t, len(b.names()), 1, "what is there stays listed")
	}
}

// TestSweeperSparesWorkUnderWay resets branches while others are removed.
func TestSweeperSparesWorkUnderWay(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go b.d.Background(ctx)
	b.mustCreate("b1", "seed", "shop")
	var all sync.WaitGroup
	all.Go(func() {
		for i := range 50 {
			b.mustCreate(fmt.Sprintf("t%d", i), "op", "reset", "volume", "b1")
			assert.Check(t, b.findInLayers("b1", testWALHead) != "")
		}
	})
	all.Go(func() {
		for i := range 50 {
			name := fmt.Sprintf("other%d", i)
			b.mustCreate(name, "seed", "shop")
			assert.Check(t, b.d.Remove(t.Context(), name))
		}
	})
	all.Wait()
	_, err := b.d.Mount(t.Context(), "b1", "id")
	assert.NilError(t, err)
}
