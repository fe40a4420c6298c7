package volumedriver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// A plugin whose mounts have been cut off from the host mounts nothing: a container would
// get an empty folder.
func TestMountThatReachesNobodyIsRefused(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	b.m.room = ""
	_, err := b.d.Mount(t.Context(), "b1", "id1")
	assert.Check(t, is.ErrorContains(err, "no longer reach the engine's host"))
	entries, err := os.ReadDir(b.cfg.MountRoot)
	assert.Check(t, err == nil && len(entries) == 0, "%v %v", entries, err)
	b.restart()
	_, err = b.d.Mount(t.Context(), "b1", "id1")
	assert.NilError(t, err)
}

func TestBranchLife(t *testing.T) {
	b := newBench(t)
	assert.Equal(t, b.seal("shop"), "shop@1")
	b.mustCreate("b1", "seed", "shop", "ttl", "1h")

	s := b.status("b1")
	assert.Equal(t, s.Kind, contract.KindBranch)
	assert.Equal(t, s.Seed, "shop")
	assert.Equal(t, s.Generation, 1)
	assert.Equal(t, s.CowMode, contract.ModeLazyRW)
	assert.Check(t, !s.Mounted)
	assert.Check(t, s.ExpiresAt != nil && time.Until(*s.ExpiresAt) > 59*time.Minute)
	assert.Check(t, s.OwnedBytes > 0 && s.OwnedBytes <= 64<<10, "%d", s.OwnedBytes)

	mountpoint, err := b.d.Mount(t.Context(), "b1", "id1")
	assert.NilError(t, err)
	assert.Equal(t, filepath.Dir(mountpoint), b.cfg.MountRoot)
	plan := b.m.plans[mountpoint]
	assert.Equal(t, len(plan.Lower), 3)
	assert.Equal(t, plan.Lower[0], b.path(b.volume("shop@1").dir(), rootDir))
	for _, layer := range plan.Lower[1:] {
		assert.Check(t, strings.HasPrefix(layer, b.path(runtimeDir)+"/"), "the runtime layers lie below the seed")
	}
	assert.Check(t, b.status("b1").Mounted)

	b.d.Unmount(t.Context(), "b1", "id1")
	assert.Equal(t, len(b.m.table()), 0)
	assert.Check(t, !b.status("b1").Mounted)
	_, err = os.Lstat(mountpoint)
	assert.Check(t, os.IsNotExist(err), "the mountpoint is removed")

	assert.NilError(t, b.d.Remove(t.Context(), "b1"))
	b.absent("b1")
	assert.NilError(t, b.d.Remove(t.Context(), "b1"), "a repeated remove is no error")
	assert.DeepEqual(t, b.names(), []string{"shop@1"})
}

func TestRuntimeLayer(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	mountpoint, err := b.d.Mount(t.Context(), "b1", "id")
	assert.NilError(t, err)
	dir := filepath.Join(b.m.plans[mountpoint].Lower[2], contract.RuntimeDir)
	for file, content := range map[string]string{contract.ShimFile: "shim", contract.AgentFile: "agent"} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		assert.NilError(t, err)
		assert.Equal(t, string(data), content)
		link, err := os.Readlink(filepath.Join(dir, file))
		assert.NilError(t, err)
		assert.Check(t, is.Contains(link, b.d.runtime.id()), "the file behind the link has its version's name")
		info, err := os.Stat(filepath.Join(dir, file))
		assert.NilError(t, err)
		assert.Equal(t, info.Mode().Perm(), os.FileMode(0o555))
	}
	for _, name := range []string{"data", "pgdata"} {
		info, err := os.Stat(filepath.Join(filepath.Dir(dir), name))
		assert.NilError(t, err)
		assert.Check(t, info.Mode().IsRegular(), "%s must be no place for an anonymous volume or a fresh cluster", name)
	}
}

func TestEagerWhereThereIsNoShim(t *testing.T) {
	b := newBench(t)
	b.end()
	b.cfg.Shim = func() ([]byte, error) { return nil, fmt.Errorf("no object for sparc") }
	b.start()
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	b.mustCreate("b2", "seed", "shop", "cow", "off")
	_, err := b.d.Mount(t.Context(), "b1", "id")
	assert.NilError(t, err)
	assert.Equal(t, b.status("b1").CowMode, contract.ModeEager)
	assert.Check(t, is.Contains(b.status("b1").CowReason, "sparc"))
	assert.Equal(t, b.status("b2").CowReason, "cow=off")
}

