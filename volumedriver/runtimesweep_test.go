package volumedriver

import (
	"os"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

// runtimes gives the versions of which there are runtime layers.
func (b *bench) runtimes() []string {
	b.t.Helper()
	var versions []string
	for _, name := range b.d.store.names(runtimeDir) {
		if version, _, _ := strings.Cut(name, "-"); version+"-" != preloadPrefix {
			versions = append(versions, version)
		}
	}
	slices.Sort(versions)
	return versions
}

// upgrade starts a plugin with another agent.
func (b *bench) upgrade(agent string) {
	b.t.Helper()
	b.end()
	assert.NilError(b.t, os.WriteFile(b.cfg.Agent, []byte(agent), 0o755))
	b.start()
	b.d.runtime.load()
}

func TestRuntimeLayersAreSwept(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	for _, name := range []string{"here", "elsewhere", "rest", "never"} {
		b.mustCreate(name, "seed", "shop")
		if name != "never" {
			b.mountAnswered(name, "id")
		}
	}
	b.d.Unmount(t.Context(), "elsewhere", "id")
	b.d.Unmount(t.Context(), "rest", "id")
	b.m.setHeld(b.path(b.volume("elsewhere").tree()), true)
	first := b.d.runtime.id()

	b.upgrade("second")
	second := b.d.runtime.id()
	b.mountAnswered("rest", "id")
	b.d.sweepRuntime()
	both := []string{first, second}
	slices.Sort(both)
	assert.DeepEqual(t, b.runtimes(), both)

	b.d.Unmount(t.Context(), "here", "id")
	b.d.sweepRuntime()
	assert.DeepEqual(t, b.runtimes(), both)
	b.m.setHeld(b.path(b.volume("elsewhere").tree()), false)
	b.d.sweepRuntime()
	assert.DeepEqual(t, b.runtimes(), []string{second})
	for _, name := range []string{"here", "elsewhere", "never"} {
		b.mountAnswered(name, "id")
	}
	assert.Check(t, b.status("rest").Mounted)

	b.upgrade("third")
	third := b.d.runtime.id()
	for _, name := range []string{"here", "elsewhere", "never", "rest"} {
		b.d.Unmount(t.Context(), name, "id")
	}
	b.d.sweepRuntime()
	assert.DeepEqual(t, b.runtimes(), []string{third})
	b.mountAnswered("here", "id")
}
