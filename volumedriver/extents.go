package volumedriver

import (
	"errors"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What FIEMAP and the extended attributes of XFS look like in
// include/uapi/linux/{fiemap,fs}.h; golang.org/x/sys has neither.
const (
	fsIocFiemap     = 0xc020660b
	fsIocFSGetXattr = 0x801c581f
	fsIocFSSetXattr = 0x401c5820

	fiemapFlagSync     = 0x1
	fiemapExtentLast   = 0x1
	fiemapExtentShared = 0x2000

	fsXflagCowExtSize = 0x10000
)

// fiemapBatch is how many extents one call asks for.
const fiemapBatch = 128

type fiemapExtent struct {
	Logical, Physical, Length uint64
	_                         [2]uint64
	Flags                     uint32
	_                         [3]uint32
}

type fiemapRequest struct {
	Start, Length        uint64
	Flags, Mapped, Count uint32
	_                    uint32
	Extents              [fiemapBatch]fiemapExtent
}

// extents calls each with every extent of a file. sync writes the file's dirty pages
// out first: without it, what is not written yet has its old extents, or none.
func extents(f *os.File, sync bool, each func(fiemapExtent)) error {
	var flags uint32
	if sync {
		flags = fiemapFlagSync
	}
	for start := uint64(0); ; {
		r := fiemapRequest{Start: start, Length: math.MaxUint64 - start, Flags: flags, Count: fiemapBatch}
		if err := ioctl(f, fsIocFiemap, unsafe.Pointer(&r)); err != nil {
			return err
		}
		if r.Mapped == 0 {
			return nil
		}
		for _, e := range r.Extents[:r.Mapped] {
			each(e)
			if e.Flags&fiemapExtentLast != 0 {
				return nil
			}
			start = e.Logical + e.Length
		}
	}
}

// sharedBytes gives how many bytes of a file lie in extents that another file has, too.
func sharedBytes(f *os.File, sync bool) (int64, error) {
	var sum int64
	err := extents(f, sync, func(e fiemapExtent) {
		if e.Flags&fiemapExtentShared != 0 {
			sum += int64(e.Length)
		}
	})
	return sum, err
}

// fsxattr is struct fsxattr; sizes in bytes.
type fsxattr struct {
	Xflags, ExtSize, Nextents, ProjID, CowExtSize uint32
	_                                             [8]byte
}

// cowExtentBytes is the unit in which XFS gives blocks to a write into shared ones: a
// page of Postgres. Its own default is 32 blocks (fs/xfs/xfs_inode.c,
// xfs_get_cowextsz_hint), so that one row in a page would take 128 KiB.
const cowExtentBytes = 8192

// hintCowExtents makes what is created in a folder, on an XFS that clones, take no more than
// cowExtentBytes for a write into shared blocks. Files and folders inherit
// the hint from the folder they are made in, and a copy-up makes them in the work folder
// (fs/overlayfs/copy_up.c, ovl_copy_up_tmpfile); the clone keeps what its target has
// (fs/xfs/xfs_file.c, xfs_file_remap_range). On other file systems it does nothing.
func hintCowExtents(dir *os.File) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if fs.Type != unix.XFS_SUPER_MAGIC || fs.Bsize > cowExtentBytes {
		return nil
	}
	var x fsxattr
	if err := ioctl(dir, fsIocFSGetXattr, unsafe.Pointer(&x)); err != nil {
		return err
	}
	x.Xflags |= fsXflagCowExtSize
	x.CowExtSize = cowExtentBytes
	err := ioctl(dir, fsIocFSSetXattr, unsafe.Pointer(&x))
	if errors.Is(err, unix.EINVAL) {
		return nil // made without reflink
	}
	return err
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return os.NewSyscallError("ioctl", errno)
	}
}