func TestCreateRefusals(t *testing.T) {
	b := newBench(t)
	err := b.create("b1", "seed", "shop")
	assert.Check(t, is.ErrorContains(err, `branch "b1": seed "shop" does not exist`))
	assert.Check(t, is.ErrorContains(err, "there are no seeds yet"))
	b.seal("shop")
	b.seal("catalog")
	err = b.create("b1", "seed", "shp")
	assert.Check(t, is.ErrorContains(err, "seeds here: catalog, shop"))
	err = b.create("b1", "seed", "shop@2")
	assert.Check(t, is.ErrorContains(err, `seed "shop" has no generation 2`))
	assert.Check(t, is.ErrorContains(err, "newest is shop@1"))
	assert.Check(t, is.ErrorContains(b.create("b1", "branch", "b0"), `branch "b0" does not exist`))
	assert.Check(t, is.ErrorContains(b.create("shop@1", "seed", "shop"), "not allowed"))
	b.mustCreate("staging1", "staging", "other")
	assert.Check(t, is.ErrorContains(b.create("b1", "seed", "other"), `seed "other" does not exist`), "what is not sealed is no parent")
	assert.Check(t, is.ErrorContains(b.create("b1", "branch", "staging1"), "is no branch"))
	assert.DeepEqual(t, b.d.store.list(branchesDir), []string{})
}

func TestCreateIsIdempotent(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	for range 2 {
		b.mustCreate("b1", "seed", "shop", "ttl", "1h")
		b.mustCreate("s1", "staging", "new")
		b.mustCreate("t1", "op", "status")
	}
	b.mustCreate("b1", "seed", "shop@1", "ttl", "60m")
	assert.Check(t, is.ErrorContains(b.create("b1", "seed", "shop"), "exists already with other options"))
	assert.Check(t, is.ErrorContains(b.create("b1", "seed", "shop", "ttl", "1h", "cow", "off"), "other options"))
	assert.Check(t, is.ErrorContains(b.create("b1", "staging", "shop", "generation", "next"), "other options"))
	assert.Check(t, is.ErrorContains(b.create("s1", "staging", "new", "generation", "next"), "other options"))
	assert.Check(t, is.ErrorContains(b.create("t1", "op", "reset", "volume", "b1"), "other options"))
	assert.Check(t, is.ErrorContains(b.create("b1", "op", "status"), "a volume of that name exists"))
	assert.Check(t, is.ErrorContains(b.create("t1", "seed", "shop"), "exists already"))
	// The newest generation was resolved when the branch was made.
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop", "ttl", "1h")
	assert.Equal(t, b.status("b1").Generation, 1)
	b.mustCreate("b2", "seed", "shop")
	assert.Equal(t, b.status("b2").Generation, 2)
	b.restart()
	b.mustCreate("b1", "seed", "shop", "ttl", "1h")
}

func TestConcurrentCreates(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() { assert.Check(t, b.create(fmt.Sprintf("b%d", i), "seed", "shop")) })
		all.Go(func() { assert.Check(t, b.create("same", "seed", "shop")) })
		all.Go(func() {
			err := b.create("contested", "seed", "shop", "ttl", fmt.Sprintf("%dh", i%2+1))
			assert.Check(t, err == nil || strings.Contains(err.Error(), "other options"), "%v", err)
		})
	}
	all.Wait()
	assert.Equal(t, len(b.names()), 53)
	assert.Equal(t, len(b.d.store.list(branchesDir)), 52)
	err := b.d.Remove(t.Context(), "shop@1")
	assert.Check(t, is.ErrorContains(err, "52 branches stand on it"))
	assert.Check(t, is.ErrorContains(err, "b0, b1, b10"))
}

func TestCreateWhileTheSeedIsRemoved(t *testing.T) {
	b := newBench(t)
	for round := range 20 {
		seed := fmt.Sprintf("shop%d", round)
		b.seal(seed)
		var all sync.WaitGroup
		var created, removed error
		all.Go(func() { created = b.create("b-"+seed, "seed", seed) })
		all.Go(func() { removed = b.d.Remove(t.Context(), seed+"@1") })
		all.Wait()
		assert.Check(t, (created == nil) != (removed == nil), "one of the two wins: %v, %v", created, removed)
	}
}

