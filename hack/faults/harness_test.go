//go:build e2e

package faults

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

const (
	testImage = "postgres:17"
	// seedName is the seed that all tests share; sealed is its one generation.
	seedName = "shop"
	sealed   = seedName + "@1"
)

// shared is the plugin in the one engine that the tests of this package share, with one
// sealed seed, and what its tree was when it was sealed.
var shared struct {
	*Plugin
	seedRoot, seedSum string
}

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) (status int) {
	engine, err := New()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		_ = engine.Close()
		os.Exit(1)
	}()
	defer func() {
		if err := engine.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "close the engine:", err)
			status = 1
		}
	}()
	if err := prepare(engine); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status = m.Run()
	// What a test leaves behind is that test's mistake.
	if sum := sumOf(shared.seedRoot); sum != shared.seedSum {
		fmt.Fprintln(os.Stderr, "the sealed tree has changed")
		status = 1
	}
	if err := shared.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	return status
}

func prepare(engine *Engine) error {
	if err := engine.Boot(); err != nil {
		return err
	}
	if err := engine.LoadImage(testImage); err != nil {
		return err
	}
	dir := filepath.Join(engine.Dir, "build")
	if err := BuildPlugin(dir, "-tags", "faults"); err != nil {
		return err
	}
	plugin, err := engine.InstallPlugin("pgoverlay", dir, filepath.Join(engine.Dir, "data"))
	if err != nil {
		return err
	}
	shared.Plugin = plugin
	if err := plugin.pin(); err != nil {
		return err
	}
	if err := makeSeed(plugin, seedName); err != nil {
		return err
	}
	roots, err := filepath.Glob(plugin.Store("seeds/*/root"))
	if err != nil || len(roots) != 1 {
		return fmt.Errorf("the seed's root: %v %w", roots, err)
	}
	shared.seedRoot, shared.seedSum = roots[0], sumOf(roots[0])
	return nil
}

// pin sets the plugin up with its store's id, as `docker pgbranch setup` does.
func (p *Plugin) pin() error {
	data, err := os.ReadFile(p.Store("store.json"))
	if err != nil {
		return err
	}
	var store struct{ ID string }
	if err := json.Unmarshal(data, &store); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"plugin", "disable", p.Name}, {"plugin", "set", p.Name, contract.EnvStoreID + "=" + store.ID}, {"plugin", "enable", p.Name},
	} {
		if _, err := p.Try(args...); err != nil {
			return err
		}
	}
	return nil
}

// settleScript makes a settled cluster in a staging volume, with a table of 50,000 rows.
const settleScript = `set -e
D=/stage/root; bin=$(echo /usr/lib/postgresql/*/bin); export PATH=$bin:$PATH
chown postgres:postgres $D; chmod 700 $D
su postgres -s /bin/sh -c "set -e; export PATH=$PATH
initdb -D $D -A trust >/dev/null
pg_ctl -D $D -w -o '-c listen_addresses= -k /tmp' start >/dev/null
psql -q -h /tmp -c 'create table t as select g id, repeat(chr(65+g%26),100) v from generate_series(1,50000) g' -c 'vacuum freeze' -c checkpoint -c 'select pg_switch_wal()' >/dev/null
pg_ctl -D $D -w -m fast stop >/dev/null"
cd $D
head=$(pg_controldata . | sed -n 's/.*REDO WAL file: *//p')
for f in pg_wal/0*; do [ $f = pg_wal/$head ] || rm $f; done
truncate -s 64K pg_wal/$head; truncate -s 16M pg_wal/$head
cat >/stage/manifest.json <<EOF
{"format":1,"major":17,"mountPath":"/var/lib/postgresql/data","dataDir":".","uid":$(id -u postgres),"gid":$(id -g postgres),
 "user":"postgres","database":"postgres","walHead":"pg_wal/$head",
 "systemIdentifier":"$(pg_controldata . | sed -n 's/Database system identifier: *//p')"}
EOF`

