//go:build e2e

package settle

import (
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// startDebian starts a cluster as Debian's own tools make it: data, configuration,
// certificate, sockets and logs in folders of their own, WAL and a tablespace in
// others, and a bootstrap superuser who may not log in.
func startDebian(t *testing.T) *sourceServer {
	t.Helper()
	net, err := network()
	assert.NilError(t, err)
	s := &sourceServer{pg17, prefix + "debian-17"}
	docker(t, "run", "-d", "--name", s.name, "--network", net, "--entrypoint", "bash", pg17.image, "-c", `set -e
		mkdir /ts /wal && chown postgres: /ts /wal
		pg_createcluster 17 main -- --auth-local=trust --auth-host=scram-sha-256 --waldir=/wal/main
		etc=/etc/postgresql/17/main
		mkdir -p $etc/conf.d
		grep -q '^include_dir' $etc/postgresql.conf || echo "include_dir = 'conf.d'" >>$etc/postgresql.conf
		openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=db -days 9 -keyout $etc/server.key -out $etc/server.crt 2>/dev/null
		chown postgres: $etc/server.*
		printf '%s\n' 'work_mem = 31MB' "listen_addresses = '*'" "ssl = on" "ssl_cert_file = '$etc/server.crt'" \
			"ssl_key_file = '$etc/server.key'" 'default_statistics_target = 321' >$etc/conf.d/site.conf
		echo 'host all,replication all all scram-sha-256' >>$etc/pg_hba.conf
		ln -s /var/log/postgresql /var/lib/postgresql/17/main/log
		exec setpriv --reuid postgres --regid postgres --init-groups pg_ctlcluster --foreground 17 main start`)
	t.Cleanup(func() { docker(t, "rm", "-fv", s.name) })
	s.await(t)
	s.sql(t, "postgres", roles+`
		CREATE ROLE keeper SUPERUSER LOGIN;
		GRANT pg_monitor TO app;
		CREATE TABLESPACE ts LOCATION '/ts';
		CREATE TABLE kept TABLESPACE ts AS SELECT i, i % 7 AS few, CASE WHEN i % 3 = 0 THEN i END AS holes FROM generate_series(1, 5000) i;
		CREATE INDEX ON kept (few); CREATE INDEX ON kept (i) WHERE holes IS NULL;
		VACUUM (ANALYZE) kept; -- as the settle does, which gives back the pages at the end that were never filled
		CREATE DATABASE moved;
		ALTER ROLE postgres NOLOGIN;`)
	return s
}

func (s *sourceServer) asKeeper(t *testing.T, database, statements string) string {
	t.Helper()
	return docker(t, "exec", s.name, "psql", "-XqAt", "-U", "keeper", "-d", database, "-c", statements)
}

func TestSettleDebianLayout(t *testing.T) {
	t.Parallel()
	src := startDebian(t)
	stage, probe, backup := src.staged(t)
	manifest := src.settle(stage, probe, backup).run(t).ok(t).Manifest
	changes := map[string]contract.Change{}
	for _, c := range manifest.Neutralised {
		changes[c.What] = c
	}
	for what, why := range map[string]string{
		mainConf: "did not come with the copy", "work_mem": "/etc/postgresql/17/main/conf.d/site.conf",
		"ssl": "certificates and keys lie outside", "ssl_key_file": "/etc/postgresql/17/main/conf.d/site.conf",
		"unix_socket_directories": "", "log": "a link or a socket",
	} {
		c, ok := changes[what]
		assert.Assert(t, (ok || why == "") && strings.Contains(c.Why, why), "%s: %+v in %v", what, c, changes)
	}
	assert.Equal(t, changes["work_mem"].Was, "31MB")

	branch, _ := startBranch(t, pg17, stage, "debian-branch")
	ev, err := ready(branch, "--user", "app", "--database", "shop")
	assert.NilError(t, err, "%+v\n%s", ev.Error, docker(t, "logs", branch))
	b := &sourceServer{pg17, branch}
	assert.Equal(t, b.asKeeper(t, "postgres", "SELECT rolcanlogin, rolsuper FROM pg_roles WHERE oid = 10"), "f|t")
	assert.Equal(t, b.asKeeper(t, "shop", "SELECT count(*) FROM kept"), "5000")
	assert.Equal(t, b.asKeeper(t, "shop",
		"SELECT array_length(histogram_bounds::text::text[], 1) FROM pg_stats WHERE tablename = 'big' AND attname = 'i'"), "322")
	checkPlans(t, src, b)
	checkLogin(t, pg17, branch)
	checkLinks(t, src, probe)
}

// checkPlans sees that a branch knows of a table what the source knew, and plans as
// it did.
func checkPlans(t *testing.T, src, branch *sourceServer) {
	t.Helper()
	for _, query := range []string{
		`\d kept`, `\dt`, `\l`,
		"SELECT s::text FROM pg_statistic s WHERE starelid = 'kept'::regclass ORDER BY staattnum",
		"SELECT relpages, reltuples FROM pg_class WHERE relname ~ '^kept'",
		"EXPLAIN SELECT * FROM kept WHERE few = 3", "EXPLAIN SELECT * FROM kept WHERE i < 40 AND holes IS NULL",
		"EXPLAIN SELECT few, count(a.holes) FROM kept a JOIN kept b USING (few) WHERE a.i < 9 GROUP BY few",
	} {
		assert.Equal(t, branch.asKeeper(t, "shop", query), src.asKeeper(t, "shop", query), query)
	}
}

// checkLinks puts links in the way that lead nowhere, in a circle, or out of the
// data directory: nothing is copied, or what was is gone again.
func checkLinks(t *testing.T, src *sourceServer, probe *contract.Probe) {
	refused := func(t *testing.T, o outcome, message string) {
		t.Helper()
		e := o.failed(t)
		assert.Assert(t, strings.Contains(e.Message, message) && e.Hint != "", "%+v", e)
	}
	shell := func(script string) { docker(t, "exec", src.name, "bash", "-ec", script) }
	copying := func(t *testing.T, message string) {
		t.Helper()
		stage := t.TempDir()
		refused(t, src.baseBackup(stage, src.asApp(), probe).run(t), message)
		nothingStaged(t, stage)
		assert.Equal(t, src.asKeeper(t, "postgres", "SELECT count(*) FROM pg_replication_slots"), "0")
	}
	const lost = `tablespace "ts" cannot be copied: its server does not find the files in /ts`
	shell("mv /ts /away")
	refused(t, src.probe(t, src.asApp()), lost)
	copying(t, lost) // as for a user who may not ask for the size
	shell("ln -s /ts /ts")
	refused(t, src.probe(t, src.asApp()), lost)
	shell("rm /ts; mv /away /ts")
	src.probe(t, src.asApp()).ok(t)

	oid := src.asKeeper(t, "postgres", "SELECT oid FROM pg_database WHERE datname = 'moved'")
	folder := filepath.Join("/var/lib/postgresql/17/main/base", oid)
	shell("mv " + folder + " /elsewhere; ln -s /elsewhere " + folder)
	copying(t, "base/"+oid+" in the source's data directory is a link")
}
