package volumedriver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// probeCache remembers that the data root's file system can hold branches. A refusal
// is not remembered, since a person may mend its cause.
type probeCache struct {
	// one lets one probe run at a time.
	one sync.Mutex
	// mu guards what follows.
	mu     sync.Mutex
	passed bool
	mode   string
	// tried tells that mode is what a real copy-up showed, and not just FICLONE's word.
	tried bool
}

// copyUpMode is what the file system does with a whole-file copy-up, empty before the
// first probe.
func (p *probeCache) copyUpMode() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

func (p *probeCache) hasPassed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
}

func (p *probeCache) pass(mode string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed = true
	if !p.tried {
		p.mode = mode
	}
}

// correct replaces the copy-up mode by what a real copy-up showed.
func (p *probeCache) correct(mode string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode, p.tried = mode, true
}

const unfitHint = "move it to ext4, XFS or btrfs on a disk of the engine's host: docker plugin set pgoverlay data.source=DIR"

// checkFileSystem refuses a data root that cannot hold branches, by trying what they
// need: a file system that overlayfs takes for an upper, that gives file types with
// names, and on which a second mount of an upper in use is refused.
func (d *Driver) checkFileSystem(object string) error {
	if d.probe.hasPassed() {
		return nil
	}
	d.probe.one.Lock()
	defer d.probe.one.Unlock()
	if d.probe.hasPassed() {
		return nil
	}
	name := fileSystemOf(d.store.path)
	kind, err := d.mounter.Type(d.store.path)
	if unfit, known := unfitFileSystems[kind]; err == nil && known {
		return refuse(object, fmt.Sprintf("the data root is on %s, which cannot hold branches: %s", unfit.name, unfit.why), unfitHint)
	}
	mode, err := d.tryFileSystem()
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS) {
		return failed(object, "try what the disk of the data root can do", err)
	}
	if err != nil {
		return &Error{Object: object, Err: err, Cause: fmt.Sprintf("the data root is on %s, which cannot hold branches", name), Hint: unfitHint}
	}
	d.probe.pass(mode)
	return nil
}

// tryFileSystem does the trying and gives the copy-up mode.
func (d *Driver) tryFileSystem() (mode string, err error) {
	id, err := d.store.makeDir(draftDir)
	if err != nil {
		return "", err
	}
	dir := path.Join(draftDir, id)
	defer func() {
		if err := d.store.discard(dir); err != nil {
			d.log.Warn("cannot drop what a probe made", "path", dir, "error", err)
		}
	}()
	for _, name := range []string{"lower", upperDir, workDir} {
		if err := d.store.root.Mkdir(path.Join(dir, name), 0o700); err != nil {
			return "", err
		}
	}
	if err := hasFileTypes(d.store.root, dir); err != nil {
		return "", err
	}
	plan := overlayPlan{
		Lower: []string{d.store.host(dir, "lower")},
		Upper: d.store.host(dir, upperDir), Work: d.store.host(dir, workDir), Probe: true,
	}
	if err := d.tryOverlay(plan, id); err != nil {
		return "", err
	}
	return tryClone(d.store.root, dir)
}

// tryOverlay mounts a plan twice; the second must fail. Everything that keeps two
// containers of different lives off one branch rests on that.
func (d *Driver) tryOverlay(plan overlayPlan, id string) error {
	first, second := filepath.Join(d.cfg.MountRoot, id), filepath.Join(d.cfg.MountRoot, newID())
	for _, target := range []string{first, second} {
		if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		defer d.unmountTarget(filepath.Base(target), true)
	}
	if err := d.mounter.Overlay(plan, first); err != nil {
		return fmt.Errorf("overlayfs refuses it as upper: %w", err)
	}
	err := d.mounter.Overlay(plan, second)
	if err == nil {
		return errors.New("nothing stops two mounts of one branch on it")
	}
	if !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("a second mount of an upper gives an error other than EBUSY: %w", err)
	}
	return nil
}

// hasFileTypes checks that names come with file types (d_type), which XFS made with
// ftype=0 does not give. overlayfs only warns about that in the kernel's log, and then
// shows its own whiteouts as files.
func hasFileTypes(root *os.Root, dir string) error {
	f, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 4096)
	n, err := unix.Getdents(int(f.Fd()), buf)
	if err != nil {
		return os.NewSyscallError("getdents64", err)
	}
	if !typedEntries(buf[:n]) {
		return errors.New("names come without file types (on XFS: made with ftype=0)")
	}
	return nil
}

// typedEntries reports whether every struct linux_dirent64 in buf has a type: d_ino and
// d_off of 8 bytes, d_reclen of 2, d_type of 1.
func typedEntries(buf []byte) bool {
	for len(buf) >= 19 {
		length := int(binary.NativeEndian.Uint16(buf[16:]))
		if buf[18] == unix.DT_UNKNOWN {
			return false
		}
		if length == 0 || length > len(buf) {
			break
		}
		buf = buf[length:]
	}
	return true
}

// tryClone tells whether the file system shares the blocks of a copied file, as the
// kernel's copy-up then does too (fs/overlayfs/copy_up.c, ovl_copy_up_file).
func tryClone(root *os.Root, dir string) (mode string, err error) {
	from, err := root.OpenFile(path.Join(dir, "data"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer from.Close()
	if _, err := from.Write([]byte(strings.Repeat("pgoverlay\n", 2*copyBlock/10+1))); err != nil {
		return "", err
	}
	to, err := root.OpenFile(path.Join(dir, "clone"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer to.Close()
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) != nil {
		return contract.CopyUpCopy, nil
	}
	return contract.CopyUpClone, nil
}

// fileSystemOf is the type of the file system at path, as the mount table has it.
func fileSystemOf(path string) string {
	path = filepath.Clean(path)
	best, kind := -1, "an unknown file system"
	_, _ = mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		at := strings.TrimSuffix(m.Mountpoint, "/")
		// Of several mounts on one point the last in the table is on top.
		if (path == at || strings.HasPrefix(path, at+"/")) && len(at) >= best {
			best, kind = len(at), m.FSType
		}
		return true, false
	})
	return kind
}
