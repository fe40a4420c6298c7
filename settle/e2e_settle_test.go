//go:build e2e

package settle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// intentions are what a source may have that a branch must not: each would leave a
// mark in /marker, hold rows back from the freeze, or reach out.
const intentions = `
CREATE ROLE app LOGIN REPLICATION PASSWORD 'p:w\d "é''xK7zQneedle';
CREATE DATABASE shop OWNER app;
CREATE DATABASE closed ALLOW_CONNECTIONS false;
CREATE TABLESPACE ts LOCATION '/ts';
SELECT pg_create_physical_replication_slot('standby1', true);
ALTER SYSTEM SET archive_mode = on;
ALTER SYSTEM SET archive_command = 'touch /marker/archived';
ALTER SYSTEM SET restore_command = 'touch /marker/restored; false';
ALTER SYSTEM SET archive_cleanup_command = 'touch /marker/cleaned';
ALTER SYSTEM SET shared_preload_libraries = auto_explain, pg_prewarm;
ALTER SYSTEM SET synchronous_standby_names = 'nobody';
ALTER SYSTEM SET synchronous_commit = local;
CREATE ROLE gone LOGIN;
ALTER ROLE gone SET session_preload_libraries = 'no_such_library';
ALTER ROLE gone IN DATABASE postgres SET local_preload_libraries = 'no_such_plugin';
ALTER DATABASE closed SET session_preload_libraries = 'auto_explain';
ALTER SYSTEM SET primary_conninfo = 'host=elsewhere password=xK7zQneedle';
ALTER SYSTEM SET log_directory = '/var/log/elsewhere';
ALTER SYSTEM SET logging_collector = off;
ALTER ROLE postgres SET vacuum_freeze_min_age = 50000000;
ALTER ROLE postgres SET statement_timeout = '2min';
\c shop
CREATE TABLE big (id int, v text, w text) WITH (autovacuum_enabled = off);
INSERT INTO big SELECT i, md5(i::text), repeat('x', 80) FROM generate_series(1, 100000) i;
CREATE INDEX ON big (id);
CREATE INDEX ON big USING gin (to_tsvector('simple', v));
BEGIN; UPDATE big SET v = v WHERE id % 50 = 0; ROLLBACK;
DELETE FROM big WHERE id % 400 = 7;
BEGIN; SELECT count(*) FROM (SELECT 1 FROM big WHERE id % 100 = 3 FOR UPDATE) x; COMMIT;
CREATE TABLE elsewhere (a int PRIMARY KEY, t text) TABLESPACE ts;
INSERT INTO elsewhere SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 2000) i;
CREATE TABLE few (a int) WITH (autovacuum_enabled = off); INSERT INTO few SELECT generate_series(1, 50000);
CREATE INDEX ON few (a); DELETE FROM few WHERE a IN (100, 20000);
CREATE UNLOGGED TABLE fleeting (a int); INSERT INTO fleeting VALUES (1);
CREATE MATERIALIZED VIEW seen AS SELECT count(*) FROM big;
CREATE TABLE parted (k int, v int) PARTITION BY RANGE (k);
CREATE TABLE parted1 PARTITION OF parted FOR VALUES FROM (0) TO (10000);
INSERT INTO parted SELECT i, i FROM generate_series(0, 9999) i;
CREATE STATISTICS both_columns ON k, v FROM parted1;
CREATE SEQUENCE seq; SELECT nextval('seq');
CREATE EXTENSION pg_trgm;
CREATE EXTENSION dblink;
CREATE EXTENSION postgres_fdw;
CREATE SERVER prod FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host 'prod.invalid', dbname 'ledger');
CREATE USER MAPPING FOR app SERVER prod OPTIONS (user 'ledger', password 'mapped');
CREATE FOREIGN TABLE far (a int) SERVER prod;
CREATE FUNCTION mark() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN COPY (SELECT 1) TO PROGRAM 'touch /marker/event; cat >/dev/null'; END$$;
CREATE EVENT TRIGGER bridge ON ddl_command_start EXECUTE FUNCTION mark();
ALTER EVENT TRIGGER bridge DISABLE;
CREATE SUBSCRIPTION sub CONNECTION 'host=publisher.invalid password=xK7zQneedle dbname=x' PUBLICATION p WITH (connect = false, slot_name = 'subslot');
ALTER EVENT TRIGGER bridge ENABLE ALWAYS;
BEGIN; INSERT INTO elsewhere VALUES (-1, 'prepared'); PREPARE TRANSACTION 'gid ''1';
`

