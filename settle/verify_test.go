package settle

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func TestVerifyFiles(t *testing.T) {
	settled := map[string]string{"PG_VERSION": "17", "pg_replslot/.keep": "", "base/5/1259": "x"}
	s, _ := copyOf(t, settled)
	assert.NilError(t, os.Remove(filepath.Join(s.root.Name(), "pg_replslot/.keep")))
	assert.NilError(t, verifyFiles(s.root))
	for _, name := range append([]string{"pg_replslot/standby1"}, neverInSeed...) {
		path := filepath.Join(s.root.Name(), name)
		assert.NilError(t, os.WriteFile(path, nil, 0o600))
		assert.ErrorContains(t, verifyFiles(s.root), filepath.Base(name)+" is still there")
		assert.NilError(t, os.Remove(path))
	}
	assert.NilError(t, os.Symlink("/elsewhere", filepath.Join(s.root.Name(), "base/5/16384")))
	assert.ErrorContains(t, verifyFiles(s.root), "base/5/16384 is no regular file")
}

func TestVerifyControl(t *testing.T) {
	own := map[string]string{"wal_level": "replica", "max_connections": "100", "full_page_writes": "on"}
	c := controlData{state: stateShutDown, settings: map[string]string{"wal_level": "replica", "max_connections": "100"}}
	assert.NilError(t, verifyControl(c, own))
	c.settings["max_connections"] = "500"
	assert.ErrorContains(t, verifyControl(c, own), "pg_control says max_connections=500 and a branch runs with 100")
	for _, state := range []string{stateShutDownInRecovery, "in production", ""} {
		c.state = state
		assert.ErrorContains(t, verifyControl(c, own), "after the stop")
	}
}

func TestWhatTheSourceSkips(t *testing.T) {
	out := &backupOutput{tail: newTail(9), progress: func(int64, int64) {}}
	for _, line := range []string{
		`WARNING:  skipping special file "./log"`,
		`WARNING:  skipping special file or directory "./.s.PGSQL.5432"`,
		`WARNUNG:  überspringe besondere Datei »./base/16384«`,
		`pg_basebackup: checkpoint completed`,
		`WARNING:  aborting backup due to backend exiting before pg_backup_stop was called`,
	} {
		_, err := out.Write([]byte(line + "\n"))
		assert.NilError(t, err)
	}
	assert.DeepEqual(t, out.skipped, []string{"log", ".s.PGSQL.5432", "base/16384"})
	assert.NilError(t, refuseSkipped(out.skipped[:2]))
	assert.ErrorContains(t, refuseSkipped(out.skipped), "base/16384 in the source's data directory is a link")
}

func TestLeftOutNamesWhatABranchDoesNotHave(t *testing.T) {
	given := []contract.GivenSetting{
		{Name: "work_mem", Value: "64MB", Source: "configuration file", File: "/etc/postgresql/conf.d/a.conf"},
		{Name: "max_connections", Value: "500", Source: "command line"},
		{Name: "random_page_cost", Value: "1.1", Source: "configuration file"},
		{Name: "DateStyle", Value: "ISO, DMY", Source: "configuration file", File: "/data/postgresql.conf"},
		{Name: "archive_command", Value: "push", Source: "configuration file", File: "/etc/x.conf"},
		{Name: "hba_file", Value: "/etc/hba.conf", Source: "command line"},
		{Name: "jit", Value: "off", Source: "configuration file", File: "/etc/x.conf"},
		{Name: "geqo", Value: "off", Source: "configuration file", File: "/etc/x.conf"},
		{Name: "ssl_passphrase_command", Value: "echo hunter2", Source: "configuration file"},
	}
	files := map[string]string{"max_connections": "100", "datestyle": "iso, dmy", "jit": "on", "geqo": "off"}
	assert.DeepEqual(t, leftOut(resolved(profileOf(17), files, 16<<20), files, given, "/data"), []change{
		{What: "work_mem", Was: "64MB", Why: "the source has it from a file outside the data directory, /etc/postgresql/conf.d/a.conf"},
		{What: "max_connections", Was: "500", Why: "the source has it from its command line"},
		{What: "random_page_cost", Was: "1.1", Why: "the source has it from a file outside the data directory"},
		{What: "jit", Was: "off", Why: "the source has it from a file outside the data directory, /etc/x.conf"},
		{What: "ssl_passphrase_command", Why: "the source has it from a file outside the data directory"},
	})
}
