package volumedriver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// serverIn plays a branch's server, as far as its files go.
type serverIn struct {
	t   *testing.T
	dir string
}

func (s serverIn) write(name, text string) {
	s.t.Helper()
	assert.NilError(s.t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
}

// claims makes postmaster.pid, and with the shim what it leaves.
func (s serverIn) claims(way, lazy string) {
	s.t.Helper()
	assert.NilError(s.t, os.RemoveAll(filepath.Join(s.dir, pidFile)))
	s.write(pidFile, "1\n/data\n1700000000\n5432\n")
	if way == "" {
		return
	}
	assert.NilError(s.t, os.MkdirAll(filepath.Join(s.dir, contract.RuntimeDir), 0o755))
	s.write(noteFile, "way="+way+"\nlazy="+lazy+"\narch=amd64\nobject=lazyrw-1.so\n")
	_ = os.Remove(filepath.Join(s.dir, keptFile))
	assert.NilError(s.t, os.Link(filepath.Join(s.dir, pidFile), filepath.Join(s.dir, keptFile)))
}

// runs is what follows the loading of libraries.
func (s serverIn) runs(args string) {
	s.t.Helper()
	time.Sleep(20 * time.Millisecond) // the file system's clock is coarse, and no server starts that fast
	f, err := os.OpenFile(filepath.Join(s.dir, pidFile), os.O_WRONLY|os.O_APPEND, 0)
	assert.NilError(s.t, err)
	_, err = f.WriteString("/var/run/postgresql\n*\n12 34\nready   \n")
	assert.NilError(s.t, err)
	assert.NilError(s.t, f.Close())
	s.write(optsFile, "/usr/lib/postgresql/17/bin/postgres"+args+"\n")
}

func (s serverIn) stops() {
	s.t.Helper()
	time.Sleep(20 * time.Millisecond)
	assert.NilError(s.t, os.Remove(filepath.Join(s.dir, pidFile)))
	time.Sleep(20 * time.Millisecond)
}

func TestCowModeIsEvidence(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	s := serverIn{t, b.path(b.volume("b1").tree())}
	expect := func(mode, via, reason string) {
		t.Helper()
		status := b.status("b1")
		assert.Check(t, is.Equal(status.CowMode, mode), status.CowReason)
		assert.Check(t, is.Equal(status.CowVia, via))
		assert.Check(t, is.Contains(status.CowReason, reason))
		assert.Check(t, (status.CowReason == "") == (reason == ""), status.CowReason)
	}
	lazy, eager := contract.ModeLazyRW, contract.ModeEager
	profile := b.path(b.volume("shop@1").tree(), profileConf)
	assert.NilError(t, os.WriteFile(profile, []byte("archive_mode = 'off'\n"), 0o600))

	expect(lazy, "", "unproven")
	s.claims("", "")
	expect(lazy, "", "unproven") // it has loaded no library yet
	s.claims(contract.ViaPreload, "yes")
	expect(lazy, contract.ViaPreload, "")
	s.runs("")
	expect(lazy, contract.ViaPreload, "")
	s.stops()
	expect(lazy, contract.ViaPreload, "") // of the last server

	s.claims("", "")
	expect(lazy, "", "unproven")
	s.runs("")
	expect(eager, contract.ViaNone, "seed was made before")
	s.stops()
	expect(eager, contract.ViaNone, "seed was made before")
	assert.NilError(t, os.WriteFile(profile, []byte(contract.NoPreloadMark+"it is linked statically\n"), 0o600))
	expect(eager, contract.ViaNone, "cannot load lazyrw: it is linked statically")
	assert.NilError(t, os.WriteFile(profile, []byte("include_if_exists '.pgoverlay/preload.conf'\n"), 0o600))
	expect(eager, contract.ViaNone, "did not load the shim")

	s.claims("", "")
	s.runs(` "-c" "shared_preload_libraries=pg_stat_statements"`)
	expect(eager, contract.ViaNone, "started with -c shared_preload_libraries")
	s.stops()
	s.write(autoConf, "shared_preload_libraries = 'pg_stat_statements'\n")
	s.claims("", "")
	s.runs("")
	expect(eager, contract.ViaNone, "ALTER SYSTEM")
	s.stops()
	s.write(autoConf, "# shared_preload_libraries = 'x'\nshared_preload_libraries = '\".pgoverlay/lazyrw.so\", x'\n")
	expect(eager, contract.ViaNone, "did not load the shim")

	s.claims(contract.ViaLibrary, "yes")
	s.runs("")
	expect(lazy, contract.ViaLibrary, "")
	s.stops()
	s.claims(contract.ViaPreload, "no /proc")
	s.runs("")
	expect(eager, contract.ViaPreload, "/proc")

	// Whatever a server puts there, it is text of a bounded size.
	assert.NilError(t, os.Remove(filepath.Join(s.dir, noteFile)))
	assert.NilError(t, os.Symlink("/etc/passwd", filepath.Join(s.dir, noteFile)))
	expect(eager, "", "says so")
	assert.NilError(t, os.Remove(filepath.Join(s.dir, noteFile)))
	s.write(noteFile, "way="+strings.Repeat("x", maxServerFile))
	expect(eager, "", "says so")
}
