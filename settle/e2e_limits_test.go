//go:build e2e

package settle

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// A source whose limits are high on its command line only, and are raised while the backup
// runs: a standby that is copied replays such a change of its primary's. pg_control is the
// last file of a base backup (perform_base_backup in basebackup.c), so that what it does
// not know yet stands in the WAL behind it, which recovery reads to its end.
func TestSettleLimitsRaisedDuringTheBackup(t *testing.T) {
	const init = `CREATE ROLE app LOGIN REPLICATION PASSWORD 'p:w\d "é''xK7zQneedle';
CREATE DATABASE shop OWNER app;
\c shop
CREATE TABLE item (a int);
`
	src := startSource(t, pg17, "limits", init, "-c", "max_worker_processes=30", "-c", "max_locks_per_transaction=150", "-c", "max_wal_senders=25")
	stage, probe, backup := src.staged(t)
	src.sql(t, "postgres", "ALTER SYSTEM SET max_connections = 400; ALTER SYSTEM SET max_prepared_transactions = 50")
	src.restart(t)
	const prepared = 20
	var script strings.Builder
	for i := range prepared {
		fmt.Fprintf(&script, "BEGIN; INSERT INTO item VALUES (%d); PREPARE TRANSACTION 'gid %d';\n", i, i)
	}
	src.sql(t, "shop", script.String()+"INSERT INTO item VALUES (-1)")
	docker(t, "stop", src.name)
	wal := filepath.Join(stage, contract.StagingRoot, "pg_wal")
	docker(t, "cp", src.name+":/wal/.", wal)
	out, err := exec.Command("chown", "-R", "999:999", wal).CombinedOutput() // docker cp keeps nobody's number
	assert.NilError(t, err, string(out))

	manifest := src.settle(stage, probe, backup).run(t).ok(t).Manifest
	rolledBack := 0
	was := map[string]string{}
	for _, c := range manifest.Neutralised {
		was[c.What] = c.Was
		if strings.HasPrefix(c.What, "prepared transaction gid ") {
			rolledBack++
		}
	}
	assert.Equal(t, rolledBack, prepared, "recovery did not read what was written after the backup")
	for name, value := range map[string]string{"max_worker_processes": "30", "max_locks_per_transaction": "150", "max_wal_senders": "25"} {
		assert.Equal(t, was[name], value, name)
	}
	checkControl(t, pg17, stage)

	branch, _ := startBranch(t, pg17, stage, "limits-branch")
	ev, err := ready(branch, "--user", "app", "--database", "shop")
	assert.NilError(t, err, "%+v\n%s", ev.Error, docker(t, "logs", branch))
	assert.Equal(t, psql(t, branch, "shop", "SELECT count(*), min(a), current_setting('max_connections'), current_setting('max_worker_processes') FROM item"), "1|-1|100|8")
}
