//go:build e2e

package volumedriver

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
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
