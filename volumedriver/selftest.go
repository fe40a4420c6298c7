package volumedriver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// kernelCheck remembers whether the engine's kernel lets a branch be lazy: whether a
// descriptor that was opened for reading follows its file when somebody copies that up
// (from 4.19 on: fs/overlayfs/file.c, ovl_real_fdget). On a kernel where it does not,
// lazy reads would return what was overwritten.
type kernelCheck struct {
	// one lets one test run at a time.
	one sync.Mutex
	// mu guards what follows.
	mu      sync.Mutex
	done    bool
	verdict error
}

// selfTestFile is the file below the data root that says on what the self-test has
// passed. It is remembered since the end of its overlay writes out all that is dirty on
// the disk of the data root (fs/overlayfs/super.c, ovl_sync_fs); a failure is not, and is
// looked for again at each start.
const selfTestFile = "selftest.json"

// selfTestVersion changes with what the self-test tries.
const selfTestVersion = 1

type selfTestMeta struct {
	Format     int    `json:"format"`
	Test       int    `json:"test"`
	FileSystem string `json:"fileSystem"`
	Kernel     string `json:"kernel"`
}

func (d *Driver) kernelIsKnown(now selfTestMeta) bool {
	var then selfTestMeta
	return readMeta(d.store.root, selfTestFile, &then) == nil && then == now
}

// unfit is the verdict of a self-test that ran; other errors tell that it could not run.
type unfit struct{ what string }

func (u unfit) Error() string { return u.what }

// kernelVerdict is what the self-test found, nil also before it ran.
func (d *Driver) kernelVerdict() error {
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	return d.kernel.verdict
}

// checkKernel runs the self-test where that was not done since the start.
func (d *Driver) checkKernel() {
	d.kernel.one.Lock()
	defer d.kernel.one.Unlock()
	d.kernel.mu.Lock()
	done := d.kernel.done
	d.kernel.mu.Unlock()
	if done {
		return
	}
	identity, err := fileSystemIdentity(d.store.path)
	known := selfTestMeta{Format: storeFormat, Test: selfTestVersion, FileSystem: identity, Kernel: kernelRelease()}
	if err == nil && d.kernelIsKnown(known) {
		d.kernel.mu.Lock()
		defer d.kernel.mu.Unlock()
		d.kernel.done = true
		return
	}
	err = d.testKernel()
	var verdict unfit
	if err != nil && !errors.As(err, &verdict) {
		// A full disk, say: that is no verdict, and the next to ask tries again.
		d.log.Warn("the kernel's self-test could not run", "error", err)
		return
	}
	if err != nil {
		d.log.Warn("branches are eager: the kernel's overlay fails the self-test", "error", err)
	} else if err := writeMeta(d.store.root, selfTestFile, known); err != nil {
		d.log.Warn("cannot remember the self-test", "error", err)
	}
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	d.kernel.done, d.kernel.verdict = true, err
}

// Files of the self-test, of testSize bytes in the lower layer.
const (
	grown    = "grown"
	emptied  = "emptied"
	testSize = 3 * copyBlock
)

