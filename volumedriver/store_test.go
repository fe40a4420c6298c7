package volumedriver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// A check changes nothing, and says what a start would.
func TestCheckStore(t *testing.T) {
	b := newBench(t)
	id := b.d.StoreID()
	b.end()
	both := func(want string) error {
		t.Helper()
		found, checked := CheckStore(b.cfg.DataRoot, want)
		cfg := b.cfg
		cfg.StoreID = want
		d, err := Open(cfg)
		if err == nil {
			assert.Equal(t, found, d.StoreID())
			d.Close()
		}
		assert.Equal(t, fmt.Sprint(checked), fmt.Sprint(err))
		return checked
	}
	assert.NilError(t, both(id))
	assert.NilError(t, both(""))
	assert.Check(t, is.ErrorContains(both("other"), "is store "+id))
	assert.NilError(t, os.WriteFile(b.path(storeFile), []byte(fmt.Sprintf(`{"format":2,"id":%q}`, id)), 0o600))
	assert.Check(t, is.ErrorContains(both(""), "has format 2, and this plugin knows up to 1"))
	assert.NilError(t, os.RemoveAll(b.cfg.DataRoot))
	assert.Check(t, is.ErrorContains(both(id), "does not exist"))
	none, err := CheckStore(b.cfg.DataRoot, "")
	assert.Check(t, err == nil && none == "")
	_, err = os.Lstat(b.cfg.DataRoot)
	assert.Check(t, os.IsNotExist(err))
}

func TestWipeStore(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	id := b.d.StoreID()
	wipe := func(id string) error { return WipeStore(b.cfg.DataRoot, id, b.cfg.Log) }
	assert.Check(t, is.ErrorContains(wipe(id), "another pgoverlay plugin is using it"))
	b.end()
	assert.Check(t, is.ErrorContains(wipe("other"), "is store "+id))
	// What a later version keeps there goes as well.
	assert.NilError(t, os.WriteFile(b.path("later.json"), nil, 0o600))
	assert.NilError(t, wipe(id))
	_, err := os.Lstat(b.cfg.DataRoot)
	assert.Check(t, os.IsNotExist(err))
	assert.NilError(t, os.Mkdir(b.cfg.DataRoot, 0o700))
	assert.NilError(t, os.Mkdir(b.path(seedsDir), 0o700))
	assert.Check(t, is.ErrorContains(wipe(""), "is no store"), "a folder that only looks like one")
	assert.NilError(t, os.Remove(b.path(seedsDir)))
	assert.NilError(t, os.Remove(b.cfg.DataRoot))
	assert.NilError(t, wipe(id))
}

// A plugin that nobody pinned remembers its store over an upgrade, which points it
// elsewhere: it must not come up on a folder that has another store, or none. A setting
// wins over what it remembers.
func TestAPluginRemembersItsStore(t *testing.T) {
	b := newBench(t)
	id := b.d.StoreID()
	b.end()
	b.cfg.PinFile = filepath.Join(b.dir, "store")
	b.start()
	b.end()
	away := b.cfg
	away.DataRoot = filepath.Join(b.dir, "default")
	_, err := Open(away)
	assert.Check(t, is.ErrorContains(err, "is set up with store "+id))
	_, err = os.Lstat(away.DataRoot)
	assert.Check(t, os.IsNotExist(err))
	away.PinFile = ""
	other, err := Open(away)
	assert.NilError(t, err)
	otherID := other.StoreID()
	other.Close()
	away.PinFile = b.cfg.PinFile
	_, err = Open(away)
	assert.Check(t, is.ErrorContains(err, "is set up with store "+id))
	b.start()
	assert.Equal(t, b.d.StoreID(), id)
	b.end()

	away.StoreID = otherID
	other, err = Open(away)
	assert.NilError(t, err)
	other.Close()
	assert.Equal(t, readPin(away.PinFile), otherID)
	// One that a crash spoilt keeps no plugin from starting.
	assert.NilError(t, os.WriteFile(away.PinFile, []byte("\x00"), 0o600))
	b.start()
	assert.Equal(t, readPin(b.cfg.PinFile), id)
}