func TestSettle(t *testing.T) {
	for _, m := range majors {
		t.Run(fmt.Sprint(m.number), func(t *testing.T) {
			t.Parallel()
			shared := intentionsOf(t, m)
			src := shared.source
			sentinel := src.sql(t, "shop", "SELECT count(*), sum(id) FROM big")

			probe := src.probe(t, src.asApp()).ok(t).Probe
			assert.Equal(t, probe.Major, m.number)
			assert.Equal(t, probe.Superuser, "postgres")
			assert.Equal(t, len(probe.Tablespaces), 1)
			assert.Equal(t, probe.Tablespaces[0].Location, "/ts")
			assert.Assert(t, probe.Bytes > 30<<20, "%d bytes", probe.Bytes)
			assert.Equal(t, probe.SystemIdentifier, src.sql(t, "postgres", "SELECT system_identifier FROM pg_control_system()"))

			// A session with temporary tables, whose files a base backup leaves out.
			docker(t, "exec", "-d", src.name, "psql", "-U", "postgres", "-d", "shop",
				"-c", "CREATE TEMP TABLE passing (a int PRIMARY KEY, b text)", "-c", "INSERT INTO passing VALUES (1, 'x')",
				"-c", "CREATE TEMP TABLE tp (k int) PARTITION BY LIST (k)", "-c", "CREATE TEMP TABLE tp1 PARTITION OF tp FOR VALUES IN (1)",
				"-c", "SET statement_timeout = 0", "-c", "SELECT pg_sleep(600)")

			stage, marker := t.TempDir(), t.TempDir()
			assert.NilError(t, os.Chmod(marker, 0o777))
			secrecy := &secrecy{t: t}
			backup := src.baseBackup(stage, src.asApp(), probe)
			backup.during = func(r *running, _ contract.AgentEvent) { secrecy.look(r.name) }
			copied := backup.run(t)
			result := copied.ok(t).BaseBackup
			assert.Assert(t, regexp.MustCompile(`^[0-9A-F]+/[0-9A-F]+$`).MatchString(result.StartLSN), result.StartLSN)
			assert.Assert(t, result.Bytes > probe.Bytes, "%d bytes", result.Bytes)
			assert.Assert(t, secrecy.seen, "pg_basebackup was never looked at")
			assert.Equal(t, src.sql(t, "postgres", "SELECT string_agg(slot_name, ',') FROM pg_replication_slots"), "standby1")

			shared.keep(t, stage, probe, result)
			settling := src.settle(stage, probe, result)
			settling.mounts = []string{marker + ":/marker"}
			settled := settling.run(t)
			manifest := settled.ok(t).Manifest
			t.Logf("Postgres %d: base backup of %d MiB %.2f s, settle %.2f s (both with a container's start and end)",
				m.number, result.Bytes>>20, copied.took.Seconds(), settled.took.Seconds())

			checkManifest(t, m, stage, manifest)
			checkTree(t, m, stage, manifest)
			checkControl(t, m, stage)
			checkBranch(t, m, stage, marker, sentinel)
			entries, err := os.ReadDir(marker)
			assert.NilError(t, err)
			assert.Equal(t, len(entries), 0, "%v fired", entries)
		})
	}
}

// secrecy looks for the password wherever somebody else could see it.
type secrecy struct {
	t    *testing.T
	seen bool
}

func (s *secrecy) look(container string) {
	s.t.Helper()
	inspect, _ := exec.Command("docker", "inspect", container).Output()
	processes, err := exec.Command("ps", "axeww", "-o", "args").Output() // with every environment
	assert.NilError(s.t, err)
	for _, line := range strings.Split(string(processes), "\n") {
		if strings.Contains(line, "pg_basebackup --dbname") {
			s.seen = true
		}
		assert.Assert(s.t, !strings.Contains(line, passwordCore), "a process shows the password: %s", line)
	}
	assert.Assert(s.t, !strings.Contains(string(inspect), passwordCore), "docker inspect shows the password")
}

