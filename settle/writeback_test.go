package settle

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
)

func TestWritebackStaysBehindAndCrossesSegments(t *testing.T) {
	s, _ := copyOf(t, map[string]string{"base/5/16384": "x"})
	w := writeback{root: s.root, begun: map[string]int64{}}
	w.upTo("base/5/16384", behind)
	assert.Equal(t, w.begun["base/5/16384"], int64(0), "what VACUUM may still hold")
	w.upTo("base/5/16384", behind+4096)
	assert.Equal(t, w.begun["base/5/16384"], int64(4096))
	w.upTo("base/5/16384", behind+segmentBytes+4096)
	assert.Equal(t, w.begun["base/5/16384"], int64(segmentBytes), "the second segment is not there")
	assert.NilError(t, os.WriteFile(filepath.Join(s.root.Name(), "base/5/16384.1"), nil, 0o600))
	w.upTo("base/5/16384", behind+segmentBytes+4096)
	assert.Equal(t, w.begun["base/5/16384"], int64(segmentBytes+4096))
}
