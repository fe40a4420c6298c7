//go:build e2e

package volumedriver

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// The tests of this file mount for real. They need root and loop devices, and fail
// without. Everything they mount lies below a folder of the test.

// fileSystems are those that branches live on, with how to make one.
var fileSystems = map[string][]string{
	"ext4":  {"mkfs.ext4", "-q", "-F"},
	"xfs":   {"mkfs.xfs", "-q", "-f"},
	"btrfs": {"mkfs.btrfs", "-q", "-f"},
}

// run runs a program and gives its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	assert.NilError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}

// loopMount makes a file system of that size and mounts it.
func loopMount(t *testing.T, kind string, bytes int64) string {
	t.Helper()
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	assert.NilError(t, os.WriteFile(image, nil, 0o600))
	assert.NilError(t, os.Truncate(image, bytes))
	assert.NilError(t, os.Mkdir(at, 0o755))
	run(t, fileSystems[kind][0], append(fileSystems[kind][1:], image)...)
	run(t, "mount", "-o", "loop", image, at)
	t.Cleanup(func() { run(t, "umount", at) })
	return at
}

// realBench is a bench whose data root is at dir and whose mounts are real.
func realBench(t *testing.T, dir string) *bench {
	t.Helper()
	assert.Equal(t, os.Geteuid(), 0, "this test mounts: run it as root")
	b := newBench(t)
	b.end()
	b.cfg.DataRoot, b.cfg.Mounter, b.cfg.SelfTest = filepath.Join(dir, "pgoverlay"), KernelMounter{}, nil
	b.start()
	t.Cleanup(func() {
		assert.NilError(t, KernelMounter{}.Unmount(b.cfg.MountRoot))
		left, err := KernelMounter{}.Below(b.cfg.MountRoot)
		assert.NilError(t, err)
		assert.Equal(t, len(left), 0)
		b.end()
	})
	return b
}

// onEach runs a test on each file system.
func onEach(t *testing.T, test func(t *testing.T, b *bench)) {
	for _, kind := range sortedKeys(fileSystems) {
		t.Run(kind, func(t *testing.T) { test(t, realBench(t, loopMount(t, kind, 512<<20))) })
	}
}

func (b *bench) mount(name, id string) string {
	b.t.Helper()
	mountpoint, err := b.d.Mount(b.t.Context(), name, id)
	assert.NilError(b.t, err)
	return mountpoint
}

// treeSum is a hash over every name, content, mode, owner and time of a tree.
func treeSum(t *testing.T, dir string) string {
	t.Helper()
	sum := sha256.New()
	assert.NilError(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		fmt.Fprintln(sum, strings.TrimPrefix(name, dir), info.Mode(), st.Uid, st.Gid, st.Nlink, info.ModTime().UnixNano())
		if !info.Mode().IsRegular() {
			return nil
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(sum, f)
		return err
	}))
	return fmt.Sprintf("%x", sum.Sum(nil))
}

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	assert.NilError(t, os.WriteFile(name, []byte(content), 0o600))
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	assert.NilError(t, err)
	return string(data)
}

// filesOf lists the files of a tree with what they have allocated.
func filesOf(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	files := map[string]int64{}
	assert.NilError(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files[strings.TrimPrefix(name, dir+"/")] = blocks(t, name)
		}
		return err
	}))
	return files
}

// TestOverlayOptions reads the mount back from the kernel's table.
func TestOverlayOptions(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		b.seal("shop")
		b.mustCreate("b1", "seed", "shop")
		mountpoint := b.mount("b1", "id")
		mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(mountpoint))
		assert.NilError(t, err)
		assert.Equal(t, len(mounts), 1)
		m := mounts[0]
		assert.Equal(t, m.FSType, "overlay")
		assert.Equal(t, m.Source, mountSource)
		for _, want := range []string{"nosuid", "nodev", "noatime"} {
			assert.Check(t, slices.Contains(strings.Split(m.Options, ","), want), m.Options)
		}
		seed := b.path(b.volume("shop@1").dir(), rootDir)
		runtime := b.path(runtimeDir, b.d.runtime.id()+"-0")
		preload := b.path(runtimeDir, preloadPrefix+preloadID(preloadConf(b.volume("shop@1").manifest, true))+"-0")
		for _, want := range []string{"lowerdir=" + seed + ":" + preload + ":" + runtime, "index=on", "metacopy=on", "redirect_dir=on"} {
			assert.Check(t, slices.Contains(strings.Split(m.VFSOptions, ","), want), m.VFSOptions)
		}
		assert.Equal(t, readFile(t, filepath.Join(mountpoint, contract.RuntimeDir, contract.AgentFile)), "agent")
		assert.Equal(t, readFile(t, filepath.Join(mountpoint, contract.RuntimeDir, contract.ShimFile)), "shim")
	})
}

