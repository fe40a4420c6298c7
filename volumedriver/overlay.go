package volumedriver

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// overlayPlan is one overlay mount.
type overlayPlan struct {
	// Lower are the read-only layers, topmost first. The seed comes before the runtime
	// layer: with index=on, where it may open files by handle, the kernel stores the
	// identity of the first lower's root in the upper and answers ESTALE when it has
	// changed (fs/overlayfs/super.c, ovl_get_indexdir), so a runtime layer in front would
	// strand every branch at the first upgrade of the plugin.
	Lower []string
	Upper string
	Work  string
	// Probe is a mount that is undone at once, to learn whether it can be made. It is
	// read-only: the end of a writable one would write out all that is dirty on the disk
	// of the data root, whoever wrote it (fs/overlayfs/super.c, ovl_sync_fs).
	Probe bool

	// preload identifies the preload configuration among the lower layers.
	preload string
	// runtime are the runtime layers among them, as folders below the data root.
	runtime []string
}

// probe gives the plan of a Probe.
func (p overlayPlan) probe() overlayPlan {
	p.Probe = true
	return p
}

// maxOverlayOptions is what mount(2) takes: one page with a final zero byte.
const maxOverlayOptions = 4095

// options gives the mount options. They are explicit, since each has a module
// parameter that a host may have set otherwise:
//
//   - index=on makes a second mount of an upper in use fail with EBUSY instead of
//     corrupting it (fs/overlayfs/super.c, ovl_report_in_use). That comes before the
//     kernel falls back to index=off because this process may not open files by handle,
//     for which it would need CAP_DAC_READ_SEARCH (fs/overlayfs/util.c,
//     ovl_can_decode_fh), so it holds in the plugin too, and the mount table does not
//     show it. What the fallback costs is that a lower file with several names is copied
//     once for each;
//   - metacopy=on makes a chown by an image with another uid cost an inode and not the
//     file (fs/overlayfs/copy_up.c, ovl_need_meta_copy_up);
//   - redirect_dir=on is what metacopy needs to find the data of a renamed file.
func (p overlayPlan) options() (string, error) {
	o := "lowerdir=" + strings.Join(p.Lower, ":") +
		",upperdir=" + p.Upper + ",workdir=" + p.Work +
		",index=on,metacopy=on,redirect_dir=on"
	if len(o) > maxOverlayOptions {
		return "", errors.New("too many layers for one mount: a branch of a branch of a branch … is too deep")
	}
	return o, nil
}

// mountHint gives what to do about an error of an overlay mount.
func mountHint(err error, name string) (cause, hint string) {
	switch {
	case errors.Is(err, unix.EBUSY):
		return "containers from before the plugin was last restarted still hold it",
			"stop them, then try again; they are listed by: docker ps --filter volume=" + name
	case errors.Is(err, unix.ESTALE):
		return "its layers are not the files that they were made from",
			"the data root was copied from another disk with other inodes; go back to the original, or make the branch again"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "the disk of the data root is full", "remove branches that are not needed: docker pgbranch rm BRANCH"
	case errors.Is(err, unix.EROFS):
		return "the disk of the data root is read-only", "see the kernel's log on the engine's host: dmesg"
	case errors.Is(err, unix.ENODEV):
		return "the engine's kernel has no overlay file system", "load it: modprobe overlay"
	}
	return "the kernel refuses the overlay mount", "the kernel's log on the engine's host says why: dmesg | grep overlayfs"
}
