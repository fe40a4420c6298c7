package volumedriver

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// dummyMounter stands for the kernel: it keeps a mount table that outlives a Driver.
type dummyMounter struct {
	mu     sync.Mutex
	mounts map[string]string      // target to upper, or to source
	plans  map[string]overlayPlan // target to plan
	// held are uppers that containers hold in mount namespaces of their own.
	held map[string]bool
	// room is the folder that was made a mount of its own.
	room string
	// fail is the error of the next mounts.
	fail error
	// fsType is what Type gives.
	fsType int64
	// sharedUppers lets an upper be mounted twice, as a kernel without index would.
	sharedUppers bool
}

func newDummyMounter() *dummyMounter {
	return &dummyMounter{mounts: map[string]string{}, plans: map[string]overlayPlan{}, held: map[string]bool{}, fsType: unix.EXT4_SUPER_MAGIC}
}

func (m *dummyMounter) Room(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.room = dir
	return os.MkdirAll(dir, 0o711)
}

func (m *dummyMounter) Reaches(dir string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.room == dir, nil
}

func (m *dummyMounter) Overlay(plan overlayPlan, target string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	if _, err := plan.options(); err != nil {
		return err
	}
	for _, dir := range append([]string{plan.Upper, plan.Work, target}, plan.Lower...) {
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			return fmt.Errorf("%s is no folder", dir)
		}
	}
	for _, upper := range m.mounts {
		if upper == plan.Upper && !m.sharedUppers {
			return unix.EBUSY
		}
	}
	if m.held[plan.Upper] {
		return unix.EBUSY
	}
	m.mounts[target], m.plans[target] = plan.Upper, plan
	return nil
}

func (m *dummyMounter) Bind(source, target string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	m.mounts[target] = source
	return nil
}

func (m *dummyMounter) Unmount(target string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mounts, target)
	delete(m.plans, target)
	return nil
}

func (m *dummyMounter) Mounted(target string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.mounts[target]
	return ok || target == m.room, nil
}

func (m *dummyMounter) Type(string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fsType, nil
}

func (m *dummyMounter) Below(dir string) (map[string]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[string]bool{}
	for target := range m.mounts {
		if filepath.Dir(target) == dir {
			found[filepath.Base(target)] = true
		}
	}
	return found, nil
}

func (m *dummyMounter) table() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.mounts)
}

func (m *dummyMounter) setHeld(upper string, held bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[upper] = held
}

