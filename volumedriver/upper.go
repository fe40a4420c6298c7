package volumedriver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// copyBlock is the unit in which a sparse copy keeps holes, in bytes: the block size
// of ext4, XFS and btrfs as they are made by default.
const copyBlock = 4096

// maxWALHead bounds what a branch's creation copies, and maxWALScan what it reads for
// that, in bytes. A settled seed's WAL head has a few pages and is a hole after that; of
// a seed that has more, the kernel copies when it is needed.
const (
	maxWALHead = 4 << 20
	maxWALScan = 32 << 20
)

// walHeadOf is the path of a seed's WAL head below its root, empty without one and for a
// seed without a usable manifest.
func walHeadOf(m *contract.Manifest) string {
	if m == nil || m.WALHead == "" {
		return ""
	}
	return path.Join(m.DataDir, m.WALHead)
}

// makeUpper makes an upper and its work folder below dir, empty save for a copy of the
// WAL head where one is named. The root of an overlay takes its owner and mode from the
// upper, and Postgres refuses a PGDATA that is not its own or that others may enter
// (src/backend/utils/init/miscinit.c, checkDataDir). top is the layer below.
func (s *store) makeUpper(dir, top, walHead string) error {
	upper := path.Join(dir, upperDir)
	if err := s.root.Mkdir(path.Join(dir, workDir), 0o700); err != nil {
		return err
	}
	lower, err := s.root.OpenRoot(top)
	if err != nil {
		return err
	}
	defer lower.Close()
	if err := s.root.Mkdir(upper, 0o700); err != nil {
		return err
	}
	for _, name := range []string{path.Join(dir, workDir), upper} {
		if err := s.hintCowExtents(name); err != nil {
			// A branch works without, and owns more after its writes.
			s.log.Warn("cannot set the size of copied extents", "path", name, "error", err)
		}
	}
	to, err := s.root.OpenRoot(upper)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := likeDir(lower, to, "."); err != nil {
		return err
	}
	if walHead == "" {
		return nil
	}
	return placeWALHead(lower, to, walHead)
}

func (s *store) hintCowExtents(name string) error {
	f, err := s.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(hintCowExtents(f), f.Close())
}

// placeWALHead puts a sparse copy of the seed's one WAL segment into the upper, with
// the folders above it. Left to itself the kernel would copy it up at the first write
// to the branch, and round what it copies up to 1 MiB (fs/overlayfs/copy_up.c,
// ovl_copy_up_file). Folders of one name merge, whoever made the upper one.
func placeWALHead(lower, upper *os.Root, name string) error {
	from, info, err := openRegular(lower, name)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := likeParents(lower, upper, path.Dir(name)); err != nil {
		return err
	}
	to, err := upper.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = copySparse(to, from, info.Size(), maxWALHead)
	if err == nil {
		err = likeFile(to, info)
	}
	if err == nil {
		err = to.Sync()
	}
	err = errors.Join(err, to.Close())
	if err == nil {
		// The time comes last, since a write changes it.
		err = upper.Chtimes(name, info.ModTime(), info.ModTime())
	}
	if errors.Is(err, errTooMuch) {
		return upper.Remove(name)
	}
	return err
}

// likeParents makes the folder dir and those above it as they are in lower.
func likeParents(lower, upper *os.Root, dir string) error {
	if dir == "." {
		return nil
	}
	if err := likeParents(lower, upper, path.Dir(dir)); err != nil {
		return err
	}
	if err := upper.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return likeDir(lower, upper, dir)
}

// likeDir gives the folder dir in upper the owner and mode that it has in lower.
func likeDir(lower, upper *os.Root, dir string) error {
	from, err := openBeneath(lower, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	to, err := openBeneath(upper, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	return errors.Join(likeFile(to, info), to.Close())
}

// likeFile gives f the owner and mode of another. The mode comes last, because a
// change of owner clears set-id bits.
func likeFile(f *os.File, info fs.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t)
	if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	return unix.Fchmod(int(f.Fd()), st.Mode&0o7777)
}

var errTooMuch = errors.New("holds too much data")

// copySparse copies size bytes from one file to another that is empty, leaving out
// holes and blocks of zeros, and gives errTooMuch where the data is more than limit.
// It looks at the bytes since SEEK_DATA also calls data what is allocated and was
// never written, once somebody has read it (mm/filemap.c, mapping_seek_hole_data).
func copySparse(to, from *os.File, size, limit int64) error {
	if err := to.Truncate(size); err != nil {
		return err
	}
	fd := int(from.Fd())
	copied, scanned := int64(0), int64(0)
	for offset := int64(0); offset < size; {
		start, err := unix.Seek(fd, offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find the data of %s: %w", from.Name(), err)
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find the data of %s: %w", from.Name(), err)
		}
		if scanned += end - start; scanned > maxWALScan {
			return errTooMuch
		}
		n, err := copyBlocks(to, from, start-start%copyBlock, end, limit-copied)
		if err != nil {
			return err
		}
		copied += n
		offset = end
	}
	return nil
}

// copyBlocks copies the blocks that are not zero from start to end, and gives how
// many bytes it copied.
func copyBlocks(to, from *os.File, start, end, limit int64) (copied int64, err error) {
	var zero, buf [copyBlock]byte
	for at := start; at < end; at += copyBlock {
		n, err := from.ReadAt(buf[:], at)
		if err != nil && err != io.EOF {
			return copied, err
		}
		if n == 0 || bytes.Equal(buf[:n], zero[:n]) {
			continue
		}
		if copied += int64(n); copied > limit {
			return copied, errTooMuch
		}
		if _, err := to.WriteAt(buf[:n], at); err != nil {
			return copied, err
		}
	}
	return copied, nil
}
