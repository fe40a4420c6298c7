//go:build e2e

package volumedriver

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// copyUpModes is what each file system does with a copy-up.
var copyUpModes = map[string]string{"ext4": contract.CopyUpCopy, "xfs": contract.CopyUpClone, "btrfs": contract.CopyUpClone}

// The copy-up mode comes from a copy-up, is kept, and is asked for again on another
// kernel or file system.
func TestCopyUpMode(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		b.mustCreate("tk", "op", "status")
		p := b.status("tk").Plugin
		want := copyUpModes[p.FileSystem]
		assert.Equal(t, p.CopyUpMode, want)

		probe := func() copyUpMeta {
			b.d.probeCopyUp(t.Context())
			var m copyUpMeta
			assert.NilError(t, readMeta(b.d.store.root, copyUpFile, &m))
			return m
		}
		// A wrong word of FICLONE's is corrected.
		b.d.probe.pass("wrong")
		first := probe()
		assert.Equal(t, first.Mode, want)
		assert.Equal(t, b.d.probe.copyUpMode(), want)
		assert.Equal(t, first.Shared, map[string]int64{contract.CopyUpCopy: 0, contract.CopyUpClone: copyUpBytes}[want])
		left, err := b.cfg.Mounter.Below(b.cfg.MountRoot)
		assert.NilError(t, err)
		assert.Equal(t, len(left), 0)
		b.emptyTrash()

		b.restart()
		assert.Equal(t, probe().Probed, first.Probed)
		first.Kernel = "3.10"
		assert.NilError(t, writeMeta(b.d.store.root, copyUpFile, first))
		assert.Assert(t, probe().Probed.After(first.Probed))
	})
}

// dirtyPages writes n pages of 8 KiB at random places of a file, and syncs them.
func dirtyPages(t *testing.T, name string, n int) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	assert.NilError(t, err)
	info, err := f.Stat()
	assert.NilError(t, err)
	pages := rand.New(rand.NewPCG(1, 2)).Perm(int(info.Size() / 8192))[:n]
	for _, at := range pages {
		_, err := f.WriteAt([]byte(strings.Repeat("x", 8192)), int64(at)*8192)
		assert.NilError(t, err)
	}
	assert.NilError(t, errors.Join(f.Sync(), f.Close()))
}

// Where a copy-up clones, a branch owns the pages that it wrote and not the file, and
// not the 128 KiB around each page that XFS by itself would take.
func TestWrittenPagesAreWhatABranchOwns(t *testing.T) {
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			const pages = 500
			b := realBench(t, loopMount(t, kind, 1<<30))
			b.sealBig("shop", 256<<20)
			b.mustCreate("b1", "seed", "shop")
			at := b.mount("b1", "id")
			before := b.freshOwned("b1")
			dirtyPages(t, filepath.Join(at, bigFile), pages)
			grown := b.freshOwned("b1") - before
			t.Logf("%d pages of 8 KiB: %d KiB owned", pages, grown>>10)
			assert.Check(t, grown >= pages*8192 && grown < pages*8192*11/10+64<<10, "%d KiB", grown>>10)
		})
	}
}

const bigFile = "base/5/16384"

// sealBig seals a seed with one relation file of that size.
func (b *bench) sealBig(name string, bytes int64) {
	b.t.Helper()
	staging := "stage-" + newID()
	tree := b.stage(staging, name, nil)
	f, err := os.Create(filepath.Join(tree, contract.StagingRoot, bigFile))
	assert.NilError(b.t, err)
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{}), bytes)
	assert.NilError(b.t, errors.Join(err, f.Sync(), f.Close()))
	b.sealStaging(staging)
}

// freshOwned gives what a branch owns now, with nothing left to write out.
func (b *bench) freshOwned(name string) int64 {
	b.t.Helper()
	f, err := b.d.store.root.Open(".")
	assert.NilError(b.t, err)
	_, _, errno := unix.Syscall(unix.SYS_SYNCFS, f.Fd(), 0, 0)
	assert.Equal(b.t, errno, unix.Errno(0))
	assert.NilError(b.t, f.Close())
	b.d.usage.forget(b.volume(name).id)
	b.status(name)
	var owned int64
	for range 200 {
		time.Sleep(5 * time.Millisecond)
		if owned = b.status(name).OwnedBytes; owned > 0 {
			break
		}
	}
	return owned
}

