package settle

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
)

// The plugin asks for a shared lock (isLocked in volumedriver/refs.go), and keeps the
// volume as long as it does not get one.
func TestAStageIsHeld(t *testing.T) {
	stage := t.TempDir()
	plugin, err := os.Open(stage)
	assert.NilError(t, err)
	defer plugin.Close()
	ask := func() error { return unix.Flock(int(plugin.Fd()), unix.LOCK_SH|unix.LOCK_NB) }

	holdStage(stage)
	assert.ErrorIs(t, ask(), unix.EWOULDBLOCK)
	assert.NilError(t, held.Close())
	held = nil
	assert.NilError(t, ask(), "the lock outlives its holder")

	holdStage(stage) // where another has it, work goes on
	assert.Assert(t, held == nil)
}
