package settle

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// walDir is pg_wal, below PGDATA.
const walDir = "pg_wal"

// headPages is how many pages of the last segment may hold data: after a switch of
// segments and a shutdown checkpoint it is the first, and the second where the
// background writer logged a snapshot in between.
const headPages = 2

// segmentName matches a WAL segment and a partial one; timeline histories are not
// among them, and stay.
var segmentName = pattern(`^[0-9A-F]{24}(\.partial|\.[0-9A-F]{8}\.backup)?$`)

// trimWAL leaves the segment of the last checkpoint's redo as the only one in
// pg_wal and turns its zero tail into a hole. It returns the segment's path below
// PGDATA.
func trimWAL(root *os.Root, c controlData, a account) (string, error) {
	head := walDir + "/" + c.redoFile
	entries, err := fs.ReadDir(root.FS(), walDir)
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		if entry.Name() == c.redoFile || entry.IsDir() || !removableWAL(entry.Name()) {
			continue
		}
		if err := root.Remove(walDir + "/" + entry.Name()); err != nil {
			return "", err
		}
	}
	return head, punch(root, head, c.segmentSize, headPages*c.blockSize, a)
}

// removableWAL says whether a file of pg_wal is a segment or a leftover of making one.
func removableWAL(name string) bool {
	return segmentName().MatchString(name) || len(name) > 8 && name[:8] == "xlogtemp"
}

// punch replaces a segment by a sparse copy of it, after it has seen that the copy
// reads the same. All data must lie in its first keep bytes.
func punch(root *os.Root, name string, size, keep int64, a account) error {
	segment, err := root.Open(name)
	if err != nil {
		return err
	}
	defer segment.Close()
	info, err := segment.Stat()
	if err != nil {
		return err
	}
	if info.Size() != size {
		return fmt.Errorf("%s is %d bytes long, not %d", name, info.Size(), size)
	}
	end, err := dataEnd(segment)
	if err != nil {
		return err
	}
	if end > keep {
		return fmt.Errorf("%s holds data up to byte %d; a settled seed's ends before %d", name, end, keep)
	}
	temp := walDir + "/pgoverlay.tmp"
	if err := writeSparse(root, temp, segment, min(keep, size), size, a); err != nil {
		_ = root.Remove(temp)
		return err
	}
	return root.Rename(temp, name)
}

func writeSparse(root *os.Root, temp string, segment io.ReaderAt, keep, size int64, a account) error {
	out, err := root.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, io.NewSectionReader(segment, 0, keep)); err != nil {
		return err
	}
	if err := out.Truncate(size); err != nil {
		return err
	}
	if a.drop {
		if err := out.Chown(a.uid, a.gid); err != nil {
			return err
		}
	}
	if err := out.Sync(); err != nil {
		return err
	}
	return sameBytes(io.NewSectionReader(segment, 0, size), io.NewSectionReader(out, 0, size))
}

const readSize = 1 << 20

// dataEnd is the offset after the last byte that is not zero.
func dataEnd(r io.Reader) (int64, error) {
	buf, zeros := make([]byte, readSize), make([]byte, readSize)
	var at, end int64
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 && !bytes.Equal(buf[:n], zeros[:n]) {
			end = at + int64(len(bytes.TrimRight(buf[:n], "\x00")))
		}
		at += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return end, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// sameBytes compares two readers of the same length.
func sameBytes(a, b io.Reader) error {
	bufA, bufB := make([]byte, readSize), make([]byte, readSize)
	for {
		n, errA := io.ReadFull(a, bufA)
		m, errB := io.ReadFull(b, bufB)
		if n != m || !bytes.Equal(bufA[:n], bufB[:m]) {
			return errors.New("the sparse copy of the WAL segment differs from it")
		}
		if errors.Is(errA, io.EOF) || errors.Is(errA, io.ErrUnexpectedEOF) {
			return nil
		}
		if err := errors.Join(errA, errB); err != nil {
			return err
		}
	}
}