// makeSeed makes a seed from a cluster made on the spot, through the engine alone.
func makeSeed(p *Plugin, name string) error {
	staging, ticket := fresh("staging"), fresh("ticket")
	for _, args := range [][]string{
		{"volume", "create", "-d", p.Name, "-o", "staging=" + name, staging},
		{"run", "--rm", "--network", "none", "--entrypoint", "bash", "-v", staging + ":/stage", testImage, "-c", settleScript},
		{"volume", "create", "-d", p.Name, "-o", "op=seal", "-o", "volume=" + staging, ticket},
		// Sealed it is no volume any more, but dockerd has it on its list and asks for it at
		// every boot, 15 s long once the driver is gone (volume/service/restore.go).
		{"volume", "rm", "-f", ticket, staging},
	} {
		if _, err := p.Try(args...); err != nil {
			return err
		}
	}
	return nil
}

// fresh gives a name that no other volume or container has.
func fresh(what string) string { return fmt.Sprintf("%s-%08x", what, rand.Uint32()) }

// rig is the shared plugin for one test. At its end all of the test's containers and
// volumes are gone, and the invariants hold.
type rig struct {
	*Plugin
	t *testing.T
	// run are the flags of every container.
	run []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Plugin: shared.Plugin, t: t, run: []string{"--network", "none", "--stop-timeout", "5"}}
	t.Cleanup(r.clean)
	return r
}

// clean removes all containers, and all volumes save the seed.
func (r *rig) clean() {
	r.t.Helper()
	out, _ := r.Try("ps", "-aq")
	if ids := strings.Fields(out); len(ids) > 0 {
		_, _ = r.Try(append([]string{"rm", "-f", "-v"}, ids...)...)
	}
	for range 3 {
		for _, name := range r.Volumes() {
			if name != sealed {
				_, _ = r.Try("volume", "rm", name)
			}
		}
	}
	r.check()
	assert.DeepEqual(r.t, r.Volumes(), []string{sealed})
}

// docker runs docker and gives its output without the final newline.
func (r *rig) docker(args ...string) string {
	r.t.Helper()
	out, err := r.Try(args...)
	assert.NilError(r.t, err)
	return out
}

// fails runs docker and gives the text of its failure.
func (r *rig) fails(args ...string) string {
	r.t.Helper()
	_, err := r.Try(args...)
	assert.Assert(r.t, err != nil, "docker %v succeeds", args)
	return err.Error()
}

func (r *rig) ok(err error) {
	r.t.Helper()
	assert.NilError(r.t, err)
}

func createArgs(name string, opts ...string) []string {
	args := []string{"volume", "create", "-d", "pgoverlay"}
	for _, o := range opts {
		args = append(args, "-o", o)
	}
	return append(args, name)
}

func (r *rig) create(name string, opts ...string) {
	r.t.Helper()
	r.docker(createArgs(name, opts...)...)
}

// branch makes a branch of the shared seed.
func (r *rig) branch() string {
	r.t.Helper()
	name := fresh("b")
	r.create(name, "seed="+seedName)
	return name
}

// fill puts a copy of the shared seed's cluster into a staging volume, from outside.
func (r *rig) fill(staging string) {
	r.t.Helper()
	root := r.Store("staging", r.idsByName()[staging], "volume/root")
	r.ok(os.Remove(root))
	out, err := exec.Command("cp", "-a", shared.seedRoot, root).CombinedOutput()
	assert.NilError(r.t, err, "%s", out)
	manifest, err := os.ReadFile(filepath.Join(filepath.Dir(shared.seedRoot), "manifest.json"))
	r.ok(err)
	r.ok(os.WriteFile(filepath.Join(filepath.Dir(root), "manifest.json"), manifest, 0o644))
}

func (r *rig) status(name string) contract.Status {
	r.t.Helper()
	var s contract.Status
	assert.NilError(r.t, json.Unmarshal([]byte(r.docker("volume", "inspect", "-f", "{{json .Status}}", name)), &s))
	return s
}

// hold starts a container that does nothing and has a volume mounted.
func (r *rig) hold(volume string, flags ...string) (container string) {
	r.t.Helper()
	container = fresh("c")
	r.docker(r.holdArgs(container, volume, flags...)...)
	return container
}

