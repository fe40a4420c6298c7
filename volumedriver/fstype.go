package volumedriver

import "golang.org/x/sys/unix"

// unfitFileSystems are those that no data root may be on, by f_type of statfs(2), with
// their names and why. What is not here is tried.
var unfitFileSystems = map[int64]struct{ name, why string }{
	unix.OVERLAYFS_SUPER_MAGIC: {"overlay", "overlayfs takes no other overlay for an upper; this engine may run in a container without a volume for its data"},
	unix.NFS_SUPER_MAGIC:       {"nfs", "overlayfs takes no network file system for an upper"},
	unix.SMB_SUPER_MAGIC:       {"smb", "overlayfs takes no network file system for an upper"},
	unix.SMB2_SUPER_MAGIC:      {"smb", "overlayfs takes no network file system for an upper"},
	unix.CIFS_SUPER_MAGIC:      {"cifs", "overlayfs takes no network file system for an upper"},
	unix.CEPH_SUPER_MAGIC:      {"ceph", "overlayfs takes no network file system for an upper"},
	unix.V9FS_MAGIC:            {"9p", "overlayfs takes no folder that a host shares with its virtual machine for an upper"},
	unix.FUSE_SUPER_MAGIC:      {"fuse or virtiofs", "overlayfs takes no folder that a host shares with its virtual machine, nor FUSE, for an upper"},
	unix.MSDOS_SUPER_MAGIC:     {"vfat", "it has neither owners nor extended attributes"},
	unix.TMPFS_MAGIC:           {"tmpfs", "it lies in memory, and all seeds and branches would be gone with the machine's next start"},
	unix.RAMFS_MAGIC:           {"ramfs", "it lies in memory, and all seeds and branches would be gone with the machine's next start"},
}