// bench is one data root with a Driver that can be started again over it.
type bench struct {
	t    *testing.T
	dir  string
	cfg  Config
	m    *dummyMounter
	d    *Driver
	stop context.CancelFunc
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	agent := filepath.Join(dir, "agent")
	assert.NilError(t, os.WriteFile(agent, []byte("agent"), 0o755))
	assert.NilError(t, os.Mkdir(filepath.Join(dir, "mnt"), 0o755))
	b := &bench{t: t, dir: dir, m: newDummyMounter()}
	b.cfg = Config{
		DataRoot: filepath.Join(dir, "data"), MountRoot: filepath.Join(dir, "mnt"),
		Version: "test", Shim: func() ([]byte, error) { return []byte("shim"), nil }, Agent: agent,
		SelfTest: func(string) error { return nil }, Mounter: b.m, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	b.start()
	t.Cleanup(func() { b.end() })
	return b
}

func (b *bench) start() {
	b.t.Helper()
	d, err := Open(b.cfg)
	assert.NilError(b.t, err)
	b.d = d
}

func (b *bench) end() {
	if b.stop != nil {
		b.stop()
		b.stop = nil
	}
	if b.d != nil {
		b.d.Close()
		b.d = nil
	}
}

// restart ends the Driver, as a crash does, and starts another.
func (b *bench) restart() {
	b.t.Helper()
	b.end()
	b.start()
}

func (b *bench) create(name string, opts ...string) error {
	return b.d.Create(b.t.Context(), name, optionMap(opts))
}

func (b *bench) mustCreate(name string, opts ...string) {
	b.t.Helper()
	assert.NilError(b.t, b.create(name, opts...))
}

func optionMap(opts []string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(opts); i += 2 {
		m[opts[i]] = opts[i+1]
	}
	return m
}

func (b *bench) status(name string) *contract.Status {
	b.t.Helper()
	info, err := b.d.Get(name)
	assert.NilError(b.t, err)
	return info.Status
}

func (b *bench) absent(name string) {
	b.t.Helper()
	_, err := b.d.Get(name)
	assert.ErrorIs(b.t, err, errNotFound)
}

func (b *bench) names() []string {
	names := []string{}
	for _, info := range b.d.List() {
		names = append(names, info.Name)
	}
	return names
}

// mountAnswered mounts a volume as dockerd does that gets the answer.
func (b *bench) mountAnswered(name, id string) {
	b.t.Helper()
	_, err := b.d.Mount(b.t.Context(), name, id)
	assert.NilError(b.t, err)
	b.d.Answered(name, id)
}

// volume gives the driver's own view of a volume.
func (b *bench) volume(name string) *volume {
	b.t.Helper()
	v := b.d.find(name)
	assert.Assert(b.t, v != nil, "no volume %s", name)
	return v
}

// path gives the host path of something below the data root.
func (b *bench) path(elem ...string) string {
	return filepath.Join(append([]string{b.cfg.DataRoot}, elem...)...)
}

// stage makes a staging volume that holds a settled cluster.
func (b *bench) stage(name, seed string, edit func(*contract.Manifest)) string {
	b.t.Helper()
	b.mustCreate(name, contract.OptStaging, seed, contract.OptGeneration, contract.GenerationNext)
	tree := b.path(b.volume(name).tree())
	fillCluster(b.t, tree, edit)
	return tree
}

// seal makes a seed generation and gives its volume's name.
func (b *bench) seal(seed string) string {
	b.t.Helper()
	name := "stage-" + newID()
	b.stage(name, seed, nil)
	return b.sealStaging(name)
}

func (b *bench) sealStaging(name string) string {
	b.t.Helper()
	ticket := "ticket-" + newID()
	b.mustCreate(ticket, contract.OptOp, contract.OpSeal, contract.OptVolume, name)
	sealed := b.status(ticket).SealedAs
	assert.NilError(b.t, b.d.Remove(b.t.Context(), ticket))
	return sealed
}

const (
	testSystemID = uint64(7713967063463637015)
	testWALHead  = "pg_wal/000000010000000000000004"
	testWALBytes = 16 << 20
)

func testManifest() contract.Manifest {
	return contract.Manifest{
		Format: contract.ManifestFormat, Major: 17, ServerVersion: "17.5", SystemIdentifier: strconv.FormatUint(testSystemID, 10),
		Image: "postgres:17", MountPath: "/var/lib/postgresql/data", DataDir: ".",
		UID: os.Geteuid(), GID: os.Getegid(), Superuser: "postgres", User: "app", Database: "shop", WALHead: testWALHead,
	}
}

// fillCluster puts what a settle leaves into a staging volume's tree.
func fillCluster(t *testing.T, tree string, edit func(*contract.Manifest)) {
	t.Helper()
	m := testManifest()
	if edit != nil {
		edit(&m)
	}
	data := filepath.Join(tree, contract.StagingRoot, m.DataDir)
	for _, dir := range []string{"base/5", "global", "pg_wal/archive_status"} {
		assert.NilError(t, os.MkdirAll(filepath.Join(data, dir), 0o700))
	}
	assert.NilError(t, os.Chmod(data, 0o700))
	control := make([]byte, 8192)
	binary.NativeEndian.PutUint64(control, testSystemID)
	binary.NativeEndian.PutUint32(control[16:], 1)
	for name, content := range map[string][]byte{
		"PG_VERSION":               []byte(strconv.Itoa(m.Major) + "\n"),
		"global/pg_control":        control,
		"base/5/1259":              make([]byte, 8192),
		"pg_wal/archive_status/ok": nil,
	} {
		assert.NilError(t, os.WriteFile(filepath.Join(data, name), content, 0o600))
	}
	writeWALHead(t, filepath.Join(data, testWALHead))
	writeManifest(t, tree, m)
}

// writeWALHead writes a segment of which the first two pages hold data.
func writeWALHead(t *testing.T, name string) {
	t.Helper()
	pages := make([]byte, 2*8192)
	for i := range pages {
		pages[i] = byte(i%250 + 1)
	}
	assert.NilError(t, os.WriteFile(name, pages, 0o600))
	assert.NilError(t, os.Truncate(name, testWALBytes))
}

func writeManifest(t *testing.T, tree string, m contract.Manifest) {
	t.Helper()
	data, err := json.Marshal(m)
	assert.NilError(t, err)
	assert.NilError(t, os.WriteFile(filepath.Join(tree, contract.StagingManifest), data, 0o644))
}
