package settle

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func TestClearStale(t *testing.T) {
	s, _ := copyOf(t, map[string]string{
		"standby.signal": "", "postmaster.pid": "1", "postmaster.opts": "x", "backup_manifest": "{}",
		"backup_label": "START", "pg_wal/00000002.history": "x", "pg_wal/archive_status/a.ready": "", "pg_stat/pgstat.stat": "x",
		"pg_replslot/standby1/state": "x", "pg_logical/snapshots/0-1.snap": "x", "pg_stat_tmp/x.stat": "x",
		"log/postgresql.log": "SELECT 'a secret'", contract.RuntimeDir + "/agent": "old",
		"tablespace_map": "16387 /srv/ts\n", "pg_tblspc/16387/PG_17/1/2": "rows",
	})
	changes, err := clearStale(s.root)
	assert.NilError(t, err)
	s.change(changes...)
	said(t, s, "replication slot standby1")
	said(t, s, "standby.signal")
	said(t, s, "log/")

	exists := func(name string) bool {
		_, err := os.Lstat(filepath.Join(s.root.Name(), name))
		return err == nil
	}
	for _, kept := range []string{
		"backup_label", "pg_wal/00000002.history", "pg_wal/archive_status", "pg_stat/pgstat.stat", "pg_replslot",
		"pg_logical/snapshots", "log", "pg_tblspc/16387/PG_17/1/2",
	} {
		assert.Assert(t, exists(kept), "%s is gone", kept)
	}
	for _, gone := range []string{
		"standby.signal", "postmaster.pid", "postmaster.opts", "backup_manifest", "pg_wal/archive_status/a.ready",
		"pg_replslot/standby1", "pg_logical/snapshots/0-1.snap", "pg_stat_tmp/x.stat", "log/postgresql.log",
		contract.RuntimeDir, "tablespace_map",
	} {
		assert.Assert(t, !exists(gone), "%s is still there", gone)
	}
}

func TestTablespacesMustLieInTheCopy(t *testing.T) {
	s, _ := copyOf(t, map[string]string{"pg_tblspc/1/PG_17/x": "", "pg_wal/x": "", "tablespace_map": "1 /a\n2 /b\n"})
	found, err := checkTablespaces(s.root)
	assert.NilError(t, err)
	assert.Assert(t, found)
	assert.ErrorContains(t, dropTablespaceMap(s.root), "tablespace 2 is not a part of the copy")

	assert.NilError(t, os.Symlink("/etc", filepath.Join(s.root.Name(), "pg_tblspc/2")))
	_, err = checkTablespaces(s.root)
	assert.ErrorContains(t, err, "tablespace 2 lies outside the copy")
	assert.ErrorContains(t, dropTablespaceMap(s.root), "tablespace 2 is not a part of the copy")
}

func TestExternalWALIsRefused(t *testing.T) {
	s, _ := copyOf(t, map[string]string{"pg_tblspc/1/x": ""})
	assert.NilError(t, os.Symlink("/elsewhere", filepath.Join(s.root.Name(), "pg_wal")))
	_, err := checkTablespaces(s.root)
	assert.ErrorContains(t, err, "pg_wal is not a directory")
}

func TestClearSpent(t *testing.T) {
	s, _ := copyOf(t, map[string]string{
		"backup_label.old": "x", "global/pg_internal.init": "x", "base/5/pg_internal.init": "x", "base/5/2619": "x",
		"pg_tblspc/1/PG_17_1/5/pg_internal.init": "x", "pg_stat/pgstat.stat": "x", "pg_dynshmem/mmap.1": "x",
	})
	assert.NilError(t, clearSpent(s.root))
	for name, want := range map[string]bool{
		"backup_label.old": false, "global/pg_internal.init": false, "base/5/pg_internal.init": false, "base/5/2619": true,
		"pg_tblspc/1/PG_17_1/5/pg_internal.init": false, "pg_stat/pgstat.stat": true, "pg_dynshmem/mmap.1": false, "pg_dynshmem": true,
	} {
		_, err := os.Lstat(filepath.Join(s.root.Name(), name))
		assert.Equal(t, err == nil, want, name)
	}
}

func TestBringTablespacesIn(t *testing.T) {
	stage := t.TempDir()
	data := filepath.Join(stage, contract.StagingRoot)
	b := &backup{req: contract.BaseBackupRequest{Stage: stage, DataDir: "."}, data: data, spaces: filepath.Join(stage, "tablespaces")}
	assert.NilError(t, os.MkdirAll(filepath.Join(data, "pg_tblspc", "7"), 0o700)) // one in place already
	received := filepath.Join(b.spaces, "16387")
	assert.NilError(t, os.MkdirAll(filepath.Join(received, "PG_17"), 0o700))
	link := filepath.Join(data, "pg_tblspc", "16387")
	assert.NilError(t, os.Symlink(received, link))
	assert.NilError(t, b.bringTablespacesIn())
	info, err := os.Lstat(filepath.Join(link, "PG_17"))
	assert.NilError(t, err)
	assert.Assert(t, info.IsDir())
	_, err = os.Lstat(b.spaces)
	assert.ErrorIs(t, err, os.ErrNotExist)

	assert.NilError(t, os.Symlink("/srv/elsewhere", filepath.Join(data, "pg_tblspc", "9")))
	assert.ErrorContains(t, b.bringTablespacesIn(), "tablespace 9 was not brought")
}

func TestRefuseMajor(t *testing.T) {
	for major := 14; major <= 18; major++ {
		assert.NilError(t, refuseMajor(major, "x"))
	}
	for version, major := range map[string]int{"9.6.24": 9, "13.9": 13, "19beta1": 19} {
		err := refuseMajor(major, version)
		assert.ErrorContains(t, err, "Postgres "+version+", and seeds are made of 14 to 18")
		assert.Equal(t, err.(*contract.AgentError).Code, contract.AgentErrMajor)
		assert.Assert(t, err.(*contract.AgentError).Hint != "")
	}
}

func TestRefuseImageMajor(t *testing.T) {
	for major := 14; major <= 18; major++ {
		assert.NilError(t, refuseImageMajor(major))
	}
	for _, major := range []int{13, 19} {
		err := refuseImageMajor(major)
		assert.ErrorContains(t, err, fmt.Sprintf("the image has Postgres %d, and seeds are made of 14 to 18", major))
		assert.Equal(t, err.(*contract.AgentError).Code, contract.AgentErrMajor)
		assert.Assert(t, err.(*contract.AgentError).Hint != "")
	}
}

func TestReadBackupLabel(t *testing.T) {
	dir := t.TempDir()
	_, err := readBackupLabel(dir)
	assert.ErrorContains(t, err, "no backup_label")
	path := filepath.Join(dir, "backup_label")
	assert.NilError(t, os.WriteFile(path, []byte("nonsense"), 0o600))
	_, err = readBackupLabel(dir)
	assert.ErrorContains(t, err, "damaged")
	assert.NilError(t, os.WriteFile(path, []byte("START WAL LOCATION: 0/7000028 (file 000000010000000000000007)\nCHECKPOINT LOCATION: 0/7000080\n"), 0o600))
	label, err := readBackupLabel(dir)
	assert.NilError(t, err)
	assert.Equal(t, label.startLSN, "0/7000028")
}