// testKernel makes an overlay of its own on the data root and tries there what the shim
// rests on.
func (d *Driver) testKernel() (err error) {
	id, err := d.store.makeDir(draftDir)
	if err != nil {
		return err
	}
	dir := path.Join(draftDir, id)
	defer func() {
		if err := d.store.discard(dir); err != nil {
			d.log.Warn("cannot drop what the self-test made", "path", dir, "error", err)
		}
	}()
	const lower = "lower"
	for _, name := range []string{lower, upperDir, workDir} {
		if err := d.store.root.Mkdir(path.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	for _, name := range []string{grown, emptied} {
		if err := d.store.root.WriteFile(path.Join(dir, lower, name), bytes.Repeat([]byte{'a'}, testSize), 0o600); err != nil {
			return err
		}
	}
	target := filepath.Join(d.cfg.MountRoot, id)
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	plan := overlayPlan{Lower: []string{d.store.host(dir, lower)}, Upper: d.store.host(dir, upperDir), Work: d.store.host(dir, workDir)}
	if err := d.mounter.Overlay(plan, target); err != nil {
		return errors.Join(err, os.Remove(target))
	}
	defer d.unmountTarget(id, true)
	test := d.cfg.SelfTest
	if test == nil {
		test = followsCopyUp
	}
	return test(target)
}

// followsCopyUp tries on an overlay with the files of the self-test whether descriptors
// from before a copy-up see what is written after it: contents, sizes, and by fsync.
func followsCopyUp(merged string) error {
	name := filepath.Join(merged, grown)
	old, err := os.Open(name)
	if err != nil {
		return err
	}
	defer old.Close()
	if err := expect(old, 0, 'a', testSize, "before any write"); err != nil {
		return err
	}
	// As the shim reopens a file: by the descriptor, not by the name.
	w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", old.Fd()), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := sameFile(old, w); err != nil {
		return err
	}
	if _, err := w.WriteAt(bytes.Repeat([]byte{'b'}, copyBlock), copyBlock); err != nil {
		return err
	}
	err = expect(old, 0, 'a', testSize, "beside a write")
	if err == nil {
		err = expect(old, copyBlock, 'b', testSize, "after a write")
	}
	if err == nil && old.Sync() != nil {
		err = unfit{"fsync of a descriptor from before a copy-up fails"}
	}
	if err != nil {
		return err
	}
	if _, err := w.WriteAt(bytes.Repeat([]byte{'c'}, copyBlock), testSize); err != nil {
		return err
	}
	if err := expect(old, testSize, 'c', testSize+copyBlock, "after the file grew"); err != nil {
		return err
	}
	if err := w.Truncate(2 * copyBlock); err != nil {
		return err
	}
	if err := expect(old, copyBlock, 'b', 2*copyBlock, "after a truncation"); err != nil {
		return err
	}
	return followsTruncation(filepath.Join(merged, emptied))
}

// followsTruncation tries the open with O_TRUNC, which copies nothing up.
func followsTruncation(name string) error {
	old, err := os.Open(name)
	if err != nil {
		return err
	}
	defer old.Close()
	w, err := os.OpenFile(name, os.O_RDWR|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := sameFile(old, w); err != nil {
		return err
	}
	if _, err := w.WriteAt(bytes.Repeat([]byte{'d'}, copyBlock), 0); err != nil {
		return err
	}
	return expect(old, 0, 'd', copyBlock, "after it was emptied and written")
}

// expect checks a block, and the size, as a descriptor from before shows them.
func expect(f *os.File, at int64, want byte, size int64, when string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != size {
		return unfit{fmt.Sprintf("a descriptor from before a copy-up shows a size of %d where the file has %d, %s", info.Size(), size, when)}
	}
	got := make([]byte, copyBlock)
	if _, err := f.ReadAt(got, at); err != nil {
		return err
	}
	if !bytes.Equal(got, bytes.Repeat([]byte{want}, copyBlock)) {
		return unfit{"a descriptor from before a copy-up shows other content than the file has, " + when}
	}
	return nil
}

// sameFile checks what the shim checks before it exchanges one descriptor for another.
func sameFile(a, b *os.File) error {
	var sa, sb unix.Stat_t
	if err := errors.Join(unix.Fstat(int(a.Fd()), &sa), unix.Fstat(int(b.Fd()), &sb)); err != nil {
		return err
	}
	if sa.Dev != sb.Dev || sa.Ino != sb.Ino {
		return unfit{"a file has another identity after its copy-up"}
	}
	return nil
}

// cowOfEngine is what cow=auto comes to on this engine, and why where it is not lazy.
func (d *Driver) cowOfEngine() (mode, reason string) {
	if why := d.engineEagerBecause(); why != "" {
		return contract.ModeEager, why
	}
	return contract.ModeLazyRW, ""
}