// TestSealedTreeIsNeverWritten does everything to a branch that a server or an image's
// entrypoint may do.
func TestSealedTreeIsNeverWritten(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		tree := b.stage("s1", "shop", nil)
		big := filepath.Join(tree, rootDir, "base/5/16384")
		assert.NilError(t, os.WriteFile(big, bytes.Repeat([]byte("seed"), 1<<20), 0o600))
		b.sealStaging("s1")
		root := b.path(b.volume("shop@1").dir(), rootDir)
		before := treeSum(t, root)
		b.mustCreate("b1", "seed", "shop")
		b.mustCreate("b2", "seed", "shop")
		at, sibling := b.mount("b1", "id"), b.mount("b2", "id")
		upper := b.path(b.volume("b1").tree())

		assert.NilError(t, filepath.WalkDir(at, func(name string, _ fs.DirEntry, err error) error {
			return os.Lchown(name, 70, 70)
		}))
		assert.Check(t, filesOf(t, upper)["base/5/16384"] <= 4096, "a chown costs an inode and not the file: %d", filesOf(t, upper)["base/5/16384"])
		writeFile(t, filepath.Join(at, "PG_VERSION"), "99")
		assert.NilError(t, os.Rename(filepath.Join(at, "base"), filepath.Join(at, "base2")))
		assert.NilError(t, os.Rename(filepath.Join(at, "base2/5/16384"), filepath.Join(at, "base2/moved")))
		assert.NilError(t, os.Remove(filepath.Join(at, "base2/5/1259")))
		assert.NilError(t, os.RemoveAll(filepath.Join(at, "global")))
		f, err := os.OpenFile(filepath.Join(at, "base2/moved"), os.O_WRONLY, 0)
		assert.NilError(t, err)
		_, err = f.WriteAt([]byte("branch"), 8192)
		assert.NilError(t, err)
		assert.NilError(t, f.Close())

		b.d.Unmount(t.Context(), "b1", "id")
		at = b.mount("b1", "id2")
		data := readFile(t, filepath.Join(at, "base2/moved"))
		assert.Equal(t, data[8192:8200], "branched"[:6]+"ed")
		assert.Equal(t, data[:8], "seedseed")
		assert.Equal(t, readFile(t, filepath.Join(sibling, "PG_VERSION")), "17\n")
		assert.Equal(t, treeSum(t, root), before)
		b.mustCreate("b3", "seed", "shop")
		assert.NilError(t, os.RemoveAll(filepath.Join(b.mount("b3", "id"), "base")))
		b.d.Unmount(t.Context(), "b3", "id")
		b.mustCreate("tk", "op", "reset", "volume", "b3")
		assert.NilError(t, b.d.Remove(t.Context(), "b3"))
		b.emptyTrash()
		assert.Equal(t, treeSum(t, root), before)
	})
}

