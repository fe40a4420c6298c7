//go:build e2e

package shimtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A victim is a table of the seed for one scenario to work on: 5000 rows, 4 MB, and the index of its primary key.
const (
	victimRows  = 5000
	victimBytes = 4 << 20
	indexBytes  = 160 << 10
	catalogs    = 512 << 10 // what is left to be copied of catalogs after the first scenario has written most of them
)

var victims = []string{"v_truncate", "v_drop", "v_full", "v_index", "v_move", "v_vm", "v_tail", "v_rewrite", "v_read", "v_parallel", "v_auto", "v_stale", "v_workers", "v_status"}

// A scenario is done to a branch and to its twin on a plain directory. Afterwards every table is the same on both, and the
// branch's upper has not grown by more than bound.
type scenario struct {
	name  string
	bound int64 // bytes of relation files
	do    []string
}

var scenarios = []scenario{
	// The first to change a catalog copies it, in a branch: that is paid here, and not charged to the others.
	{"catalogs", 6 << 20, []string{"CREATE TABLE warm (id int PRIMARY KEY, t text)", "CREATE INDEX ON warm (t)", "INSERT INTO warm VALUES (1, 'x')",
		"ALTER TABLE warm ADD CHECK (id > 0)", "COMMENT ON TABLE warm IS 'w'", "ANALYZE warm", "DROP TABLE warm"}},
	{"TRUNCATE", catalogs, []string{"TRUNCATE v_truncate"}},
	{"TRUNCATE and fill", 64<<10 + indexBytes + catalogs, []string{"TRUNCATE v_truncate", "INSERT INTO v_truncate SELECT i, i, 'new' FROM generate_series(1, 1000) i"}},
	{"DROP TABLE", catalogs, []string{"DROP TABLE v_drop"}},
	{"VACUUM FULL", victimBytes + indexBytes + catalogs, []string{"VACUUM FULL v_full"}},
	{"CREATE INDEX", indexBytes + catalogs, []string{"CREATE INDEX v_index_v ON v_index (v)", "REINDEX TABLE v_index"}},
	{"SET TABLESPACE", victimBytes + catalogs, []string{"ALTER TABLE v_move SET TABLESPACE aside"}},
	{"free space and visibility maps", victimBytes + indexBytes + catalogs, []string{"DELETE FROM v_vm WHERE id % 2 = 0", "VACUUM v_vm"}},
	// Twice: the truncation stops early when it is slow (lazy_truncate_heap).
	{"VACUUM that truncates", victimBytes + indexBytes + catalogs, []string{"DELETE FROM v_tail WHERE id > 2500", "VACUUM (TRUNCATE) v_tail", "VACUUM (TRUNCATE) v_tail"}},
	{"rewriting ALTER TABLE", victimBytes + indexBytes + catalogs, []string{"ALTER TABLE v_rewrite ALTER v TYPE bigint"}},
	{"unlogged tables", 3*victimBytes + catalogs, // the update leaves twice the table
		[]string{"UPDATE unlogged SET v = v + 1", "CREATE UNLOGGED TABLE unlogged2 AS SELECT * FROM v_read"}},
	{"parallel workers", catalogs, []string{"SET max_parallel_workers_per_gather = 2", "SET parallel_setup_cost = 0", "SET parallel_tuple_cost = 0",
		"SET min_parallel_table_scan_size = 0", "CREATE TABLE sums AS SELECT v % 10 AS v, sum(id), count(pad) FROM v_parallel GROUP BY 1"}},
	{"drop of an inherited slot", 0, []string{"SELECT pg_drop_replication_slot('inherited')"}},
	{"DROP DATABASE", catalogs, []string{"DROP DATABASE inherited"}},
}

// A pair is a branch and its twin.
type pair struct {
	r            *rig
	branch, twin *cluster
}

func (p pair) both() []*cluster { return []*cluster{p.branch, p.twin} }

