package volumedriver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"gotest.tools/v3/assert"
)

// A plugin that a restart does not mend stays, and one whose last restarts are long ago
// may try again.
func TestRestartsAreCounted(t *testing.T) {
	b := newBench(t)
	now := time.Now()
	assert.Check(t, b.d.noteRestart(now) < 0, "there is nowhere to keep count")
	dir := t.TempDir()
	b.d.cfg.PinFile = filepath.Join(dir, "store")
	for i := range 2 * reachRestarts {
		assert.Equal(t, b.d.noteRestart(now.Add(time.Duration(i)*time.Second)), min(i, reachRestarts))
	}
	assert.Equal(t, b.d.noteRestart(now.Add(2*reachPeriod)), 0)
	assert.Equal(t, b.d.noteRestart(now.Add(-time.Hour)), 0, "the clock went backwards")
	assert.NilError(t, os.WriteFile(filepath.Join(dir, "restarts"), []byte("\x00 12 x\n"), 0o600))
	assert.Equal(t, b.d.noteRestart(now), 0, "what is damaged counts for nothing")
	b.d.cfg.PinFile = filepath.Join(dir, "gone", "store")
	assert.Check(t, b.d.noteRestart(now) < 0)
}

// One that dockerd starts in the midst of an exit that it handles must be reached before
// it ends, or dockerd disables it.
func TestASecondRestartWaitsToBeReached(t *testing.T) {
	b := newBench(t)
	b.d.cfg.PinFile = filepath.Join(t.TempDir(), "store")
	b.m.room = "" // cut off
	assert.Check(t, b.d.AwaitCutOff(t.Context()), "the first ends at once")
	ended := make(chan bool)
	go func() { ended <- b.d.AwaitCutOff(t.Context()) }()
	select {
	case <-ended:
		t.Fatal("the second ends before anybody has reached it")
	case <-time.After(50 * time.Millisecond):
	}
	close(b.d.reached)
	assert.Check(t, <-ended)
	assert.Check(t, b.d.AwaitCutOff(t.Context()))
	assert.Check(t, !b.d.AwaitCutOff(t.Context()), "the fourth stays")
}