// TestWALHeadInTheUpper shows that the placed copy merges with the seed's folders, and
// what it saves: the control is the same branch without it.
func TestWALHeadInTheUpper(t *testing.T) {
	for _, dataDir := range []string{".", "18/docker"} {
		onEach(t, func(t *testing.T, b *bench) {
			b.stage("s1", "shop", func(m *contract.Manifest) {
				m.DataDir = dataDir
				if dataDir != "." {
					m.Major, m.MountPath = 18, "/var/lib/postgresql"
				}
			})
			b.sealStaging("s1")
			first := func(place bool) (owned int64) {
				name := fmt.Sprintf("placed-%v", place)
				b.mustCreate(name, "seed", "shop")
				upper := b.path(b.volume(name).tree())
				head := filepath.Join(dataDir, testWALHead)
				if !place {
					assert.NilError(t, os.RemoveAll(filepath.Join(upper, strings.Split(head, "/")[0])))
				}
				at := b.mount(name, "id")
				entries, err := os.ReadDir(filepath.Join(at, dataDir, "pg_wal"))
				assert.NilError(t, err)
				assert.Equal(t, len(entries), 2, "both the segment and archive_status: %v", entries)
				entries, err = os.ReadDir(filepath.Join(at, dataDir))
				assert.NilError(t, err)
				assert.Check(t, len(entries) >= 4, "%v", entries)
				_, err = os.Lstat(filepath.Join(at, dataDir, "pg_wal/archive_status/ok"))
				assert.NilError(t, err)
				f, err := os.OpenFile(filepath.Join(at, head), os.O_RDWR, 0)
				assert.NilError(t, err)
				_, err = f.WriteAt([]byte("record"), 16384)
				assert.NilError(t, err)
				assert.NilError(t, f.Sync())
				assert.NilError(t, f.Close())
				return filesOf(t, upper)[head]
			}
			with, without := first(true), first(false)
			t.Logf("dataDir %s: first write to the WAL head allocates %d KiB placed, %d KiB copied up by the kernel", dataDir, with>>10, without>>10)
			assert.Check(t, with <= 64<<10, "%d", with)
			if fileSystemOf(b.cfg.DataRoot) == "ext4" {
				assert.Check(t, without >= 1<<20, "the kernel no longer rounds up: the placing can go (%d)", without)
			}
		})
	}
}

// holdElsewhere has another process keep a mount in a mount namespace of its own, as a
// container does, and gives what ends it. The process binds it to another folder, as
// runc does: the removal of a mountpoint takes away what is mounted on that very folder
// in every namespace (fs/namei.c, vfs_rmdir).
func holdElsewhere(t *testing.T, mountpoint string) (end func()) {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c",
		`mount --bind "$1" "$2" && echo ready && cat`, "sh", mountpoint, t.TempDir())
	in, err := cmd.StdinPipe()
	assert.NilError(t, err)
	out, err := cmd.StdoutPipe()
	assert.NilError(t, err)
	assert.NilError(t, cmd.Start())
	_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	assert.NilError(t, err)
	ended := false
	end = func() {
		if !ended {
			ended = true
			in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	return end
}

// TestUpperHeldElsewhere is `docker plugin disable -f` under a running container.
func TestUpperHeldElsewhere(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		b.seal("shop")
		b.mustCreate("b1", "seed", "shop")
		mountpoint := b.mount("b1", "id")
		end := holdElsewhere(t, mountpoint)
		b.end()
		assert.NilError(t, KernelMounter{}.Unmount(mountpoint))
		b.start()
		assert.Check(t, !b.status("b1").Mounted)
		_, err := b.d.Mount(t.Context(), "b1", "id2")
		assert.Check(t, is.ErrorContains(err, "still hold it"))
		assert.ErrorIs(t, err, unix.EBUSY)
		assert.Check(t, is.ErrorContains(b.create("tk", "op", "reset", "volume", "b1"), "a container is using it"))
		assert.Check(t, is.ErrorContains(b.create("b2", "branch", "b1"), "a container is using it"))
		assert.Check(t, is.ErrorContains(b.d.Remove(t.Context(), "b1"), "a container is using it"))
		end()
		b.mount("b1", "id3")
		assert.NilError(t, b.d.Remove(t.Context(), "b1"), "a leaked count does not keep it")
	})
}

// TestUnmountOfABusyVolume has a file open in it, another mount inside it, and two
// mounts at one point.
func TestUnmountOfABusyVolume(t *testing.T) {
	b := realBench(t, loopMount(t, "ext4", 128<<20))
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	at := b.mount("b1", "id")
	f, err := os.Open(filepath.Join(at, "PG_VERSION"))
	assert.NilError(t, err)
	defer f.Close()
	run(t, "mount", "-t", "tmpfs", "x", filepath.Join(at, "base"))
	run(t, "mount", "-t", "tmpfs", "x", at)
	b.d.Unmount(t.Context(), "b1", "id")
	mounted, err := KernelMounter{}.Mounted(at)
	assert.NilError(t, err)
	assert.Check(t, !mounted)
	_, err = os.Lstat(at)
	assert.Check(t, os.IsNotExist(err))
}