func newPair(t *testing.T, s server, fstype string, settings ...string) pair {
	r := newRig(t, fstype)
	makeSeed(t, r, s, socketDir(t), func(c *cluster) {
		for _, victim := range victims {
			c.in(t, "postgres", "CREATE TABLE "+victim+" (id int PRIMARY KEY, v int, pad text)",
				fmt.Sprintf("INSERT INTO %s SELECT * FROM big WHERE id <= %d", victim, victimRows))
		}
		c.in(t, "postgres", "CREATE UNLOGGED TABLE unlogged AS SELECT * FROM v_read", "CREATE DATABASE inherited", "DROP TABLE doomed",
			"SELECT pg_create_physical_replication_slot('inherited')", "SET allow_in_place_tablespaces = on", "CREATE TABLESPACE aside LOCATION ''")
		c.in(t, "postgres", "CREATE INDEX v_workers_v ON v_workers (v)")
		c.in(t, "other", "CREATE TABLE rows (id int PRIMARY KEY, v int, pad text)",
			"INSERT INTO rows SELECT i, i % 100, repeat('p', 700) FROM generate_series(1, 20000) i")
	})
	run(t, "cp", "-a", "--sparse=always", r.path("seed"), r.path("twin"))
	r.branch(t)
	p := pair{
		r:      r,
		branch: &cluster{server: s, data: dataDir(r.volume, s.major), sockets: socketDir(t), preload: r.preload()},
		twin:   &cluster{server: s, data: dataDir(r.path("twin"), s.major), sockets: socketDir(t)},
	}
	for _, c := range p.both() {
		c.start(t, append(settings, tortureSettings()...)...)
	}
	requireShim(t, p.branch)
	return p
}

// wal_init_zero=off: else a fresh segment, which the twin may need where the branch does not, is 16 MB of writes.
// bgwriter_lru_maxpages=0: VACUUM passes over a page that is being written, and then cuts off less (lazy_scan_noprune). The short
// form saves the time that the disk takes.
func tortureSettings() []string {
	settings := []string{"shared_buffers=2MB", "wal_init_zero=off", "bgwriter_lru_maxpages=0", "max_wal_size=1GB", "max_worker_processes=8"}
	if !long() {
		settings = append(settings, "fsync=off")
	}
	return settings
}

func long() bool { return os.Getenv("LZ_LONG") != "" }

func (p pair) owned(t *testing.T) (total int64) {
	t.Helper()
	for _, bytes := range p.r.relationsInUpper(t) {
		total += bytes
	}
	return total
}

// digest is one line for each table of the user's in that database: its rows, a sum over them that does not depend on their
// order, and the sizes of its forks.
func digest(t *testing.T, c *cluster, database string) string {
	t.Helper()
	conn := c.connect(t, database)
	defer closeConn(t, conn)
	rows, err := conn.Query(context.Background(), "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, table := range tables {
		fmt.Fprintln(&lines, table, query[string](t, conn, fmt.Sprintf(`SELECT format('%%s rows, sum %%s, forks %%s %%s %%s, indexes %%s', count(*), sum(hashtextextended(x::text, 0)),
			pg_relation_size('%[1]s'), pg_relation_size('%[1]s', 'fsm') > 0, pg_relation_size('%[1]s', 'vm'), pg_indexes_size('%[1]s')) FROM %[1]s x`, table)))
	}
	return lines.String()
}

func (p pair) requireEqual(t *testing.T, databases ...string) {
	t.Helper()
	for _, database := range databases {
		if have, want := digest(t, p.branch, database), digest(t, p.twin, database); have != want {
			t.Errorf("%s in the branch:\n%s\nand in the twin:\n%s", database, have, want)
		}
	}
}

// TestTorture: what rewrites, empties and copies whole files does to a branch what it does to a plain directory. Its long form
// also counts what is written, waits for autovacuum, restores a base backup, has every relation checked, does most of that on
// 18 with its I/O workers on file systems that clone, and writes into relations of two segments.
func TestTorture(t *testing.T) {
	t.Run("ext4", func(t *testing.T) {
		p := newPair(t, debianServers(t)[0], "ext4")
		p.torture(t, "WAL_LOG", "FILE_COPY")
		if !long() {
			amcheck(t, p.branch, "--database", "postgres")
			return
		}
		whole := t
		t.Run("autovacuum", func(t *testing.T) { testAutovacuum(t, whole, p) })
		t.Run("base backup of the branch", func(t *testing.T) { testBaseBackup(t, p) })
		p.finish(t)
	})
	if !long() {
		return
	}
	for _, fstype := range []string{"xfs", "btrfs"} {
		t.Run("18 on "+fstype, func(t *testing.T) {
			p := newPair(t, npmServer(t, 18), fstype, "io_method=worker")
			p.torture(t, "WAL_LOG", "FILE_COPY", cloned)
			p.finish(t)
		})
	}
	for _, fstype := range []string{"ext4", "xfs"} {
		t.Run("two segments on "+fstype, func(t *testing.T) { testTwoSegments(t, debianServers(t)[0], fstype) })
	}
}

