package volumedriver

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountSource is the first column of a branch in the host's mount table.
const mountSource = "pgoverlay"

// mountFlags are of every mount. A volume of a database holds neither devices nor
// set-user-id programs, and an access time would be a write for every read.
const mountFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME

// KernelMounter mounts for real. It needs CAP_SYS_ADMIN.
type KernelMounter struct{}

// Room implements Mounter, with a tmpfs.
func (KernelMounter) Room(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	mounted, err := mountinfo.Mounted(dir)
	if err != nil || mounted {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	return os.NewSyscallError("mount", unix.Mount(mountSource, dir, "tmpfs", flags, "mode=0711,size=1m"))
}

// Reaches implements Mounter. A mount is propagated to the peers of the one that it is
// made on, and is then in a peer group of its own with those copies. Made a slave it
// gets them as its master; where there are none it becomes private (fs/pnode.c,
// do_make_slave). So one mount, for a moment, tells what no table of this namespace does.
func (m KernelMounter) Reaches(dir string) (bool, error) {
	if there, err := m.Mounted(dir); err != nil || !there {
		return false, err
	}
	probe := filepath.Join(dir, "reach")
	if err := os.Mkdir(probe, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	if err := unix.Mount(mountSource, probe, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=4k"); err != nil {
		return false, os.NewSyscallError("mount", err)
	}
	var mounts []*mountinfo.Info
	err := os.NewSyscallError("mount", unix.Mount("", probe, "", unix.MS_SLAVE, ""))
	if err == nil {
		mounts, err = mountinfo.GetMounts(mountinfo.SingleEntryFilter(probe))
	}
	err = errors.Join(err, m.Unmount(probe), os.Remove(probe))
	return len(mounts) > 0 && strings.Contains(mounts[0].Optional, "master:"), err
}

// Overlay implements Mounter.
func (KernelMounter) Overlay(plan overlayPlan, target string) error {
	options, err := plan.options()
	if err != nil {
		return err
	}
	flags := uintptr(mountFlags)
	if plan.Probe {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount(mountSource, target, "overlay", flags, options); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return nil
}

// Bind implements Mounter. It keeps the source's own flags: a staging volume is
// filled by pg_basebackup, which is not slowed down by anything that they change.
func (KernelMounter) Bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return nil
}

// Unmount implements Mounter. What is mounted inside the volume goes first, since it
// makes the volume itself busy, and a busy mount is detached: dockerd swallows an
// error of Unmount, keeps the id active and sends Mount again at the next start
// (daemon/volumes_unix.go).
func (KernelMounter) Unmount(target string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(target))
	if err != nil {
		return err
	}
	// The table lists what is mounted on before what is mounted on it.
	slices.Reverse(mounts)
	var errs []error
	for _, m := range mounts {
		err := unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		// EINVAL: it was gone already, with the mount above it or by another hand.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, &fs.PathError{Op: "unmount", Path: m.Mountpoint, Err: err})
		}
	}
	return errors.Join(errs...)
}

// Mounted implements Mounter.
func (KernelMounter) Mounted(target string) (bool, error) {
	mounted, err := mountinfo.Mounted(target)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}

// Type implements Mounter.
func (KernelMounter) Type(path string) (int64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	return int64(st.Type), os.NewSyscallError("statfs", err)
}

// Below implements Mounter.
func (KernelMounter) Below(dir string) (map[string]bool, error) {
	dir = filepath.Clean(dir) + "/"
	found := map[string]bool{}
	_, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		if rest, ok := strings.CutPrefix(m.Mountpoint, dir); ok && !strings.Contains(rest, "/") {
			found[rest] = true
		}
		return true, false
	})
	return found, err
}