func checkManifest(t *testing.T, m major, stage string, got *contract.Manifest) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(stage, contract.StagingManifest))
	assert.NilError(t, err)
	var written contract.Manifest
	assert.NilError(t, json.Unmarshal(text, &written))
	assert.DeepEqual(t, written, *got)

	assert.Equal(t, got.Format, contract.ManifestFormat)
	assert.Equal(t, got.Major, m.number)
	assert.Assert(t, strings.HasPrefix(got.ServerVersion, fmt.Sprint(m.number, ".")), got.ServerVersion)
	assert.Equal(t, got.DataDir, m.dataDir)
	assert.Equal(t, got.MountPath, m.volume)
	assert.Equal(t, got.UID, 999)
	assert.Equal(t, got.GID, 999)
	assert.Equal(t, got.Superuser, "postgres")
	assert.DeepEqual(t, got.PreloadLibraries, []string{"auto_explain", "no_such_library", "no_such_plugin", "pg_prewarm"})
	assert.Assert(t, strings.HasPrefix(got.Libc, "glibc 2."), got.Libc)
	assert.Equal(t, got.DataChecksums, m.number >= 18)
	assert.Assert(t, !got.SettledAt.IsZero() && !got.SourceTime.IsZero())
	var extensions []string
	for _, e := range got.Extensions {
		assert.Assert(t, e.Database == "shop" && e.Version != "", "%+v", e)
		extensions = append(extensions, e.Name)
	}
	assert.DeepEqual(t, extensions, []string{"dblink", "pg_trgm", "postgres_fdw"})
	assert.DeepEqual(t, got.Reported, []contract.Finding{
		{Database: "shop", What: "foreign server prod", Detail: "postgres_fdw, dbname=ledger, host=prod.invalid, user mappings: 1"},
		{Database: "shop", What: "event trigger bridge", Detail: "ddl_command_start, calls public.mark"},
		{Database: "shop", What: "extension dblink", Detail: outward["dblink"]},
	})

	var names []string
	for _, d := range got.Databases {
		names = append(names, d.Name)
		assert.Equal(t, d.Encoding, "UTF8")
		assert.Equal(t, d.Provider, "libc")
		assert.Assert(t, d.Collation != "" && d.CType != "" && d.CollationVersion != "" && d.Bytes > 1<<20, "%+v", d)
	}
	assert.DeepEqual(t, names, []string{"closed", "postgres", "shop", "template0", "template1"})

	changes := map[string]contract.Change{}
	for _, c := range got.Neutralised {
		changes[c.What] = c
		assert.Assert(t, c.Why != "", c.What)
	}
	for what, was := range map[string]string{
		"archive_mode": "on", "archive_command": "touch /marker/archived", "restore_command": "touch /marker/restored; false",
		"shared_preload_libraries": "auto_explain, pg_prewarm", "primary_conninfo": "", "synchronous_standby_names": "nobody",
		`ALTER ROLE "gone" SET session_preload_libraries`:                      "no_such_library",
		`ALTER ROLE "gone" IN DATABASE "postgres" SET local_preload_libraries`: "no_such_plugin",
		`ALTER DATABASE "closed" SET session_preload_libraries`:                "auto_explain",
		// Set on the command line only.
		"max_prepared_transactions": "7", "max_connections": "120",
		"subscription sub in database shop":            "slot subslot",
		"prepared transaction gid '1 in database shop": "",
	} {
		c, ok := changes[what]
		assert.Assert(t, ok, "%s is not among the changes %v", what, changes)
		assert.Equal(t, c.Was, was, what)
	}
}

