//go:build e2e

package settle

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// intending are the servers with all of these, one a major, made at first use and
// shared, with limits that only their command line knows.
var intending = struct {
	sync.Mutex
	servers map[int]*shared
}{servers: map[int]*shared{}}

// shared is a server and one copy of it that nobody has settled.
type shared struct {
	once   sync.Once
	source *sourceServer
	stage  string
	probe  *contract.Probe
	backup *contract.BaseBackupResult
}

func intentionsOf(t *testing.T, m major) *shared {
	t.Helper()
	intending.Lock()
	s := intending.servers[m.number]
	if s == nil {
		s = &shared{}
		intending.servers[m.number] = s
	}
	intending.Unlock()
	s.once.Do(func() {
		s.source = runSource(t, m, "src", intentions, nil, "-c", "max_prepared_transactions=7", "-c", "max_connections=120",
			"-c", "wal_level=logical", "-c", "max_logical_replication_workers=0")
		s.source.restart(t)
	})
	return s
}

// keep keeps a copy of what a base backup has made.
func (s *shared) keep(t *testing.T, stage string, probe *contract.Probe, backup *contract.BaseBackupResult) {
	t.Helper()
	s.stage, s.probe, s.backup = copyTree(t, stage, ""), probe, backup
}

// copied gives a copy of the server that is the test's own.
func (s *shared) copied(t *testing.T) string {
	t.Helper()
	if s.stage == "" {
		stage, probe, backup := s.source.staged(t)
		s.keep(t, stage, probe, backup)
	}
	return copyTree(t, s.stage, t.TempDir())
}

// copyTree copies a folder into a new one below dir, and gives its path.
func copyTree(t *testing.T, from, dir string) string {
	t.Helper()
	to, err := os.MkdirTemp(dir, "settletest")
	assert.NilError(t, err)
	out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput()
	assert.NilError(t, err, string(out))
	return to
}

// plain is a server with the roles and a table, with checksums.
var plain shared

func plainSource(t *testing.T) *shared {
	t.Helper()
	plain.once.Do(func() {
		plain.source = runSource(t, pg17, "plain", roles, []string{"POSTGRES_INITDB_ARGS=--data-checksums"})
	})
	return &plain
}

// settled makes a small seed of the server, of a copy that spoil has changed.
func (s *shared) settled(t *testing.T, spoil func(data string)) (stage string, manifest *contract.Manifest) {
	t.Helper()
	stage = s.copied(t)
	if spoil != nil {
		spoil(filepath.Join(stage, contract.StagingRoot, s.source.major.dataDir))
	}
	return stage, s.source.settle(stage, s.probe, s.backup).run(t).ok(t).Manifest
}

func dropShared() {
	_ = os.RemoveAll(plain.stage)
	for _, s := range intending.servers {
		_ = os.RemoveAll(s.stage)
	}
}
