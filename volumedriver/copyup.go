package volumedriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// copyUpFile is the file below the data root that keeps the answer of the last copy-up
// probe.
const copyUpFile = "copyup.json"

// copyUpBytes is the size of the file that the probe has copied up: more than what a
// file system keeps inside an inode or writes in one piece.
const copyUpBytes = 64 << 20

// copyUpMeta is copyup.json. The answer holds as long as the file system and the
// kernel are those that gave it.
type copyUpMeta struct {
	Format     int    `json:"format"`
	FileSystem string `json:"fileSystem"`
	Kernel     string `json:"kernel"`
	// Mode is one of the CopyUp* constants.
	Mode string `json:"mode"`
	// Bytes is the file's size, and Shared how many of them the copy shared.
	Bytes  int64     `json:"bytes"`
	Shared int64     `json:"shared"`
	Millis int64     `json:"copyUpMillis"`
	Probed time.Time `json:"probed"`
}

// probeCopyUp finds out what a copy-up costs here, by having the kernel do one, and
// remembers it. Whether FICLONE works, which checkFileSystem asks because it takes no
// time, says only what the kernel might do: the copy-up decides for itself
// (fs/overlayfs/copy_up.c, ovl_copy_up_file).
func (d *Driver) probeCopyUp(ctx context.Context) {
	identity, err := fileSystemIdentity(d.store.path)
	if err != nil {
		d.log.Warn("cannot tell what file system the data root is on", "error", err)
		return
	}
	var known copyUpMeta
	err = readMeta(d.store.root, copyUpFile, &known)
	if err == nil && known.Format == storeFormat && known.FileSystem == identity && known.Kernel == kernelRelease() {
		d.probe.correct(known.Mode)
		return
	}
	m, err := d.tryCopyUp(ctx)
	if err != nil {
		// As on a disk that is nearly full. FICLONE's word stands, and the next start asks again.
		d.log.Warn("cannot try a copy-up", "error", err)
		return
	}
	m.Format, m.FileSystem, m.Kernel, m.Probed = storeFormat, identity, kernelRelease(), time.Now().UTC()
	d.probe.correct(m.Mode)
	d.log.Info("tried a copy-up", "mode", m.Mode, "bytes", m.Bytes, "shared", m.Shared, "ms", m.Millis)
	if err := writeMeta(d.store.root, copyUpFile, m); err != nil {
		d.log.Warn("cannot keep the copy-up mode", "error", err)
	}
}

// fileSystemIdentity names the file system at a path. What f_fsid is differs: of ext4
// and btrfs it is made of the UUID, of XFS of the device.
func fileSystemIdentity(at string) (string, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(at, &s); err != nil {
		return "", os.NewSyscallError("statfs", err)
	}
	return fmt.Sprintf("%x-%08x%08x-%d", s.Type, uint32(s.Fsid.Val[0]), uint32(s.Fsid.Val[1]), int64(s.Blocks)*s.Bsize), nil
}

// tryCopyUp has a file of copyUpBytes copied up in an overlay of its own.
func (d *Driver) tryCopyUp(ctx context.Context) (copyUpMeta, error) {
	m := copyUpMeta{Bytes: copyUpBytes}
	id, err := d.store.makeDir(draftDir)
	if err != nil {
		return m, err
	}
	dir := path.Join(draftDir, id)
	defer func() {
		if err := d.store.discard(dir); err != nil {
			d.log.Warn("cannot drop what a probe made", "path", dir, "error", err)
		}
	}()
	for _, name := range []string{"lower", upperDir, workDir} {
		if err := d.store.root.Mkdir(path.Join(dir, name), 0o700); err != nil {
			return m, err
		}
	}
	if err := d.fillProbe(ctx, path.Join(dir, "lower", "data")); err != nil {
		return m, err
	}
	target := filepath.Join(d.cfg.MountRoot, id)
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return m, err
	}
	defer d.unmountTarget(id, true)
	plan := overlayPlan{
		Lower: []string{d.store.host(dir, "lower")},
		Upper: d.store.host(dir, upperDir), Work: d.store.host(dir, workDir),
	}
	if err := d.mounter.Overlay(plan, target); err != nil {
		return m, err
	}
	start := time.Now()
	f, err := os.OpenFile(filepath.Join(target, "data"), os.O_RDWR, 0)
	if err != nil {
		return m, err
	}
	m.Millis = time.Since(start).Milliseconds()
	if err := f.Close(); err != nil {
		return m, err
	}
	err = d.judgeCopyUp(&m, path.Join(dir, upperDir, "data"))
	return m, err
}

// fillProbe writes a file of copyUpBytes that no file system stores in less.
func (d *Driver) fillProbe(ctx context.Context, name string) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(d.store.path, &disk); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	// Room for the file, its copy, and as much again for those who need it now.
	if free := int64(disk.Bavail) * disk.Bsize; free < 4*copyUpBytes {
		return fmt.Errorf("%d MiB are free, which is too little to try it with", free>>20)
	}
	f, err := d.store.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(buf) // never fails
	for written := 0; written < copyUpBytes; written += len(buf) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := f.Write(buf); err != nil {
			return err
		}
	}
	return f.Close()
}

// judgeCopyUp says whether the copy shares its blocks with the original.
func (d *Driver) judgeCopyUp(m *copyUpMeta, name string) error {
	f, info, err := openRegular(d.store.root, name)
	if err != nil {
		return fmt.Errorf("nothing was copied up: %w", err)
	}
	defer f.Close()
	if info.Size() != m.Bytes {
		return fmt.Errorf("the copy has %d bytes of %d", info.Size(), m.Bytes)
	}
	if m.Shared, err = sharedBytes(f, true); err != nil {
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOTTY) {
			return err
		}
		m.Shared = 0 // a file system without extents to ask for shares none
	}
	m.Mode = contract.CopyUpCopy
	if m.Shared >= m.Bytes/2 {
		m.Mode = contract.CopyUpClone
	}
	return nil
}