// account gives what a branch has allocated since this was called, by the file system's
// own word: the blocks that are no longer free, and on btrfs, which gives out blocks in
// chunks, what its tool says of the upper. inside tells that what is shared is shared
// within the upper alone, which that tool does not call exclusive. It counts as every
// tool of btrfs does: an extent of which a part was cut off stays allocated whole, and
// that part is nobody's.
func account(t *testing.T, kind, at, upper string) func(inside bool) int64 {
	used := func(inside bool) int64 {
		if kind == "btrfs" {
			fields := strings.Fields(run(t, "btrfs", "filesystem", "du", "-s", "--raw", upper))
			sum := number(t, fields[len(fields)-3])
			if inside {
				sum += number(t, fields[len(fields)-2])
			}
			return sum
		}
		var s unix.Statfs_t
		assert.NilError(t, unix.Statfs(at, &s))
		return int64(s.Blocks-s.Bfree) * s.Bsize
	}
	before := used(false)
	return func(inside bool) int64 { return used(inside) - before }
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	assert.NilError(t, err)
	return n
}

// A workload's every step leaves the owned bytes within a hundredth of the file system's
// own account.
func TestOwnedBytesAgreeWithTheFileSystem(t *testing.T) {
	for _, kind := range sortedKeys(fileSystems) {
		t.Run(kind, func(t *testing.T) {
			disk := loopMount(t, kind, 1<<30)
			b := realBench(t, disk)
			b.sealBig("shop", 128<<20)
			b.d.checkFileSystem("test")
			b.mustCreate("b1", "seed", "shop")
			at := b.mount("b1", "id")
			empty := b.freshOwned("b1")
			word := account(t, kind, disk, b.path(b.volume("b1").tree()))
			big := filepath.Join(at, bigFile)
			steps := []struct {
				name   string
				inside bool
				do     func()
			}{
				{"copy up and write a page", false, func() { dirtyPages(t, big, 1) }},
				{"write a hundredth of the pages", false, func() { dirtyPages(t, big, 160) }},
				{"write all of it", true, func() { overwrite(t, big, 128<<20) }},
				{"a new file of 40 MiB", true, func() { overwrite(t, filepath.Join(at, "base/5/20000"), 40<<20) }},
				{"allocate without writing", true, func() { allocate(t, filepath.Join(at, "base/5/20000"), 60<<20) }},
				{"truncate it to 10 MiB", true, func() { assert.NilError(t, os.Truncate(filepath.Join(at, "base/5/20000"), 10<<20)) }},
				{"copy it as Postgres 18 does", true, func() {
					copyRange(t, filepath.Join(at, "base/5/20001"), filepath.Join(at, "base/5/20000"))
				}},
				{"remove the seed's file", true, func() { assert.NilError(t, os.Remove(big)) }},
			}
			for _, step := range steps {
				step.do()
				// XFS frees the blocks of what was removed a little later (fs/xfs/xfs_icache.c,
				// xfs_inodegc_worker).
				var owned, want int64
				for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
					owned, want = b.freshOwned("b1")-empty, word(step.inside)
					if agree(owned, want) || time.Now().After(end) {
						break
					}
				}
				t.Logf("%-32s owned %9d KiB, the file system says %9d KiB", step.name, owned>>10, want>>10)
				if !agree(owned, want) {
					t.Errorf("%s: owned %d, the file system says %d", step.name, owned, want)
				}
			}
		})
	}
}

// agree tells whether two figures are within a hundredth of each other, or what the file
// system's own trees may take.
func agree(owned, want int64) bool {
	off := owned - want
	return max(off, -off) <= max(want/100, 256<<10)
}

// overwrite writes a file's first bytes anew, making it where it is not there.
func overwrite(t *testing.T, name string, bytes int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	assert.NilError(t, err)
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{1}), bytes)
	assert.NilError(t, errors.Join(err, f.Sync(), f.Close()))
}

func allocate(t *testing.T, name string, bytes int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	assert.NilError(t, err)
	assert.NilError(t, errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, bytes), f.Close()))
}

// copyRange copies a file with copy_file_range, which clones where that can be.
func copyRange(t *testing.T, to, from string) {
	t.Helper()
	in, err := os.Open(from)
	assert.NilError(t, err)
	out, err := os.Create(to)
	assert.NilError(t, err)
	_, err = io.Copy(out, in)
	assert.NilError(t, errors.Join(err, in.Close(), out.Close()))
}