func (r *rig) holdArgs(container, volume string, flags ...string) []string {
	args := append([]string{"run", "-d", "--init", "--name", container}, append(slices.Clone(r.run), flags...)...)
	return append(args, "--mount", "type=volume,src="+volume+",dst=/v,volume-nocopy", "--entrypoint", "sleep", testImage, "1000")
}

// serve starts a branch's server, stock and unprivileged, with the shim.
func (r *rig) serve(branch string, flags ...string) (container string) {
	r.t.Helper()
	container = fresh("c")
	args := append([]string{"run", "-d", "--name", container, "-e", "LD_PRELOAD=/var/lib/postgresql/data/.pgoverlay/lazyrw.so"},
		append(slices.Clone(r.run), flags...)...)
	r.docker(append(args, "-v", branch+":/var/lib/postgresql/data", testImage)...)
	r.ready(container)
	return container
}

// ready waits until a server answers.
func (r *rig) ready(container string) {
	r.t.Helper()
	var err error
	for deadline := time.Now().Add(120 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, err = r.Try("exec", container, "psql", "-U", "postgres", "-Atc", "select 1"); err == nil {
			return
		}
	}
	logs, _ := r.Try("logs", "--tail", "20", container)
	r.t.Fatal(err, logs)
}

func (r *rig) query(container, sql string) string {
	r.t.Helper()
	return r.docker("exec", container, "psql", "-U", "postgres", "-Atc", sql)
}

// check checks what must hold at every quiet moment: what is mounted, on the host as in
// the plugin, is what running containers have; what is on disk belongs to volumes.
func (r *rig) check() {
	r.t.Helper()
	want := map[string]bool{}
	ids := r.idsByName()
	for _, container := range strings.Fields(r.docker("ps", "-q", "--no-trunc")) {
		for _, volume := range strings.Fields(r.docker("inspect", "-f", `{{range .Mounts}}{{if eq .Type "volume"}}{{.Name}} {{end}}{{end}}`, container)) {
			if id := ids[volume]; id != "" {
				want[id] = true
			}
		}
	}
	host, plugin := r.Mounted()
	slices.Sort(host)
	slices.Sort(plugin)
	expected := sortedKeys(want)
	if len(host)+len(plugin)+len(expected) > 0 {
		assert.DeepEqual(r.t, host, expected)
		assert.DeepEqual(r.t, plugin, expected)
	}
	volumes := r.Volumes()
	slices.Sort(volumes)
	assert.DeepEqual(r.t, sortedKeys(ids), volumes)
	for _, dir := range []string{"draft", "trash"} {
		deadline := time.Now().Add(5 * time.Second)
		for {
			entries, err := os.ReadDir(r.Store(dir))
			assert.NilError(r.t, err)
			if len(entries) == 0 {
				break
			}
			assert.Assert(r.t, time.Now().Before(deadline), "%s is not emptied: %v", dir, entries)
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// idsByName reads from the disk which folder is which volume's.
func (r *rig) idsByName() map[string]string {
	r.t.Helper()
	ids := map[string]string{}
	for _, kind := range []string{"branches", "staging", "seeds"} {
		entries, err := os.ReadDir(r.Store(kind))
		assert.NilError(r.t, err)
		for _, e := range entries {
			var meta struct {
				Name       string
				Generation int
			}
			data, err := os.ReadFile(r.Store(kind, e.Name(), "meta.json"))
			assert.Check(r.t, err)
			assert.Check(r.t, json.Unmarshal(data, &meta))
			if kind == "seeds" {
				meta.Name = fmt.Sprintf("%s@%d", meta.Name, meta.Generation)
			}
			ids[meta.Name] = e.Name()
		}
	}
	return ids
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// sumOf is a hash over every name, content, mode, owner and time of a tree.
func sumOf(dir string) string {
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		fmt.Fprintln(sum, strings.TrimPrefix(name, dir), info.Mode(), st.Uid, st.Gid, st.Nlink, info.ModTime().UnixNano())
		if !info.Mode().IsRegular() {
			return nil
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(sum, f)
		return err
	})
	return fmt.Sprintf("%x %v", sum.Sum(nil), err)
}
