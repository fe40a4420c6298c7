package volumedriver

import (
	"errors"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// A kernel that fails the self-test makes branches eager, with the reason; what keeps the
// test from running does not; and a pass is remembered for this kernel and disk.
func TestSelfTestDecides(t *testing.T) {
	b := newBench(t)
	runs := 0
	result := error(unfit{"descriptors go stale"})
	b.end()
	b.cfg.SelfTest = func(string) error { runs++; return result }
	b.start()
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	_, err := b.d.Mount(t.Context(), "b1", "id")
	assert.NilError(t, err)
	s := b.status("b1")
	assert.Equal(t, s.CowMode, contract.ModeEager)
	assert.Check(t, is.Contains(s.CowReason, "descriptors go stale"))
	engine, err := b.d.pluginStatus()
	assert.NilError(t, err)
	assert.Equal(t, engine.CowMode, contract.ModeEager)
	assert.Check(t, is.Contains(engine.CowReason, "descriptors go stale"))
	assert.Check(t, is.ErrorContains(b.create("b2", "seed", "shop", "cow", contract.CowFile), "descriptors go stale"))
	assert.Equal(t, runs, 1)

	result = errors.New("no space left on device")
	b.restart()
	engine, err = b.d.pluginStatus()
	assert.NilError(t, err)
	assert.Equal(t, engine.CowMode, contract.ModeLazyRW)
	assert.Equal(t, runs, 2)

	result = nil
	b.d.checkKernel()
	assert.Equal(t, runs, 3, "it could not run before")
	b.restart()
	b.d.checkKernel()
	assert.Equal(t, runs, 3, "it has passed on this kernel and disk")
}