// checkTree looks at the seed's files: nothing that is stale or secret, one sparse
// WAL segment, and one owner.
func checkTree(t *testing.T, m major, stage string, manifest *contract.Manifest) {
	t.Helper()
	data := filepath.Join(stage, contract.StagingRoot, m.dataDir)
	for _, gone := range []string{
		"backup_label", "backup_label.old", "tablespace_map", "backup_manifest", "postmaster.pid", "postmaster.opts",
		"standby.signal", "recovery.signal", asideConf, "pg_replslot/standby1", "global/pg_internal.init", "pg_wal/pgoverlay.tmp",
	} {
		_, err := os.Lstat(filepath.Join(data, gone))
		assert.ErrorIs(t, err, fs.ErrNotExist, gone)
	}
	entries, err := os.ReadDir(stage)
	assert.NilError(t, err)
	assert.Equal(t, len(entries), 2, "root and manifest.json, not %v", entries)

	out, _ := exec.Command("grep", "-rlF", passwordCore, stage).Output()
	for _, name := range strings.Fields(string(out)) {
		// A superuser's ALTER ROLE text or a subscription's old row may linger in WAL that
		// was trimmed, but not in files.
		t.Errorf("the password is in %s", name)
	}

	segments, err := filepath.Glob(filepath.Join(data, "pg_wal", "*"))
	assert.NilError(t, err)
	var files []string
	for _, s := range segments {
		if info, err := os.Stat(s); err == nil && info.Mode().IsRegular() {
			files = append(files, s)
		}
	}
	// A timeline of its own: nothing of the source's takes a branch for the source.
	history := filepath.Join(data, "pg_wal", "00000002.history")
	assert.DeepEqual(t, files, []string{history, filepath.Join(data, manifest.WALHead)})
	assert.Assert(t, strings.HasPrefix(manifest.WALHead, "pg_wal/00000002"), manifest.WALHead)
	var st syscall.Stat_t
	assert.NilError(t, syscall.Stat(files[1], &st))
	assert.Equal(t, st.Size, int64(16<<20))
	assert.Assert(t, st.Blocks*512 <= 16<<10, "the WAL head has %d bytes allocated", st.Blocks*512)

	var bytes int64
	assert.NilError(t, filepath.WalkDir(filepath.Join(stage, contract.StagingRoot), func(path string, e fs.DirEntry, err error) error {
		assert.NilError(t, err)
		info, err := e.Info()
		assert.NilError(t, err)
		assert.Assert(t, e.IsDir() || e.Type().IsRegular(), "%s is a %s", path, e.Type())
		assert.Equal(t, info.Sys().(*syscall.Stat_t).Uid, uint32(999), path)
		if e.Type().IsRegular() {
			bytes += info.Size()
		}
		return nil
	}))
	assert.Equal(t, manifest.Bytes, bytes)
	info, err := os.Stat(data)
	assert.NilError(t, err)
	assert.Equal(t, info.Mode().Perm(), fs.FileMode(0o700))
}

func checkControl(t *testing.T, m major, stage string) {
	t.Helper()
	out := docker(t, "run", "--rm", "-v", stage+":/stage:ro", "-e", "LC_ALL=C", "--entrypoint", "pg_controldata", m.image,
		"-D", filepath.Join("/stage/root", m.dataDir))
	control, err := parseControlData(out)
	assert.NilError(t, err)
	assert.Equal(t, control.state, stateShutDown)
	assert.Assert(t, control.fullPageWrites)
	// The branch's own, not the source's command line.
	assert.Equal(t, control.settings["max_connections"], "100")
	assert.Equal(t, control.settings["max_prepared_transactions"], "0")
}

// readAll reads every table of every database through the heap and through each
// index, and lists what it found old.
const readAll = `
DO $$ DECLARE r record; n bigint; BEGIN
	SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
	FOR r IN SELECT oid::regclass AS t FROM pg_class WHERE relkind IN ('r', 'm', 't') LOOP
		EXECUTE 'SELECT count(*) FROM ' || r.t INTO n;
	END LOOP;
	SET enable_indexscan = on; SET enable_seqscan = off;
	FOR r IN SELECT i.indrelid::regclass AS t, a.attname AS c FROM pg_index i
			JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam AND m.amname = 'btree'
			JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] LOOP
		EXECUTE format('SELECT count(*) FROM (SELECT %I FROM %s ORDER BY %I) x', r.c, r.t, r.c) INTO n;
	END LOOP;
END $$;
SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'm', 't') AND age(relfrozenxid) > 1000;
`