func TestMountIsCounted(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	mount := func(id string) {
		t.Helper()
		b.mountAnswered("b1", id)
	}
	mount("live")
	mount("live") // docker cp
	mount("other")
	assert.Equal(t, len(b.m.table()), 1)
	b.d.Unmount(t.Context(), "b1", "live")
	b.d.Unmount(t.Context(), "b1", "other")
	b.d.Unmount(t.Context(), "b1", "unknown")
	b.restart()
	assert.Equal(t, len(b.m.table()), 1, "the container's own mount is left")
	assert.Check(t, b.status("b1").Mounted)
	b.d.Unmount(t.Context(), "b1", "live")
	assert.Equal(t, len(b.m.table()), 0)
	b.d.Unmount(t.Context(), "b1", "live")
	b.d.Unmount(t.Context(), "no such volume", "x")
	b.d.Unmount(t.Context(), "shop@1", "x")
	mount("again")
	assert.Equal(t, len(b.m.table()), 1)
}

func TestMountRefusals(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	b.mustCreate("t1", "op", "status")
	mountErr := func(name, want string) {
		t.Helper()
		_, err := b.d.Mount(t.Context(), name, "id")
		assert.Check(t, is.ErrorContains(err, want))
	}
	mountErr("shop@1", "a sealed seed is never mounted")
	mountErr("t1", "cannot be mounted")
	mountErr("b9", "does not exist here")
	b.m.fail = unix.EINVAL
	mountErr("b1", "the kernel refuses")
	assert.Check(t, is.Contains(b.status("b1").LastError, "the kernel refuses"))
	b.m.fail = nil
	b.m.setHeld(b.path(b.volume("b1").tree()), true)
	mountErr("b1", "still hold it")
	b.m.setHeld(b.path(b.volume("b1").tree()), false)
	_, err := b.d.Mount(t.Context(), "b1", "id")
	assert.NilError(t, err)
	assert.Equal(t, b.status("b1").LastError, "")
	b.d.Unmount(t.Context(), "b1", "id")
	// What is missing is never replaced by something empty.
	assert.NilError(t, os.Rename(b.path(b.volume("b1").tree()), b.path("away")))
	mountErr("b1", "is missing from the data root")
	assert.NilError(t, os.Rename(b.path("away"), b.path(b.volume("b1").tree())))
	root := b.path(b.volume("shop@1").dir(), rootDir)
	assert.NilError(t, os.Rename(root, root+"away"))
	assert.NilError(t, os.Symlink("/etc", root))
	mountErr("b1", "is missing from the data root")
	entries, err := os.ReadDir(b.cfg.MountRoot)
	assert.NilError(t, err)
	assert.Equal(t, len(entries), 0, "no mountpoint is left")
}

func TestReconcile(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	for _, name := range []string{"kept", "lost", "uncounted"} {
		b.mustCreate(name, "seed", "shop")
		b.mountAnswered(name, "id")
	}
	lost, uncounted := b.volume("lost"), b.volume("uncounted")
	orphan := filepath.Join(b.cfg.MountRoot, newID())
	assert.NilError(t, os.Mkdir(orphan, 0o700))
	assert.NilError(t, b.m.Bind("gone", orphan))
	foreign := filepath.Join(b.cfg.MountRoot, "foreign")
	assert.NilError(t, b.m.Bind("foreign", foreign))
	assert.NilError(t, b.m.Unmount(b.d.target(lost)))
	assert.NilError(t, os.Remove(b.path(uncounted.dir(), mountsFile)))

	b.restart()
	assert.Check(t, b.status("kept").Mounted)
	assert.Check(t, !b.status("lost").Mounted)
	assert.Check(t, !b.status("uncounted").Mounted)
	table := b.m.table()
	assert.Equal(t, len(table), 3, "%v", table)
	assert.Check(t, table[b.d.target(b.volume("kept"))] != "" && table[foreign] != "")
	// What nobody counted goes with the next Unmount.
	_, err := b.d.Mount(t.Context(), "uncounted", "id")
	assert.NilError(t, err)
	b.d.Unmount(t.Context(), "uncounted", "id")
	assert.Equal(t, len(b.m.table()), 2)
}

