//go:build e2e

package volumedriver

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// The kernel passes on every file system that branches live on, and nothing of the test
// stays.
func TestSelfTestOnTheKernel(t *testing.T) {
	onEach(t, func(t *testing.T, b *bench) {
		b.d.checkKernel()
		assert.NilError(t, b.d.kernelVerdict())
		assert.Check(t, b.d.kernel.done)
		_, err := os.Lstat(b.path(selfTestFile))
		assert.NilError(t, err, "a pass is remembered")
		drafts, err := os.ReadDir(b.path(draftDir))
		assert.NilError(t, err)
		assert.Equal(t, len(drafts), 0)
		s, err := b.d.pluginStatus()
		assert.NilError(t, err)
		assert.Equal(t, s.CowMode, contract.ModeLazyRW)
	})
}

// What the test looks for it also finds missing: here a file that was replaced under the
// name, as a copy-up looks to a descriptor from before where the kernel does not follow.
func TestSelfTestFindsStaleDescriptors(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	assert.NilError(t, os.WriteFile(name, bytes.Repeat([]byte{'a'}, testSize), 0o600))
	old, err := os.Open(name)
	assert.NilError(t, err)
	defer old.Close()
	assert.NilError(t, os.WriteFile(name+".new", bytes.Repeat([]byte{'b'}, testSize+copyBlock), 0o600))
	assert.NilError(t, os.Rename(name+".new", name))
	now, err := os.Open(name)
	assert.NilError(t, err)
	defer now.Close()
	for _, err := range []error{
		sameFile(old, now),
		expect(old, 0, 'b', testSize, "after a write"),
		expect(old, 0, 'a', testSize+copyBlock, "after the file grew"),
	} {
		_, isVerdict := err.(unfit)
		assert.Check(t, is.Equal(isVerdict, true), "%v", err)
	}
}