// checkBranch runs a stock server on a copy of the seed, with an eager autovacuum,
// and sees that reading everything writes no relation.
func checkBranch(t *testing.T, m major, stage, marker, sentinel string) {
	t.Helper()
	container, volume := startBranch(t, m, stage, "branch", "-v", marker+":/marker")
	data := filepath.Join(volume, m.dataDir)
	before := relations(t, data)
	assert.Assert(t, len(before) > 1000, "%d relation files", len(before))
	ev, err := ready(container, "--user", "app", "--database", "shop")
	assert.NilError(t, err, "%+v\n%s", ev.Error, docker(t, "logs", container))
	psql(t, container, "postgres", "ALTER SYSTEM SET autovacuum_naptime = '1s'; SELECT pg_reload_conf()")

	assert.Equal(t, psql(t, container, "shop", "SELECT count(*), sum(id) FROM big"), sentinel)
	assert.Equal(t, psql(t, container, "shop", "SELECT count(*) FROM elsewhere WHERE a = -1"), "0")
	assert.Equal(t, psql(t, container, "shop", "SELECT count(*) FROM pg_class WHERE relpersistence = 't'"), "0")
	assert.Equal(t, psql(t, container, "postgres", `SELECT string_agg(datname, ',' ORDER BY 1) FROM pg_database WHERE NOT datallowconn`), "closed,template0")
	assert.Equal(t, psql(t, container, "postgres", `SELECT count(*) FROM pg_database WHERE age(datfrozenxid) > 1000`), "0")
	assert.Equal(t, psql(t, container, "shop", `SELECT subenabled, subslotname IS NULL, subconninfo LIKE '%invalid%' FROM pg_subscription`), "f|t|f")
	assert.Equal(t, psql(t, container, "shop", `SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_prepared_xacts)`), "0|0")
	assert.Equal(t, psql(t, container, "shop", `SELECT concat_ws('|', current_setting('archive_mode'), current_setting('restore_command'),
		current_setting('shared_preload_libraries'), current_setting('primary_conninfo'), current_setting('data_directory'))`),
		"off||||"+m.pgdata())
	for _, database := range []string{"postgres", "template1", "shop"} {
		assert.Equal(t, psql(t, container, database, readAll), "0", database)
	}
	psql(t, container, "postgres", "SELECT pg_sleep(4)") // autovacuum looks into every database meanwhile
	psql(t, container, "postgres", "CHECKPOINT")
	after := relations(t, data)
	for name, sum := range before {
		assert.Equal(t, after[name], sum, "%s was written", name)
	}
	for name := range after {
		_, ok := before[name]
		assert.Assert(t, ok, "%s was made", name)
	}

	// The subscription goes without anybody being asked, in no time.
	assert.Equal(t, psql(t, container, "shop", "SELECT evtenabled FROM pg_event_trigger"), "A")
	assert.Equal(t, psql(t, container, "shop", "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'prewarm'"), "0")
	psql(t, container, "shop", "ALTER EVENT TRIGGER bridge DISABLE; SET statement_timeout = '10s'; DROP SUBSCRIPTION sub")
	docker(t, "exec", container, "psql", "-U", "gone", "-d", "postgres", "-c", "SELECT 1")
	checkLogin(t, m, container)
	docker(t, "stop", container)
	log := docker(t, "logs", container)
	assert.Assert(t, !strings.Contains(log, "redo starts") && !strings.Contains(log, "was interrupted"), log)
	assert.Assert(t, strings.Contains(log, "database system was shut down at"), log)
	for line := range strings.Lines(log) {
		// A busy machine starts a worker too late, and the launcher warns of it.
		late := strings.Contains(line, "autovacuum worker")
		assert.Assert(t, late || !strings.Contains(line, "ERROR") && !strings.Contains(line, "WARNING"), line)
	}
	checkRecords(t, m, stage, volume)
	checkCrash(t, container)
}