func TestRealBranchOfBranch(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		tree := b.stage("s1", "shop", nil)
		writeFile(t, filepath.Join(tree, rootDir, "base/5/16384"), strings.Repeat("seed", 1<<18))
		writeFile(t, filepath.Join(tree, rootDir, "base/5/16385"), strings.Repeat("seed", 1<<18))
		b.sealStaging("s1")
		root := b.path(b.volume("shop@1").dir(), rootDir)
		before := treeSum(t, root)
		b.mustCreate("b1", "seed", "shop")
		at := b.mount("b1", "id")
		writeFile(t, filepath.Join(at, "base/5/16384"), "parent")
		writeFile(t, filepath.Join(at, "new"), "parent")
		assert.NilError(t, os.Lchown(filepath.Join(at, "base/5/16385"), 70, 70)) // metadata only
		assert.NilError(t, os.Rename(filepath.Join(at, "base/5/16385"), filepath.Join(at, "base/moved")))
		assert.NilError(t, os.Rename(filepath.Join(at, "base"), filepath.Join(at, "renamed"))) // redirected
		assert.NilError(t, os.RemoveAll(filepath.Join(at, "global")))                          // whiteout
		assert.NilError(t, os.Mkdir(filepath.Join(at, "global"), 0o700))                       // opaque
		b.d.Unmount(t.Context(), "b1", "id")
		b.mustCreate("b2", "branch", "b1")
		parent, child := b.mount("b1", "id"), b.mount("b2", "id")
		for _, at := range []string{parent, child} {
			assert.Equal(t, readFile(t, filepath.Join(at, "renamed/5/16384")), "parent")
			assert.Equal(t, readFile(t, filepath.Join(at, "new")), "parent")
			assert.Equal(t, readFile(t, filepath.Join(at, "renamed/moved")), strings.Repeat("seed", 1<<18))
			assert.Equal(t, readFile(t, filepath.Join(at, contract.RuntimeDir, contract.AgentFile)), "agent")
			entries, err := os.ReadDir(filepath.Join(at, "global"))
			assert.NilError(t, err)
			assert.Equal(t, len(entries), 0)
			info, err := os.Lstat(filepath.Join(at, "renamed/moved"))
			assert.NilError(t, err)
			assert.Equal(t, info.Sys().(*syscall.Stat_t).Uid, uint32(70))
		}
		writeFile(t, filepath.Join(parent, "new"), "parent again")
		assert.NilError(t, os.Remove(filepath.Join(child, "renamed/moved")))
		f, err := os.OpenFile(filepath.Join(child, "renamed/5/16384"), os.O_WRONLY|os.O_APPEND, 0)
		assert.NilError(t, err)
		_, err = f.WriteString(" and child")
		assert.NilError(t, err)
		assert.NilError(t, f.Close())
		assert.Equal(t, readFile(t, filepath.Join(child, "new")), "parent")
		assert.Equal(t, readFile(t, filepath.Join(parent, "renamed/5/16384")), "parent")
		b.d.Unmount(t.Context(), "b2", "id")
		b.mustCreate("b3", "branch", "b2")
		b.d.Unmount(t.Context(), "b1", "id")
		assert.NilError(t, b.d.Remove(t.Context(), "b1"))
		b.restart()
		b.emptyTrash()
		grandchild := b.mount("b3", "id")
		assert.Equal(t, readFile(t, filepath.Join(grandchild, "renamed/5/16384")), "parent and child")
		_, err = os.Lstat(filepath.Join(grandchild, "renamed/moved"))
		assert.Check(t, os.IsNotExist(err))
		assert.Equal(t, treeSum(t, root), before)
	})
}

