//go:build e2e

package settle

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
)

// published is the origin of a subscriber and of a standby.
const published = roles + `
CREATE TABLE quiet (id int PRIMARY KEY);
CREATE TABLE clash (id int PRIMARY KEY);
INSERT INTO quiet SELECT generate_series(1, 100);
INSERT INTO clash VALUES (1);
CREATE PUBLICATION everything FOR TABLE quiet, clash;
`

// Seeds of a subscriber and of a standby, settled and run on a network on which
// their origin answers: it must hear from none of them.
func TestNothingReachesTheOrigin(t *testing.T) {
	origin := startSource(t, pg17, "origin", published, "-c", "wal_level=logical", "-c", "log_connections=on")
	subscriber := startSubscriber(t, origin)
	standby := startStreamingStandby(t, origin)

	marker := t.TempDir()
	assert.NilError(t, os.Chmod(marker, 0o777))
	stages := map[string]string{}
	settle := map[string]call{}
	for name, s := range map[string]*sourceServer{"subscriber": subscriber, "standby": standby} {
		stage, probe, backup := s.staged(t)
		assert.Equal(t, probe.InRecovery, name == "standby")
		stages[name], settle[name] = stage, s.settle(stage, probe, backup)
		docker(t, "stop", s.name)
	}
	slots := `SELECT string_agg(s::text, ' ' ORDER BY slot_name) FROM
		(SELECT slot_name, active, restart_lsn, confirmed_flush_lsn, xmin, catalog_xmin FROM pg_replication_slots) s`
	before := origin.sql(t, "postgres", slots)
	for _, name := range []string{"sub,", "standby1,", "_sync_"} {
		assert.Assert(t, strings.Contains(before, name) && !strings.Contains(before, ",t,"), "%s: %s", name, before)
	}
	heard := origin.heard(t)

	net, err := network()
	assert.NilError(t, err)
	for name, c := range settle {
		c.network, c.mounts = net, []string{marker + ":/marker"}
		manifest := c.run(t).ok(t).Manifest
		assert.Assert(t, manifest.WALHead > "pg_wal/00000002", "%s is on timeline %s", name, manifest.WALHead)
	}
	options := []string{"--network", net, "-v", marker + ":/marker"}
	one, _ := startBranch(t, pg17, stages["subscriber"], "sub-one", options...)
	two, _ := startBranch(t, pg17, stages["subscriber"], "sub-two", options...)
	primary, _ := startBranch(t, pg17, stages["standby"], "of-standby", options...)
	for _, b := range []string{one, two, primary} {
		ev, err := ready(b, "--user", "app", "--database", "shop")
		assert.NilError(t, err, "%+v\n%s", ev.Error, docker(t, "logs", b))
	}
	assert.Equal(t, psql(t, one, "shop", "SELECT string_agg(srsubstate::text, ',' ORDER BY srsubstate) FROM pg_subscription_rel"), "d,r")
	assert.Equal(t, psql(t, primary, "shop", "CREATE TABLE mine (); SELECT count(*), pg_is_in_recovery() FROM quiet"), "100|f")
	time.Sleep(6 * time.Second) // a launcher looks every five, a WAL receiver asks as often
	psql(t, one, "shop", "SET statement_timeout = '10s'; DROP SUBSCRIPTION sub")
	psql(t, one, "postgres", "SET statement_timeout = '60s'; DROP DATABASE shop")
	psql(t, two, "shop", "SET statement_timeout = '10s'; DROP SUBSCRIPTION sub")

	assert.Equal(t, origin.sql(t, "postgres", slots), before)
	assert.Equal(t, origin.heard(t), heard, docker(t, "logs", "--tail", "20", origin.name))
	fired, err := os.ReadDir(marker)
	assert.NilError(t, err)
	assert.Equal(t, len(fired), 0, "%v fired", fired)
}

// heard counts the connections over the network that the server has seen.
func (s *sourceServer) heard(t *testing.T) int {
	t.Helper()
	return strings.Count(docker(t, "logs", s.name), "connection received: host=1")
}

// startSubscriber subscribes to all that the origin publishes. One table's first
// copy fails for ever, and so keeps a slot of its own at the origin.
func startSubscriber(t *testing.T, origin *sourceServer) *sourceServer {
	t.Helper()
	s := startSource(t, pg17, "subscriber", roles+fmt.Sprintf(`
		CREATE TABLE quiet (id int PRIMARY KEY);
		CREATE TABLE clash (id int PRIMARY KEY);
		INSERT INTO clash VALUES (1);
		CREATE SUBSCRIPTION sub CONNECTION 'host=%s dbname=shop user=postgres password=x' PUBLICATION everything;`, origin.name))
	for range 300 {
		if s.sql(t, "shop", "SELECT string_agg(srsubstate::text, ',' ORDER BY srsubstate) FROM pg_subscription_rel") == "d,r" &&
			origin.sql(t, "postgres", "SELECT count(*) FROM pg_replication_slots") == "2" {
			return s
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("the subscription does not begin:\n%s", docker(t, "logs", s.name))
	return nil
}

// startStreamingStandby makes a standby as pg_basebackup -R does, with a slot.
func startStreamingStandby(t *testing.T, origin *sourceServer) *sourceServer {
	t.Helper()
	net, err := network()
	assert.NilError(t, err)
	s := &sourceServer{pg17, prefix + "streaming-17"}
	docker(t, "run", "-d", "--name", s.name, "--network", net, "-e", "PGPASSWORD=x", "--entrypoint", "bash", pg17.image, "-c", `set -e
		pg_basebackup -d 'host=`+origin.name+` user=postgres password=x' -D "$PGDATA" -R -C -S standby1 -X stream -c fast
		printf "%s\n" "hot_standby_feedback = on" "restore_command = 'touch /marker/restored; false'" "recovery_min_apply_delay = '10ms'" \
			>>"$PGDATA/postgresql.auto.conf"
		exec docker-entrypoint.sh postgres`)
	t.Cleanup(func() { _ = exec.Command("docker", "rm", "-fv", s.name).Run() })
	s.await(t)
	return s
}
