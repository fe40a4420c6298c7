package volumedriver

// Mounter is what the driver asks of the kernel. Every verb is tested without root
// with one that only keeps a table.
type Mounter interface {
	// Room makes dir a mount of its own, for the folders that volumes are mounted on. One
	// that is there already is kept.
	Room(dir string) error
	// Reaches reports whether what is mounted below dir, which Room made, is mounted
	// elsewhere as well: in the mount namespace of the host.
	Reaches(dir string) (bool, error)
	// Overlay mounts a plan at target, a folder that exists. It gives an error that is
	// unix.EBUSY where another mount, in whatever mount namespace, holds the upper.
	Overlay(plan overlayPlan, target string) error
	// Bind mounts the folder source at target.
	Bind(source, target string) error
	// Unmount removes everything mounted at target and below, and the last mount even
	// where it is busy. A target that is not mounted is no error.
	Unmount(target string) error
	// Mounted reports whether something is mounted at target; a target that does not
	// exist is not mounted.
	Mounted(target string) (bool, error)
	// Type gives the type of the file system at path, as statfs(2) has it in f_type.
	Type(path string) (int64, error)
	// Below lists what is mounted right below the folder dir, by name.
	Below(dir string) (map[string]bool, error)
}