// TestPluginUpgrade mounts a branch with another runtime than before, after an image
// with another uid has chowned everything.
func TestPluginUpgrade(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		b.seal("shop")
		b.mustCreate("b1", "seed", "shop")
		at := b.mount("b1", "id")
		writeFile(t, filepath.Join(at, "written"), "kept")
		assert.NilError(t, filepath.WalkDir(at, func(name string, _ fs.DirEntry, err error) error { return os.Lchown(name, 70, 70) }))
		b.d.Unmount(t.Context(), "b1", "id")
		b.end()
		assert.NilError(t, os.WriteFile(b.cfg.Agent, []byte("a newer agent"), 0o755))
		b.start()
		b.d.sweepRuntime()
		assert.DeepEqual(t, b.runtimes(), []string{b.d.runtime.id()})
		at = b.mount("b1", "id")
		assert.Equal(t, readFile(t, filepath.Join(at, contract.RuntimeDir, contract.AgentFile)), "a newer agent")
		assert.Equal(t, readFile(t, filepath.Join(at, "written")), "kept")
		assert.NilError(t, filepath.WalkDir(at, func(name string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			_, err = os.ReadFile(name)
			return err
		}), "every file can be read")
	})
}

// TestFullDisk fills the disk to the last block. Removing must still work.
func TestFullDisk(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		b.seal("shop")
		b.mustCreate("b1", "seed", "shop")
		b.mustCreate("b2", "seed", "shop")
		at := b.mount("b1", "id")
		f, err := os.Create(filepath.Join(at, "fill"))
		assert.NilError(t, err)
		chunk := make([]byte, 1<<20)
		for size := len(chunk); size >= 512; size /= 2 {
			for err = nil; err == nil; {
				_, err = f.Write(chunk[:size])
			}
			assert.ErrorIs(t, err, unix.ENOSPC)
			_ = f.Sync()
		}
		assert.NilError(t, f.Close())
		if err := b.create("b3", "seed", "shop"); err != nil {
			assert.Check(t, is.ErrorContains(err, "no space left on device"))
			b.absent("b3")
		}
		b.status("b2")
		b.d.Unmount(t.Context(), "b1", "id")
		assert.Check(t, !b.status("b1").Mounted)
		b.restart()
		assert.NilError(t, b.d.Remove(t.Context(), "b2"))
		assert.NilError(t, b.d.Remove(t.Context(), "b1"))
		b.emptyTrash()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if err = b.create("b4", "seed", "shop"); err == nil || time.Now().After(deadline) {
				break
			}
		}
		assert.NilError(t, err)
		b.mount("b4", "id")
	})
}

// TestRemoveWithoutRoomForAName has no room even for another name in the trash.
func TestRemoveWithoutRoomForAName(t *testing.T) {
	fileSystems["ext4 of small blocks"] = []string{"mkfs.ext4", "-q", "-F", "-b", "1024", "-m", "0"}
	defer delete(fileSystems, "ext4 of small blocks")
	b := realBench(t, loopMount(t, "ext4 of small blocks", 16<<20))
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	f, err := os.Create(b.path("fill"))
	assert.NilError(t, err)
	for size := 1 << 20; size >= 512; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		_ = f.Sync()
	}
	assert.NilError(t, f.Close())
	// Empty files take an inode and a name, until the folder needs another block.
	for i := 0; err == nil || i == 0; i++ {
		err = os.WriteFile(b.path(trashDir, fmt.Sprintf("name-as-long%04d", i)), nil, 0o600)
	}
	assert.ErrorIs(t, err, unix.ENOSPC)
	assert.NilError(t, b.d.Remove(t.Context(), "b1"))
	b.absent("b1")
	b.restart()
	b.absent("b1")
}

