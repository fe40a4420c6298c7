package dumpfile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
	"gotest.tools/v3/assert"
)

// archive is the header that WriteHead in pg_backup_archiver.c writes.
func archive(minor, format byte, database, source, tool string) []byte {
	b := []byte("PGDMP")
	b = append(b, 1, minor, 0, 4, 8, format)
	number := func(n int32) {
		sign := byte(0)
		if n < 0 {
			sign, n = 1, -n
		}
		b = append(b, sign)
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	if minor >= 15 {
		b = append(b, 1)
	} else {
		number(-1)
	}
	for i := range int32(7) {
		number(i)
	}
	for _, s := range []string{database, source, tool} {
		number(int32(len(s)))
		b = append(b, s...)
	}
	return append(b, 0, 0, 0)
}

func gzipped(t *testing.T, text []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(text)
	assert.NilError(t, err)
	assert.NilError(t, w.Close())
	return b.Bytes()
}

func TestRead(t *testing.T) {
	plain := []byte("--\n-- PostgreSQL database dump\n--\n\n-- Dumped from database version 15.8 (Debian 15.8-1)\n-- Dumped by pg_dump version 17.5\n")
	custom := archive(16, 1, "shop", "17.5 (Debian)", "18.0")
	var tarred bytes.Buffer
	w := tar.NewWriter(&tarred)
	toc := archive(14, 3, "shop", "13.2", "15.1")
	assert.NilError(t, w.WriteHeader(&tar.Header{Name: "toc.dat", Size: int64(len(toc)), Mode: 0o600, Format: tar.FormatUSTAR}))
	_, err := w.Write(toc)
	assert.NilError(t, err)
	encoder, err := zstd.NewWriter(nil)
	assert.NilError(t, err)
	for name, c := range map[string]struct {
		head  []byte
		want  Head
		major int
	}{
		"plain":             {plain, Head{Format: Plain, Source: "15.8 (Debian 15.8-1)", Tool: "17.5"}, 15},
		"plain, by hand":    {[]byte("CREATE TABLE t ();"), Head{Format: Plain}, 0},
		"Windows' lines":    {bytes.ReplaceAll(plain, []byte("\n"), []byte("\r\n")), Head{Format: Plain, Source: "15.8 (Debian 15.8-1)", Tool: "17.5"}, 15},
		"gzip":              {gzipped(t, plain), Head{Format: Plain, Compression: Gzip, Source: "15.8 (Debian 15.8-1)", Tool: "17.5"}, 15},
		"zstd":              {encoder.EncodeAll(custom, nil), Head{Format: Custom, Compression: Zstd, Source: "17.5 (Debian)", Tool: "18.0", Database: "shop", Archive: 16}, 17},
		"custom":            {custom, Head{Format: Custom, Source: "17.5 (Debian)", Tool: "18.0", Database: "shop", Archive: 16}, 17},
		"table of contents": {archive(15, 3, "x", "9.6.24", "16.0"), Head{Format: Directory, Source: "9.6.24", Tool: "16.0", Database: "x", Archive: 15}, 9},
		"tar":               {tarred.Bytes(), Head{Format: Tar, Source: "13.2", Tool: "15.1", Database: "shop", Archive: 14}, 13},
	} {
		got, err := Read(c.head)
		assert.NilError(t, err, name)
		assert.DeepEqual(t, got, c.want)
		assert.Equal(t, got.SourceMajor(), c.major, name)
	}
	for minor, want := range map[int]int{0: 0, 14: 0, 15: 16, 16: 17, 17: 20} {
		assert.Equal(t, Head{Archive: minor, Tool: "20.1"}.ReaderMajor(), want)
	}
}

func TestReadRefuses(t *testing.T) {
	var other bytes.Buffer
	w := tar.NewWriter(&other)
	assert.NilError(t, w.WriteHeader(&tar.Header{Name: "dump/toc.dat", Size: 600, Mode: 0o600, Format: tar.FormatUSTAR}))
	_, err := w.Write(make([]byte, 600))
	assert.NilError(t, err)
	whole := archive(16, 1, "shop", "17.5", "17.5")
	for head, want := range map[string]string{
		"":                                  "empty",
		" \n\n":                             "empty",
		"\xff\xfeC\x00R\x00":                "UTF-16",
		"\xfd7zXZ\x00abc":                   "xz",
		"\x04\x22\x4d\x18abc":               "lz4",
		"BZh9":                              "bzip2",
		"-- MySQL dump 10.13":               "MySQL",
		"abc\x00def":                        "neither",
		"\x1f\x8bgarbage":                   "damaged",
		string(gzipped(t, []byte("BZh91"))): "bzip2",
		other.String():                      "dump/toc.dat",
		string(whole[:30]):                  "cut off",
		string(whole[:8]):                   "cut off",
		"PGDMP\x02\x00\x00\x04\x08\x01":     "unknown kind",
		"PGDMP\x01\x10\x00\x04\x08\x09":     "unknown kind",
	} {
		_, err := Read([]byte(head))
		var refusal *Refusal
		assert.Assert(t, errors.As(err, &refusal), "%q: %v", head, err)
		assert.ErrorContains(t, err, want)
	}
}

func TestFrames(t *testing.T) {
	for _, size := range []int{0, 1, frameBytes - 1, frameBytes, frameBytes + 1, 3 * frameBytes} {
		text := strings.Repeat("x", size)
		var wire bytes.Buffer
		readErr, writeErr := Send(&wire, iotest.HalfReader(strings.NewReader(text)))
		assert.NilError(t, errors.Join(readErr, writeErr))
		wire.WriteString("after")
		r := bytes.NewReader(wire.Bytes())
		got, err := io.ReadAll(Receive(r))
		assert.NilError(t, err)
		assert.Equal(t, string(got), text)
		rest, _ := io.ReadAll(r)
		assert.Equal(t, string(rest), "after")
		// Without its last frame it is no dump, however much has come.
		for _, cut := range []int{0, 1, wire.Len() - len("after") - 1} {
			if cut < wire.Len() {
				_, err = io.ReadAll(Receive(bytes.NewReader(wire.Bytes()[:max(cut, 0)])))
				assert.ErrorIs(t, err, ErrGone)
			}
		}
	}
	broken := errors.New("broken")
	readErr, writeErr := Send(io.Discard, io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)))
	assert.ErrorIs(t, readErr, broken)
	assert.NilError(t, writeErr)
}
