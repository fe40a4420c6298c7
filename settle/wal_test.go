package settle

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"gotest.tools/v3/assert"
)

const testSegment = 1 << 20

// walCopy makes a PGDATA whose pg_wal holds a segment with head at its beginning,
// and what else a copy may have there.
func walCopy(t *testing.T, head []byte) (*os.Root, controlData) {
	t.Helper()
	dir := t.TempDir()
	segment := make([]byte, testSegment)
	copy(segment, head)
	for name, text := range map[string][]byte{
		"000000010000000000000005":                 segment,
		"000000010000000000000004":                 []byte("old"),
		"000000010000000000000006":                 segment,
		"000000020000000000000005.partial":         []byte("partial"),
		"000000010000000000000002.00000028.backup": []byte("label"),
		"00000002.history":                         []byte("history"),
		"xlogtemp.77":                              []byte("temporary"),
		"archive_status/x.done":                    nil,
	} {
		path := filepath.Join(dir, walDir, name)
		assert.NilError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		assert.NilError(t, os.WriteFile(path, text, 0o600))
	}
	root, err := os.OpenRoot(dir)
	assert.NilError(t, err)
	t.Cleanup(func() { root.Close() })
	return root, controlData{redoFile: "000000010000000000000005", segmentSize: testSegment, blockSize: 8192}
}

func TestTrimWAL(t *testing.T) {
	head := bytes.Repeat([]byte("wal"), 1000)
	root, control := walCopy(t, head)
	name, err := trimWAL(root, control, account{})
	assert.NilError(t, err)
	assert.Equal(t, name, "pg_wal/000000010000000000000005")

	entries, err := os.ReadDir(filepath.Join(root.Name(), walDir))
	assert.NilError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.DeepEqual(t, names, []string{"000000010000000000000005", "00000002.history", "archive_status"})

	path := filepath.Join(root.Name(), name)
	text, err := os.ReadFile(path)
	assert.NilError(t, err)
	assert.Equal(t, len(text), testSegment)
	assert.Assert(t, bytes.HasPrefix(text, head))
	assert.Assert(t, len(bytes.Trim(text[len(head):], "\x00")) == 0)
	var st syscall.Stat_t
	assert.NilError(t, syscall.Stat(path, &st))
	assert.Assert(t, st.Blocks*512 <= 2*8192, "%d bytes are allocated", st.Blocks*512)
	assert.Equal(t, st.Mode&0o777, uint32(0o600))
}

func TestTrimWALRefusesDataInTheTail(t *testing.T) {
	head := make([]byte, 2*8192+1)
	head[2*8192] = 1
	root, control := walCopy(t, head)
	_, err := trimWAL(root, control, account{})
	assert.ErrorContains(t, err, "holds data up to byte 16385")
	head[2*8192] = 0
	head[2*8192-1] = 1
	root, control = walCopy(t, head)
	_, err = trimWAL(root, control, account{})
	assert.NilError(t, err)
}

func TestTrimWALRefusesAShortSegment(t *testing.T) {
	root, control := walCopy(t, nil)
	control.segmentSize *= 2
	_, err := trimWAL(root, control, account{})
	assert.ErrorContains(t, err, "bytes long")
	control.redoFile = "000000010000000000000009"
	_, err = trimWAL(root, control, account{})
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestSameBytes(t *testing.T) {
	a := bytes.Repeat([]byte{1}, readSize+10)
	b := bytes.Clone(a)
	assert.NilError(t, sameBytes(bytes.NewReader(a), bytes.NewReader(b)))
	b[readSize+5] = 2
	assert.ErrorContains(t, sameBytes(bytes.NewReader(a), bytes.NewReader(b)), "differs")
	assert.ErrorContains(t, sameBytes(bytes.NewReader(a), bytes.NewReader(a[:readSize])), "differs")
}
