package volumedriver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func TestPreloadNamesTheShimFromPGDATA(t *testing.T) {
	for dataDir, want := range map[string]string{
		".": ".pgoverlay/lazyrw.so", "18/docker": "../../.pgoverlay/lazyrw.so", "pgdata": "../.pgoverlay/lazyrw.so",
	} {
		conf := preloadConf(&contract.Manifest{DataDir: dataDir}, true)
		assert.Check(t, strings.HasSuffix(conf, "\nshared_preload_libraries = '"+want+"'\n"), conf)
	}
}

// The layer of a lazy branch names the library; that of one made with cow=off names none, and bears the mark that
// keeps a shim inert which its container preloads all the same.
func TestPreloadLayers(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	b.mustCreate("b2", "seed", "shop", "cow", contract.CowOff)
	for name, lazy := range map[string]bool{"b1": true, "b2": false} {
		mountpoint, err := b.d.Mount(t.Context(), name, "id")
		assert.NilError(t, err)
		dir := filepath.Join(b.m.plans[mountpoint].Lower[1], contract.RuntimeDir)
		conf, err := os.ReadFile(filepath.Join(dir, contract.PreloadConf))
		assert.NilError(t, err)
		assert.Equal(t, strings.Contains(string(conf), "shared_preload_libraries"), lazy)
		_, err = os.Lstat(filepath.Join(dir, contract.EagerMark))
		assert.Equal(t, err == nil, !lazy)
	}
}

// What an image with another uid left of an older version's configuration would hide, or break, the new one.
func TestStalePreloadIsDropped(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	v := b.volume("b1")
	conf := preloadID(preloadConf(&contract.Manifest{DataDir: "."}, true))
	dir := b.path(v.tree(), contract.RuntimeDir)
	for name, want := range map[string]bool{
		"preload-" + conf + ".conf": false, "postmaster.pid": false, "preload-000000000000.conf": true,
	} {
		assert.NilError(t, os.RemoveAll(dir))
		assert.NilError(t, os.Mkdir(dir, 0o755))
		assert.NilError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		stale, err := b.d.runtime.isStale(v.tree(), conf)
		assert.NilError(t, err)
		assert.Check(t, is.Equal(stale, want), name)
	}
}
