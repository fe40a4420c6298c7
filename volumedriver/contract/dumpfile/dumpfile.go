// Package dumpfile tells from the first bytes of a dump what pg_dump, pg_dumpall or a
// compressor has written there, and carries a dump from the command line to the agent.
package dumpfile

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// HeadBytes is how much of a dump Read wants to see: the comments at the head of a
// plain dump, behind what a compressor needs before it gives anything.
const HeadBytes = 256 << 10

// Formats of a dump, by pg_dump's names for them.
const (
	Plain     = "plain"
	Custom    = "custom"
	Tar       = "tar"
	Directory = "directory"
)

// Compressions of a whole file. Those inside of a custom or directory dump are
// pg_restore's business.
const (
	Gzip = "gzip"
	Zstd = "zstd"
)

// Head is what the beginning of a dump says.
type Head struct {
	// Format and Compression are of the constants above; Compression is "" for none.
	Format, Compression string
	// Source is the version of the dumped server and Tool that of pg_dump, as they call
	// themselves: "17.5 (Debian 17.5-1)". Both are "" where the dump does not say.
	Source, Tool string
	// Database is the dumped database's name. Only archives know it.
	Database string
	// Archive is the minor version of the archive's format, 16 for 1.16; 0 for plain SQL.
	Archive int
}

// SourceMajor is the dumped server's major version, 0 where the dump does not say.
func (h Head) SourceMajor() int { return Major(h.Source) }

// Major is the number before the first dot of a version, 0 for none.
func Major(version string) int {
	end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(version)
	}
	n, _ := strconv.Atoi(version[:end])
	return n
}

// ReaderMajor is the least major version whose pg_restore reads the archive (K_VERS_MAX
// in pg_backup_archiver.h), 0 for any, and for plain SQL.
func (h Head) ReaderMajor() int {
	switch {
	case h.Archive <= 14:
		return 0
	case h.Archive == 15:
		return 16
	case h.Archive == 16:
		return 17
	}
	return max(Major(h.Tool), 19)
}

// Refusal says why a file cannot be restored, and what to do about it.
type Refusal struct{ Cause, Hint string }

func (r *Refusal) Error() string { return r.Cause }

func refuse(hint, format string, args ...any) error {
	return &Refusal{Cause: fmt.Sprintf(format, args...), Hint: hint}
}

// foreign are beginnings of files that are no dump that can be restored, or must go
// through another program first.
var foreign = []struct{ magic, what, hint string }{
	{"\x04\x22\x4d\x18", "is compressed with lz4", "lz4 -dc FILE | docker pgbranch seed create SEED --from-dump -"},
	{"\xfd7zXZ\x00", "is compressed with xz", "xz -dc FILE | docker pgbranch seed create SEED --from-dump -"},
	{"BZh", "is compressed with bzip2", "bzip2 -dc FILE | docker pgbranch seed create SEED --from-dump -"},
	{"PK\x03\x04", "is a zip archive", "unzip -p FILE | docker pgbranch seed create SEED --from-dump -"},
	{"\xff\xfe", "is UTF-16, as PowerShell's redirection writes it", "write it with pg_dump --file FILE; a redirection there changes what it holds"},
	{"\xfe\xff", "is UTF-16", "write it with pg_dump --file FILE"},
	{"-- MySQL dump", "is a dump of MySQL", "load it into Postgres first, with pgloader, and dump that"},
	{"-- MariaDB dump", "is a dump of MariaDB", "load it into Postgres first, with pgloader, and dump that"},
	{"SQLite format 3\x00", "is a database of SQLite", "load it into Postgres first, with pgloader, and dump that"},
}

// Read tells what a dump is from its first bytes, at best HeadBytes of them, or all where
// it has fewer.
//
// It fails with a *Refusal.
func Read(head []byte) (Head, error) {
	var h Head
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		h.Compression = Gzip
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		h.Compression = Zstd
	}
	if h.Compression != "" {
		r, err := Decompress(bytes.NewReader(head), h.Compression)
		if err != nil {
			return h, refuse("fetch it again", "it is damaged: %s", err)
		}
		// The head ends in the middle of something.
		clear, err := io.ReadAll(io.LimitReader(r, HeadBytes))
		if r.Close(); len(clear) == 0 && err != nil {
			return h, refuse("fetch it again", "it is damaged, or cut off: %s", err)
		}
		head = clear
	}
	if len(bytes.TrimSpace(head)) == 0 {
		return h, refuse("see how it was written: pg_dump may have failed", "it is empty")
	}
	for _, f := range foreign {
		if bytes.HasPrefix(head, []byte(f.magic)) {
			return h, refuse(f.hint, "it %s", f.what)
		}
	}
	switch {
	case bytes.HasPrefix(head, []byte(archiveMagic)):
		err := h.readArchive(head)
		if h.Format == Tar {
			// A directory's toc.dat calls itself one of a tar (_CloseArchive in
			// pg_backup_directory.c).
			h.Format = Directory
		}
		return h, err
	case len(head) > 262 && string(head[257:262]) == "ustar":
		return h, h.readTar(head)
	}
	h.readPlain(head)
	if bytes.IndexByte(head, 0) >= 0 {
		return h, refuse("give what pg_dump or pg_dumpall has written", "it is neither SQL nor an archive of pg_dump")
	}
	return h, nil
}

