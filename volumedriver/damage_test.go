package volumedriver

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// TestDamageIsReported damages the metadata of volumes in every way. They stay listed,
// since Docker forgets what Get does not know; they do nothing but go; and nothing that
// they may need goes without them.
func TestDamageIsReported(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("parent", "seed", "shop")
	b.mustCreate("child", "branch", "parent")
	for _, name := range []string{"garbage", "empty", "newer", "missing", "nameless", "whole"} {
		b.mustCreate(name, "seed", "shop")
	}
	b.mustCreate("staging", "staging", "other")
	metaOf := func(name string) string { return b.path(b.volume(name).dir(), metaFile) }
	write := func(name, content string) {
		t.Helper()
		assert.NilError(t, os.WriteFile(metaOf(name), []byte(content), 0o600))
	}
	write("garbage", "{")
	write("empty", "")
	write("newer", `{"format":2,"name":"newer"}`)
	write("staging", "[]")
	write("child", "\x00\x00")
	nameless := damagedName(b.volume("nameless").id)
	assert.NilError(t, os.Remove(b.path(b.volume("nameless").dir(), nameLink)))
	write("nameless", "{")
	assert.NilError(t, os.Remove(metaOf("missing")))
	layers := b.volume("parent").branch.Layers
	b.mustRemove("parent")

	b.restart()
	b.emptyTrash()
	want := []string{"child", "empty", "garbage", "missing", nameless, "newer", "shop@1", "staging", "whole"}
	slices.Sort(want)
	assert.DeepEqual(t, b.names(), want)
	for _, name := range want {
		s := b.status(name)
		if name == "shop@1" || name == "whole" {
			assert.Check(t, !s.Damaged && s.LastError == "")
			continue
		}
		assert.Check(t, s.Damaged && s.LastError != "", name)
		_, err := b.d.Mount(t.Context(), name, "id")
		assert.Check(t, is.ErrorContains(err, "its metadata cannot be used"))
	}
	assert.Check(t, is.Contains(b.status("newer").LastError, "has format 2, and this plugin knows up to 1"))
	assert.Check(t, is.ErrorContains(b.create("garbage", "seed", "shop"), "cannot be used"))
	assert.Check(t, is.ErrorContains(b.create("tk", "op", "reset", "volume", "garbage"), "cannot be used"))
	assert.Check(t, is.ErrorContains(b.create("tk", "op", "seal", "volume", "staging"), "cannot be used"))
	assert.Check(t, is.ErrorContains(b.create("b2", "branch", "garbage"), "cannot be used"))
	assert.Check(t, is.ErrorContains(b.d.Remove(t.Context(), "shop@1"), "may stand on it"))
	b.mustCreate("fresh", "seed", "shop")
	b.mustRemove("whole", "fresh") // which would sweep layers

	// What the damaged child stands on is still there: with its metadata back it is whole.
	_, err := os.Lstat(b.path(layersDir, layers[0], upperDir))
	assert.NilError(t, err)
	upper := b.path(b.volume("garbage").tree())
	b.m.setHeld(upper, true)
	assert.Check(t, is.ErrorContains(b.d.Remove(t.Context(), "garbage"), "a container is using it"))
	b.m.setHeld(upper, false)
	b.mustRemove("garbage", "empty", "missing", nameless, "newer", "staging", "child")
	assert.Equal(t, len(b.d.store.list(branchesDir)), 0)
	b.mustRemove("shop@1")
	assert.DeepEqual(t, b.names(), []string{})
}

// TestDamagedSeed has branches that run on over a seed whose metadata is gone.
func TestDamagedSeed(t *testing.T) {
	for _, file := range []string{metaFile, manifestFile} {
		for _, content := range []string{"{", ""} {
			b := newBench(t)
			b.seal("shop")
			b.mustCreate("b1", "seed", "shop")
			assert.NilError(t, os.WriteFile(b.path(b.volume("shop@1").dir(), file), []byte(content), 0o600))
			b.restart()
			assert.DeepEqual(t, b.names(), []string{"b1", "shop@1"})
			assert.Check(t, b.status("shop@1").Damaged)
			b.mountAnswered("b1", "id")
			b.d.Unmount(t.Context(), "b1", "id")
			b.mustCreate("tk", "op", "reset", "volume", "b1")
			assert.Check(t, is.ErrorContains(b.create("b2", "seed", "shop"), "does not exist"))
			assert.Check(t, is.ErrorContains(b.d.Remove(t.Context(), "shop@1"), "a branch stands on it: b1"))
			assert.Equal(t, b.seal("shop"), "shop@2", "no generation is given twice")
			b.mustRemove("b1", "shop@1")
		}
	}
}

// TestVolumesOfBeforeTheNameLink starts over a store that an older plugin made.
func TestVolumesOfBeforeTheNameLink(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	links := []string{b.path(b.volume("shop@1").dir(), nameLink), b.path(b.volume("b1").dir(), nameLink)}
	for _, link := range links {
		assert.NilError(t, os.Remove(link))
	}
	b.restart()
	b.d.mendNames()
	assert.DeepEqual(t, b.names(), []string{"b1", "shop@1"})
	for _, link := range links {
		_, err := os.Readlink(link)
		assert.NilError(t, err)
	}
}

// TestTwoVolumesOfOneName keeps both, and the second under another name.
func TestTwoVolumesOfOneName(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	id := newID()
	run := b.path(branchesDir, id)
	assert.NilError(t, os.CopyFS(run, os.DirFS(b.path(b.volume("b1").dir()))))
	b.restart()
	names := b.names()
	assert.Equal(t, len(names), 3)
	assert.Check(t, slices.Contains(names, "b1"))
	damaged := names[slices.IndexFunc(names, func(n string) bool { return filepath.Ext(n) == "" && n != "b1" && n != "shop@1" })]
	assert.Check(t, is.Contains(b.status(damaged).LastError, "has its name"))
	assert.Check(t, path.Base(b.volume(damaged).dir()) != path.Base(b.volume("b1").dir()))
}

func (b *bench) mustRemove(names ...string) {
	b.t.Helper()
	for _, name := range names {
		assert.NilError(b.t, b.d.Remove(b.t.Context(), name))
		b.absent(name)
	}
}
