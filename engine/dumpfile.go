package engine

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract/dumpfile"
)

// DumpFile is a dump on the user's machine, open at its beginning.
type DumpFile struct {
	// Name is the file's, without its folder, "-" for standard input.
	Name string
	Head dumpfile.Head
	// Bytes is its size, 0 where that is not known.
	Bytes int64
	// Time is when it was last written, now for standard input.
	Time time.Time

	io.ReadCloser
}

// OpenDump opens a dump and looks at its beginning: a file, a folder in pg_dump's directory
// format, or stdin for "-".
//
// It fails with KindInvalid for a path that cannot be read, and with KindSource for what is
// no dump or must be treated before.
func OpenDump(path string, stdin io.Reader) (*DumpFile, error) {
	d := &DumpFile{Name: path, Time: time.Now().UTC()}
	if path == "-" {
		return d.begin(path, io.NopCloser(stdin))
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, &Error{Kind: KindInvalid, Object: "--from-dump", Err: err, Hint: "name a dump on this machine, or - for standard input"}
	}
	d.Name, d.Time = filepath.Base(path), info.ModTime().UTC()
	if info.IsDir() {
		return d.beginDirectory(path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{Kind: KindInvalid, Object: "--from-dump", Err: err, Hint: "name a file that you may read"}
	}
	if info.Mode().IsRegular() {
		d.Bytes = info.Size()
	}
	return d.begin(path, f)
}

// begin reads the head and leaves it to be read again.
func (d *DumpFile) begin(path string, r io.ReadCloser) (*DumpFile, error) {
	buffered := bufio.NewReaderSize(r, dumpfile.HeadBytes)
	head, err := buffered.Peek(dumpfile.HeadBytes)
	if err != nil && err != io.EOF {
		r.Close()
		return nil, &Error{Kind: KindInvalid, Object: dumpObject(path), Err: err}
	}
	if d.Head, err = dumpfile.Read(head); err == nil && d.Head.Format == dumpfile.Directory {
		err = &dumpfile.Refusal{Cause: "it is the table of contents of a dump in the directory format", Hint: "name the folder that it is in"}
	}
	if err != nil {
		r.Close()
		return nil, refusedDump(path, err)
	}
	d.ReadCloser = struct {
		io.Reader
		io.Closer
	}{buffered, r}
	return d, nil
}

func dumpObject(path string) string { return fmt.Sprintf("dump %q", path) }

func refusedDump(path string, err error) error {
	failure := &Error{Kind: KindSource, Object: dumpObject(path), Cause: err.Error()}
	var refusal *dumpfile.Refusal
	if errors.As(err, &refusal) {
		failure.Hint = refusal.Hint
	}
	return failure
}

// beginDirectory makes a stream of a folder: a tar of its files, of which toc.dat tells
// what the dump is.
func (d *DumpFile) beginDirectory(path string) (*DumpFile, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, &Error{Kind: KindInvalid, Object: "--from-dump", Err: err}
	}
	head, err := root.ReadFile("toc.dat")
	if errors.Is(err, os.ErrNotExist) {
		root.Close()
		return nil, &Error{Kind: KindSource, Object: dumpObject(path), Cause: "the folder has no toc.dat, so it is no dump in the directory format",
			Hint: "name a file or folder that pg_dump has written; a server's data directory is copied by --from, while it runs"}
	}
	if err == nil {
		d.Head, err = dumpfile.Read(head)
	}
	if err == nil && d.Head.Compression != "" || d.Head.Format != dumpfile.Directory && err == nil {
		err = &dumpfile.Refusal{Cause: "its toc.dat is not of the directory format", Hint: "pg_restore knows it by that file; was the folder written by pg_dump --format directory?"}
	}
	if err != nil {
		root.Close()
		return nil, refusedDump(path, err)
	}
	files, err := d.directoryFiles(root)
	if err != nil {
		root.Close()
		return nil, refusedDump(path, err)
	}
	out, in := io.Pipe()
	go func() {
		defer root.Close()
		_ = in.CloseWithError(tarFiles(in, root, files))
	}()
	d.ReadCloser = out
	return d, nil
}

// directoryFiles lists the folder's files, and adds up what their tar will have.
func (d *DumpFile) directoryFiles(root *os.Root) ([]os.FileInfo, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	files, err := dir.Readdir(-1)
	if err != nil {
		return nil, err
	}
	files = slices.DeleteFunc(files, func(f os.FileInfo) bool { return !f.Mode().IsRegular() })
	const block = 512
	d.Bytes = 2 * block
	for _, f := range files {
		d.Bytes += block + (f.Size()+block-1)/block*block
	}
	return files, nil
}

func tarFiles(w io.Writer, root *os.Root, files []os.FileInfo) error {
	out := tar.NewWriter(w)
	for _, info := range files {
		if err := out.WriteHeader(&tar.Header{Name: info.Name(), Size: info.Size(), Mode: 0o600, Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		f, err := root.Open(info.Name())
		if err != nil {
			return err
		}
		_, err = io.Copy(out, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return out.Close()
}