const archiveMagic = "PGDMP"

// tarBlock is the size of the header before each file of a tar.
const tarBlock = 512

func (h *Head) readTar(head []byte) error {
	name, _, _ := strings.Cut(string(head[:100]), "\x00")
	if name != "toc.dat" || len(head) < tarBlock {
		return refuse("for a dump in the directory format unpack it and name the folder; pg_restore knows no other tar",
			"it is a tar whose first file is %q, and not one of pg_dump --format tar", name)
	}
	return h.readArchive(head[tarBlock:])
}

var (
	dumpedFrom = regexp.MustCompile(`(?m)^-- Dumped from database version (.+?)\r?$`)
	dumpedBy   = regexp.MustCompile(`(?m)^-- Dumped by pg_dump version (.+?)\r?$`)
)

func (h *Head) readPlain(head []byte) {
	h.Format = Plain
	if m := dumpedFrom.FindSubmatch(head); m != nil {
		h.Source = string(m[1])
	}
	if m := dumpedBy.FindSubmatch(head); m != nil {
		h.Tool = string(m[1])
	}
}

// SourceOf is the version in a plain dump's comment "Dumped from database version", ""
// for another line.
func SourceOf(comment string) string {
	if m := dumpedFrom.FindStringSubmatch(comment); m != nil {
		return m[1]
	}
	return ""
}

// Formats of an archive as its header numbers them (ArchiveFormat in pg_backup.h).
var archiveFormats = map[byte]string{1: Custom, 3: Tar, 5: Directory}

// readArchive reads the header of an archive (ReadHead in pg_backup_archiver.c).
func (h *Head) readArchive(head []byte) error {
	r := archiveReader{rest: head[min(len(head), len(archiveMagic)):]}
	major, minor := r.byte(), r.byte()
	r.byte() // the revision
	r.intSize = int(r.byte())
	r.byte() // the size of an offset
	format := r.byte()
	h.Format, h.Archive = archiveFormats[format], int(minor)
	if r.failed || !bytes.HasPrefix(head, []byte(archiveMagic)) {
		return refuse("fetch it again", "its header is damaged, or cut off")
	}
	if major != 1 || h.Format == "" || r.intSize < 1 || r.intSize > 8 {
		return refuse("", "it is an archive of an unknown kind, version %d.%d", major, minor)
	}
	if minor >= 15 {
		r.byte() // the compression's algorithm
	} else {
		r.int() // its level
	}
	for range 7 {
		r.int() // the moment, as a struct tm
	}
	h.Database, h.Source, h.Tool = r.string(), r.string(), r.string()
	if r.failed {
		return refuse("fetch it again", "its header is damaged, or cut off")
	}
	return nil
}

// archiveReader reads an archive's numbers and strings (ReadInt and ReadStr in
// pg_backup_archiver.c).
type archiveReader struct {
	rest    []byte
	intSize int
	failed  bool
}

func (r *archiveReader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.failed, n = true, 0
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *archiveReader) byte() byte {
	if b := r.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *archiveReader) int() int {
	sign := r.byte()
	n := 0
	for i, b := range r.take(r.intSize) {
		n |= int(b) << (8 * i)
	}
	if sign != 0 {
		return -n
	}
	return n
}

func (r *archiveReader) string() string {
	n := r.int()
	if n < 0 {
		return "" // a null
	}
	return string(r.take(n))
}

// Decompress reads a dump that is compressed as a whole. It is the reader itself where
// there is nothing to decompress.
func Decompress(r io.Reader, compression string) (io.ReadCloser, error) {
	switch compression {
	case Gzip:
		return gzip.NewReader(r)
	case Zstd:
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(r), nil
}