// torture is what the pair is for.
func (p pair) torture(t *testing.T, strategies ...string) {
	t.Run("stale descriptors of the transaction status", func(t *testing.T) { testStaleTransactionStatus(t, p) })
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { p.run(t, s) })
	}
	t.Run("stale descriptors", func(t *testing.T) { testStaleDescriptors(t, p) })
	t.Run("stale descriptors of parallel workers", func(t *testing.T) { testStaleOfParallelWorkers(t, p) })
	t.Run("CREATE DATABASE", func(t *testing.T) { testCreateDatabase(t, p, strategies...) })
	p.requireEqual(t, "postgres", "other", "template1")
}

func (p pair) finish(t *testing.T) {
	for _, c := range p.both() {
		amcheckAll(t, c)
		c.stop(t)
	}
}

func (p pair) run(t *testing.T, s scenario) {
	before := p.owned(t)
	for _, c := range p.both() {
		c.in(t, "postgres", append(slices.Clone(s.do), "CHECKPOINT", "CHECKPOINT")...)
	}
	grown := p.owned(t) - before
	fmt.Printf("  %-32s owned %+6d KiB, bound %6d KiB\n", s.name, grown/1024, s.bound/1024)
	if grown > s.bound {
		t.Errorf("the upper has grown by %d bytes, bound %d", grown, s.bound)
	}
	if long() {
		p.requireEqual(t, "postgres")
	}
}

// testAutovacuum lets the launcher's workers do what nobody asked for. The sizes of the two need not be equal from here on: it
// depends on the moment what a worker can truncate.
func testAutovacuum(t, whole *testing.T, p pair) {
	for _, c := range p.both() {
		c.stop(t)
		c.start(t, append([]string{"autovacuum=on", "autovacuum_naptime=1s"}, tortureSettings()...)...)
		c.in(t, "postgres", "UPDATE v_auto SET v = v + 1")
		conn := c.connect(t, "postgres")
		for end := time.Now().Add(120 * time.Second); query[int64](t, conn,
			"SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 'v_auto'") < 1; time.Sleep(200 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("autovacuum does not come")
			}
		}
		closeConn(t, conn)
		c.stop(t)
		c.start(whole, tortureSettings()...) // they serve the tests after this one, too
	}
}

// testBaseBackup restores a base backup of the branch in a plain directory.
func testBaseBackup(t *testing.T, p pair) {
	backup := &cluster{server: p.branch.server, data: p.r.path("backup"), sockets: socketDir(t)}
	run(t, "install", "-d", "-m", "700", "-o", "postgres", backup.data)
	cmd := backup.command(t, "pg_basebackup", "--pgdata", backup.data, "--host", p.branch.sockets, "--username", "postgres", "--checkpoint=fast", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	if out, err := exec.Command(filepath.Join(backup.server.bin, "pg_verifybackup"), backup.data).CombinedOutput(); err != nil {
		t.Errorf("pg_verifybackup: %v\n%s", err, out)
	}
	// Else the end of the recovery takes them for a mistake (CheckTablespaceDirectory).
	backup.start(t, "allow_in_place_tablespaces=on")
	p.branch.in(t, "postgres", "TRUNCATE unlogged", "TRUNCATE unlogged2") // a base backup has none of the rows of unlogged tables
	for _, database := range []string{"postgres", "other"} {
		if have, want := digest(t, backup, database), digest(t, p.branch, database); have != want {
			t.Errorf("%s in the backup:\n%s\nand in the branch:\n%s", database, have, want)
		}
	}
	amcheckAll(t, backup)
	backup.stop(t)
}