// TestOutOfInodes leaves no inode on the disk. Removing must still work, and gives back.
func TestOutOfInodes(t *testing.T) {
	fileSystems["ext4 of few inodes"] = []string{"mkfs.ext4", "-q", "-F", "-N", "512"}
	defer delete(fileSystems, "ext4 of few inodes")
	b := realBench(t, loopMount(t, "ext4 of few inodes", 128<<20))
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	b.mustCreate("b2", "seed", "shop")
	at, sibling := b.mount("b1", "id"), b.mount("b2", "id")
	b.d.Answered("b2", "id")
	var err error
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(at, fmt.Sprint(i)), nil, 0o600)
	}
	assert.ErrorIs(t, err, unix.ENOSPC)
	assert.Check(t, is.ErrorContains(b.create("b3", "seed", "shop"), "no space left on device"))
	b.absent("b3")
	b.d.Unmount(t.Context(), "b2", "id")
	b.restart()
	assert.DeepEqual(t, b.names(), []string{"b1", "b2", "shop@1"})
	assert.NilError(t, b.d.Remove(t.Context(), "b2"))
	_, err = os.Lstat(sibling)
	assert.Check(t, os.IsNotExist(err))
	assert.NilError(t, b.d.Remove(t.Context(), "b1"))
	b.emptyTrash()
	b.mustCreate("b3", "seed", "shop")
	b.mount("b3", "id")
}

// TestReadOnlyDisk is a disk that the kernel has remounted after an error. What is there
// stays listed: an error from Get would make Docker forget it.
func TestReadOnlyDisk(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		b.seal("shop")
		b.mustCreate("b1", "seed", "shop")
		id := b.d.StoreID()
		b.end()
		at := filepath.Dir(b.cfg.DataRoot)
		run(t, "mount", "-o", "remount,ro", at)
		b.cfg.StoreID = id
		b.start()
		assert.DeepEqual(t, b.names(), []string{"b1", "shop@1"})
		b.status("b1")
		assert.Check(t, is.ErrorContains(b.create("b2", "seed", "shop"), "read-only file system"))
		_, err := b.d.Mount(t.Context(), "b1", "id")
		assert.Check(t, is.ErrorContains(err, "read-only file system"))
		b.d.Unmount(t.Context(), "b1", "id")
		assert.Check(t, is.ErrorContains(b.d.Remove(t.Context(), "b1"), "read-only file system"))
		assert.Check(t, b.status("b1") != nil)
		run(t, "mount", "-o", "remount,rw", at)
		b.mount("b1", "id")
	})
}

// TestDataRootOnOverlay is an engine inside a container without a volume of its own.
func TestDataRootOnOverlay(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"l", "u", "w", "m"} {
		assert.NilError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	at := filepath.Join(dir, "m")
	run(t, "mount", "-t", "overlay", "x", "-o", fmt.Sprintf("lowerdir=%[1]s/l,upperdir=%[1]s/u,workdir=%[1]s/w", dir), at)
	t.Cleanup(func() { run(t, "umount", at) })
	b := realBench(t, at)
	refusesToHoldBranches(t, b, "overlay")
	b.mustCreate("tk", "op", "status")
	assert.Equal(t, b.status("tk").Plugin.FileSystem, "overlay")
}

// refusesToHoldBranches checks that nothing is begun on a data root that can hold none.
func refusesToHoldBranches(t *testing.T, b *bench, fileSystem string) {
	t.Helper()
	for _, opts := range [][]string{{"seed", "shop"}, {"staging", "shop"}} {
		err := b.create("v1", opts...)
		assert.Check(t, is.ErrorContains(err, "the data root is on "+fileSystem+", which cannot hold branches"))
		assert.Check(t, is.ErrorContains(err, "move it to ext4, XFS or btrfs"))
		b.absent("v1")
	}
}

// TestDataRootOnTmpfs would lose everything with the machine's next start.
func TestDataRootOnTmpfs(t *testing.T) {
	at := t.TempDir()
	run(t, "mount", "-t", "tmpfs", "x", at)
	t.Cleanup(func() { run(t, "umount", at) })
	refusesToHoldBranches(t, realBench(t, at), "tmpfs")
}

// TestDataRootWithoutFileTypes is XFS made with ftype=0, as it was before 2014. Kernels
// that leave out that format cannot mount it; ext4 can be made with the same lack.
func TestDataRootWithoutFileTypes(t *testing.T) {
	fileSystems["ext4 without filetype"] = []string{"mkfs.ext4", "-q", "-F", "-O", "^filetype"}
	defer delete(fileSystems, "ext4 without filetype")
	b := realBench(t, loopMount(t, "ext4 without filetype", 128<<20))
	refusesToHoldBranches(t, b, "ext4")
	assert.Check(t, is.ErrorContains(b.create("v1", "staging", "shop"), "ftype=0"))
}