func TestMountAfterItWasLost(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	_, err := b.d.Mount(t.Context(), "b1", "old")
	assert.NilError(t, err)
	assert.NilError(t, b.m.Unmount(b.d.target(b.volume("b1"))))
	_, err = b.d.Mount(t.Context(), "b1", "new")
	assert.NilError(t, err)
	b.d.Unmount(t.Context(), "b1", "new")
	assert.Equal(t, len(b.m.table()), 0, "a count from before the mount was lost does not keep it")
}

func TestRemoveProbes(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	_, err := b.d.Mount(t.Context(), "b1", "leaked")
	assert.NilError(t, err)
	upper := b.path(b.volume("b1").tree())

	b.m.setHeld(upper, true)
	assert.Check(t, is.ErrorContains(b.d.Remove(t.Context(), "b1"), "a container is using it"))
	assert.Check(t, b.status("b1") != nil, "it is still there")
	_, err = os.Lstat(upper)
	assert.NilError(t, err)

	b.m.setHeld(upper, false)
	assert.NilError(t, b.d.Remove(t.Context(), "b1"), "a leaked count does not keep it")
	assert.Equal(t, len(b.m.table()), 0)

	// A container from before a restart, which nothing counts any more.
	b.mustCreate("b2", "seed", "shop")
	b.m.setHeld(b.path(b.volume("b2").tree()), true)
	assert.Check(t, is.ErrorContains(b.d.Remove(t.Context(), "b2"), "a container is using it"))
}

func TestRemoveSeed(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop@1")
	assert.DeepEqual(t, b.status("shop@1").Branches, []string{"b1"})
	err := b.d.Remove(t.Context(), "shop@1")
	assert.Check(t, is.ErrorContains(err, "a branch stands on it: b1"))
	assert.NilError(t, b.d.Remove(t.Context(), "shop@2"))
	assert.NilError(t, b.d.Remove(t.Context(), "b1"))
	assert.NilError(t, b.d.Remove(t.Context(), "shop@1"))
	assert.Equal(t, len(b.d.store.list(seedsDir)), 0)
}

func TestRemoveStaging(t *testing.T) {
	b := newBench(t)
	b.mustCreate("s1", "staging", "shop")
	_, err := b.d.Mount(t.Context(), "s1", "id")
	assert.NilError(t, err)
	release := lockDir(t, b.path(b.volume("s1").tree()))
	assert.Check(t, is.ErrorContains(b.d.Remove(t.Context(), "s1"), "a container is filling it"))
	release()
	assert.NilError(t, b.d.Remove(t.Context(), "s1"), "a leaked count does not keep it")
	assert.Equal(t, len(b.m.table()), 0)
}

func TestStagingReservesTheSeedsName(t *testing.T) {
	b := newBench(t)
	b.mustCreate("s1", "staging", "shop")
	assert.Check(t, is.ErrorContains(b.create("s2", "staging", "shop"), `seed "shop" is being made in volume "s1"`))
	b.mustCreate("s3", "staging", "shop", "generation", "next")
	b.volume("s3").created = time.Now().Add(-time.Hour)
	b.volume("s1").created = time.Now().Add(-time.Hour)
	_, err := b.d.Mount(t.Context(), "s1", "id")
	assert.NilError(t, err)
	assert.Check(t, is.ErrorContains(b.create("s2", "staging", "shop"), "is being made"))
	b.d.Unmount(t.Context(), "s1", "id")
	b.mustCreate("s2", "staging", "shop")
	b.seal("shop")
	assert.Check(t, is.ErrorContains(b.create("s4", "staging", "shop"), `seed "shop" exists already: shop@1`))
	// Of two first ones the second to be sealed is refused.
	fillCluster(t, b.path(b.volume("s2").tree()), nil)
	assert.Check(t, is.ErrorContains(b.create("tk", "op", "seal", "volume", "s2"), "exists already: shop@1"))
	assert.Equal(t, b.sealStaging2("s3"), "shop@2")
}

func (b *bench) sealStaging2(name string) string {
	fillCluster(b.t, b.path(b.volume(name).tree()), nil)
	return b.sealStaging(name)
}