// checkCrash kills a branch whose tablespace is a folder in pg_tblspc, after it has
// written there, and sees that it recovers. The server demands allow_in_place_tablespaces
// where it finds such a folder at the end of an archive recovery, and not of this one
// (CheckRecoveryConsistency in xlogrecovery.c).
func checkCrash(t *testing.T, container string) {
	t.Helper()
	docker(t, "start", container)
	ev, err := ready(container, "--user", "app", "--database", "shop")
	assert.NilError(t, err, "%+v", ev.Error)
	psql(t, container, "shop", "CHECKPOINT; INSERT INTO elsewhere SELECT i, 'after' FROM generate_series(1000001, 1000500) i; "+
		"CREATE TABLE made TABLESPACE ts AS SELECT 1 AS a")
	docker(t, "kill", container)
	docker(t, "start", container)
	ev, err = ready(container, "--user", "app", "--database", "shop")
	assert.NilError(t, err, "%+v\n%s", ev.Error, docker(t, "logs", container))
	assert.Equal(t, psql(t, container, "shop", "SELECT count(*), (SELECT count(*) FROM made) FROM elsewhere WHERE a > 0"), "2500|1")
	assert.Assert(t, strings.Contains(docker(t, "logs", container), "redo starts"), "it did not crash")
}

// checkLogin logs in from another container with the source's password, and with another.
// They come by a file: the tests beside this one look for the password in every process.
func checkLogin(t *testing.T, m major, container string) {
	t.Helper()
	net, err := network()
	assert.NilError(t, err)
	docker(t, "network", "connect", net, container)
	file := filepath.Join(t.TempDir(), "pgpass")
	client := func(password string) (string, error) {
		line := "*:*:*:*:" + strings.NewReplacer(":", `\:`, `\`, `\\`).Replace(password)
		assert.NilError(t, os.WriteFile(file, []byte(line+"\n"), 0o600))
		out, err := exec.Command("docker", "run", "--rm", "--network", net, "-v", file+":/pgpass:ro", "-e", "PGPASSFILE=/pgpass",
			"--entrypoint", "psql", m.image, "-wXAt", "-h", container, "-U", "app", "-d", "shop", "-c", "SELECT current_user").CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	out, err := client(password)
	assert.NilError(t, err, out)
	assert.Equal(t, out, "app")
	out, err = client("wrong")
	assert.Assert(t, err != nil && strings.Contains(out, "password authentication failed"), out)
}

// checkRecords sees that the branch's first start logged no change of parameters.
func checkRecords(t *testing.T, m major, stage, volume string) {
	t.Helper()
	out := docker(t, "run", "--rm", "-v", stage+":/stage:ro", "-v", volume+":/branch:ro", "-e", "LC_ALL=C", "--entrypoint", "bash", m.image, "-c",
		`lsn=$(pg_controldata -D /stage/root/`+m.dataDir+` | sed -n 's/^Latest checkpoint.s REDO location: *//p')
		tli=$(pg_controldata -D /stage/root/`+m.dataDir+` | sed -n 's/^Latest checkpoint.s TimeLineID: *//p')
		pg_waldump -p /branch/`+m.dataDir+`/pg_wal -t "$tli" -s "$lsn" 2>&1 | head -n 200`)
	assert.Assert(t, strings.Contains(out, "CHECKPOINT_SHUTDOWN"), out)
	assert.Assert(t, !strings.Contains(out, "PARAMETER_CHANGE"), out)
	assert.Assert(t, !strings.Contains(out, "FPW_CHANGE"), out)
}

var relationName = regexp.MustCompile(`^(t\d+_)?\d+(_[a-z]+)?(\.\d+)?$|^pg_filenode\.map$`)

// relations gives a checksum and the modification time of every relation file.
func relations(t *testing.T, data string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, dir := range []string{"base", "global", "pg_tblspc"} {
		err := filepath.WalkDir(filepath.Join(data, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || !relationName.MatchString(e.Name()) {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			h := sha256.New()
			if _, err := io.Copy(h, f); err != nil {
				return err
			}
			name, _ := filepath.Rel(data, path)
			sums[name] = info.ModTime().String() + " " + hex.EncodeToString(h.Sum(nil))
			return nil
		})
		assert.NilError(t, err)
	}
	return sums
}