func TestStaleStaging(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"young", "old", "old-mounted", "used-lately"} {
		b.mustCreate(name, "staging", name)
		if name != "young" {
			b.volume(name).created = time.Now().Add(-2 * stagingLife)
		}
	}
	_, err := b.d.Mount(t.Context(), "old-mounted", "id")
	assert.NilError(t, err)
	_, err = b.d.Mount(t.Context(), "used-lately", "id")
	assert.NilError(t, err)
	b.d.Unmount(t.Context(), "used-lately", "id")
	assert.DeepEqual(t, b.d.staleStaging(time.Now()), []string{"old"})
	assert.Equal(t, len(b.d.staleStaging(time.Now().Add(-100*stagingLife))), 0, "a clock that went backwards")
}

// lockDir takes the lock that a server has on its PGDATA, and the agent on a staging
// volume.
func lockDir(t *testing.T, dir string) (release func()) {
	t.Helper()
	f, err := os.Open(dir)
	assert.NilError(t, err)
	assert.NilError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	return func() { f.Close() }
}

func TestTickets(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	b.mustCreate("t1", "op", "status")
	p := b.status("t1").Plugin
	assert.Equal(t, p.StoreID, b.d.StoreID())
	assert.Equal(t, p.Version, "test")
	assert.Equal(t, p.Seeds, 1)
	assert.Equal(t, p.Branches, 1)
	assert.Check(t, p.FileSystem != "" && p.Kernel != "" && p.TotalBytes > 0 && p.FreeBytes > 0 && p.CopyUpMode != "" && p.Runtime != "")
	assert.Check(t, p.Unfit == "")
	assert.DeepEqual(t, p.Volumes, []string{"b1", "shop@1"})
	b.d.probe = probeCache{}
	b.m.fail = unix.EINVAL
	b.mustCreate("t3", "op", "status")
	b.m.fail = nil
	assert.Check(t, is.Contains(b.status("t3").Plugin.Unfit, "cannot hold branches"))
	assert.DeepEqual(t, b.names(), []string{"b1", "shop@1"})
	assert.Check(t, is.ErrorContains(b.create("t2", "op", "seal", "volume", "nothing"), `staging volume "nothing": does not exist`))
	b.absent("t2")
	assert.Check(t, is.ErrorContains(b.create("t2", "op", "seal", "volume", "b1"), "is no staging volume"))
	assert.Check(t, is.ErrorContains(b.create("t2", "op", "reset", "volume", "shop"), "does not exist"))
	assert.Check(t, is.ErrorContains(b.create("t2", "op", "reset", "volume", "t2"), "does not exist"))
	assert.NilError(t, b.d.Remove(t.Context(), "t1"))
	b.absent("t1")
}

func TestExpiredInStatus(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("brief", "seed", "shop", "ttl", "1ms")
	b.mustCreate("long", "seed", "shop", "ttl", "1h")
	b.mustCreate("endless", "seed", "shop")
	time.Sleep(2 * time.Millisecond)
	for name, want := range map[string]bool{"brief": true, "long": false, "endless": false} {
		s := b.status(name)
		assert.Equal(t, s.Expired, want, name)
		assert.Equal(t, s.ExpiresAt != nil, name != "endless")
	}
	b.restart()
	assert.Check(t, b.status("brief").Expired && !b.status("long").Expired)
}

func TestReset(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	upper := b.path(b.volume("b1").tree())
	assert.NilError(t, os.WriteFile(filepath.Join(upper, "written"), nil, 0o600))
	_, err := b.d.Mount(t.Context(), "b1", "id")
	assert.NilError(t, err)
	release := lockDir(t, b.d.target(b.volume("b1")))
	assert.Check(t, is.ErrorContains(b.create("tk", "op", "reset", "volume", "b1"), "a container is using it"))
	assert.Equal(t, len(b.m.table()), 1, "while a server runs, the plugin keeps the mount for docker cp")
	release()
	b.m.setHeld(upper, true)
	assert.Check(t, is.ErrorContains(b.create("tk", "op", "reset", "volume", "b1"), "a container is using it"))
	b.m.setHeld(upper, false)
	created := b.volume("b1").created
	b.mustCreate("tk", "op", "reset", "volume", "b1")
	_, err = os.Lstat(filepath.Join(upper, "written"))
	assert.Check(t, os.IsNotExist(err))
	_, err = os.Lstat(filepath.Join(upper, testWALHead))
	assert.NilError(t, err, "the WAL head is placed again")
	b.restart()
	assert.Check(t, b.volume("b1").created.Equal(created))
	_, err = b.d.Mount(t.Context(), "b1", "id")
	assert.NilError(t, err)
}
