//go:build e2e

package shimtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// What a branch is for, on a real server: reads own nothing, writes own what they touch, all sessions agree, a crash loses
// nothing, and there is one server.
func TestBranch(t *testing.T) {
	servers := append(debianServers(t), extraServers(t)...)
	for _, major := range npmMajors(t) {
		servers = append(servers, npmServer(t, major))
	}
	filesystems := []string{"ext4", "xfs", "btrfs"}
	for i, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel() // they wait for their disks, most of the time
			testBranch(t, s, filesystems[i%len(filesystems)])
		})
	}
}

func testBranch(t *testing.T, s server, fstype string) {
	r := newRig(t, fstype)
	sockets := t.TempDir()
	for dir := sockets; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	makeSeed(t, r, s, sockets)
	sealed := r.seedSum(t)
	b := &cluster{server: s, data: dataDir(r.volume, s.major), sockets: sockets, preload: r.preload()}

	t.Run("control: without the shim reads copy", func(t *testing.T) {
		r.branch(t)
		eager := *b
		eager.preload = ""
		eager.start(t)
		readEverything(t, &eager)
		eager.stop(t)
		if owned := r.relationsInUpper(t); len(owned) < 20 {
			t.Errorf("only %d relation files copied: %v", len(owned), owned)
		}
	})

	r.branch(t)
	b.start(t)
	t.Run("reads own nothing", func(t *testing.T) {
		readEverything(t, b)
		if owned := r.relationsInUpper(t); len(owned) != 0 {
			t.Errorf("%s on %s: owned after reads: %v", s.name, fstype, owned)
		}
		if strings.Contains(b.log.String(), "lazyrw") {
			t.Errorf("the shim is not silent:\n%s", b.log)
		}
	})
	t.Run("an update owns what it touches", func(t *testing.T) { testUpdate(t, r, b) })
	t.Run("a drop copies nothing", func(t *testing.T) { testDrop(t, r, b) })
	t.Run("an old session sees new data", func(t *testing.T) { testOldSession(t, b) })
	t.Run("a second server is refused", func(t *testing.T) { testSecondServer(t, r, b) })
	whole := t
	t.Run("a crash loses nothing", func(t *testing.T) { testCrash(t, whole, b) })
	t.Run("amcheck is content", func(t *testing.T) { testAmcheck(t, b) })
	b.stop(t)
	t.Run("the other ways to run postgres", func(t *testing.T) { testOtherModes(t, b) })
	t.Run("by shared_preload_libraries", func(t *testing.T) { testLibrary(t, r, b) })
	t.Run("by both ways at once", func(t *testing.T) { testBothWays(t, r, b) })
	if r.seedSum(t) != sealed {
		t.Error("the seed has changed")
	}
}

// makeSeed is a short form of settling: enough for a server to read what is here without writing. With
// more, more is done to it before it is frozen.
func makeSeed(t *testing.T, r *rig, s server, sockets string, more ...func(*cluster)) {
	t.Helper()
	c := &cluster{server: s, data: dataDir(r.path("seed"), s.major), sockets: sockets}
	owner := fmt.Sprintf("%d:%d", serverUser(t).Uid, serverUser(t).Gid)
	run(t, "mkdir", "-p", c.data)
	run(t, "chown", "-R", owner, r.path("seed"))
	if out, err := c.command(t, "initdb", "-D", c.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	c.start(t, "shared_buffers=64MB", "fsync=off")
	c.in(t, "postgres",
		"CREATE EXTENSION amcheck",
		"CREATE TABLE big (id int PRIMARY KEY, v int, pad text)",
		"INSERT INTO big SELECT i, i % 100, repeat('p', 700) FROM generate_series(1, 20000) i",
		"CREATE INDEX big_v ON big (v)",
		"CREATE TABLE small (id int PRIMARY KEY, v int)",
		"INSERT INTO small SELECT i, 0 FROM generate_series(1, 100) i",
		"CREATE TABLE doomed AS SELECT * FROM big",
		"CREATE TABLE account (id int PRIMARY KEY, balance int)",
		"INSERT INTO account SELECT i, 1000 FROM generate_series(1, 1000) i",
		"CREATE DATABASE other",
		"ALTER DATABASE template0 ALLOW_CONNECTIONS true")
	for _, do := range more {
		do(c)
	}
	for range 2 { // the second time for the statistics that the first wrote
		for _, database := range []string{"other", "template1", "postgres"} {
			c.in(t, database, "VACUUM (FREEZE, ANALYZE)")
		}
		c.in(t, "template0", "VACUUM (FREEZE)")
	}
	for _, database := range []string{"other", "template1", "postgres"} {
		c.in(t, database, "VACUUM (FREEZE) pg_statistic")
	}
	c.in(t, "postgres", "ALTER DATABASE template0 ALLOW_CONNECTIONS false", "VACUUM (FREEZE) pg_database", "VACUUM (FREEZE) pg_shdepend",
		"CHECKPOINT", "SELECT pg_switch_wal()")
	c.stop(t)
	run(t, "sync", "-f", c.data)
}

// readEverything reads every relation of every database by scans of both kinds, and checkpoints.
func readEverything(t *testing.T, c *cluster) {
	t.Helper()
	for _, database := range []string{"postgres", "other", "template1"} {
		conn := c.connect(t, database)
		rows, err := conn.Query(context.Background(),
			"SELECT c.oid::regclass::text FROM pg_class c WHERE relkind IN ('r', 't', 'm') AND relpersistence = 'p'")
		if err != nil {
			t.Fatal(err)
		}
		tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range tables {
			query[int64](t, conn, "SELECT count(*) FROM "+table)
		}
		query[int64](t, conn, "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r'")
		closeConn(t, conn)
	}
	conn := c.connect(t, "postgres")
	defer closeConn(t, conn)
	exe(t, conn, "SET enable_seqscan = off")
	if n := query[int64](t, conn, "SELECT count(*) FROM big WHERE v = 7"); n != 200 {
		t.Errorf("index scan found %d rows", n)
	}
	exe(t, conn, "RESET enable_seqscan", "SET max_parallel_workers_per_gather = 2", "SET parallel_setup_cost = 0", "SET min_parallel_table_scan_size = 0")
	if n := query[int64](t, conn, "SELECT sum(id) FROM big"); n != 20000*20001/2 {
		t.Errorf("parallel scan summed %d", n)
	}
	exe(t, conn, "EXPLAIN ANALYZE SELECT * FROM big ORDER BY pad, id", "CHECKPOINT")
}

// pathOf is the relation's file relative to the volume.
func pathOf(t *testing.T, c *cluster, r *rig, relation string) string {
	t.Helper()
	conn := c.connect(t, "postgres")
	defer closeConn(t, conn)
	full := filepath.Join(c.data, query[string](t, conn, "SELECT pg_relation_filepath('"+relation+"')"))
	name, err := filepath.Rel(r.volume, full)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func testUpdate(t *testing.T, r *rig, b *cluster) {
	b.in(t, "postgres", "UPDATE small SET v = 1 WHERE id = 7", "CHECKPOINT")
	small, index := pathOf(t, b, r, "small"), pathOf(t, b, r, "small_pkey")
	total := int64(0)
	for name, bytes := range r.relationsInUpper(t) {
		if !strings.HasPrefix(name, small) && !strings.HasPrefix(name, index) {
			t.Errorf("%s is owned, too", name)
		}
		total += bytes
	}
	if total == 0 || total > 256*1024 {
		t.Errorf("%d bytes of relations owned", total)
	}
}

func testDrop(t *testing.T, r *rig, b *cluster) {
	doomed := pathOf(t, b, r, "doomed")
	before := r.relationsInUpper(t)
	b.in(t, "postgres", "DROP TABLE doomed")
	if bytes := r.relationsInUpper(t)[doomed]; bytes > 8192 {
		t.Errorf("%s has %d bytes in the upper between drop and checkpoint", doomed, bytes)
	}
	b.in(t, "postgres", "CHECKPOINT", "CHECKPOINT")
	after := r.relationsInUpper(t)
	if _, there := after[doomed]; there {
		t.Errorf("%s is still there", doomed)
	}
	grown := int64(0)
	for name, bytes := range after {
		grown += bytes - before[name]
	}
	if grown > 3<<20 { // the catalogs that a drop writes: pg_class, pg_attribute, pg_depend, ... and their indexes
		t.Errorf("the drop of a table of 16 MB owns %d bytes", grown)
	}
}

func testOldSession(t *testing.T, b *cluster) {
	old, writer := b.connect(t, "postgres"), b.connect(t, "postgres")
	defer closeConn(t, old)
	defer closeConn(t, writer)
	const sum = "SELECT sum(v) FROM big"
	before := query[int64](t, old, sum)
	exe(t, writer, "UPDATE big SET v = v + 1 WHERE id % 4 = 0 OR v = 99", "CHECKPOINT") // a part: 16 buffers make it slow
	if after := query[int64](t, old, sum); after != before+5200 {
		t.Errorf("the old session sums %d, not %d", after, before+5200)
	}
	exe(t, old, "SET enable_seqscan = off", "SET enable_bitmapscan = off")
	if n := query[int64](t, old, "SELECT count(*) FROM big WHERE v = 100"); n != 200 {
		t.Errorf("the old session finds %d rows by index", n)
	}
	exe(t, writer, "TRUNCATE account", "INSERT INTO account SELECT i, 1000 FROM generate_series(1, 1000) i", "VACUUM FULL small",
		"ALTER TABLE big ADD extra int DEFAULT 5", "CREATE INDEX big_extra ON big (extra, id)", "VACUUM big")
	if n := query[int64](t, old, "SELECT sum(balance) FROM account"); n != 1000*1000 {
		t.Errorf("balances sum to %d", n)
	}
	if n := query[int64](t, old, "SELECT sum(extra) FROM big"); n != 100000 {
		t.Errorf("the new column sums to %d", n)
	}
}

// testSecondServer tries from other mount and process namespaces, as another container does.
func testSecondServer(t *testing.T, r *rig, b *cluster) {
	pidfile := filepath.Join(b.data, "postmaster.pid")
	before, err := os.ReadFile(pidfile)
	if err != nil {
		t.Fatal(err)
	}
	second := *b
	second.sockets = t.TempDir()
	inner := second.command(t, "postgres", second.settings()...)
	args := append([]string{"--mount", "--pid", "--fork", "--ipc", "--kill-child", "--mount-proc", "--setuid", fmt.Sprint(serverUser(t).Uid),
		"--setgid", fmt.Sprint(serverUser(t).Gid), "--"}, append([]string{"env"}, append(inner.Env, inner.Args...)...)...)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "unshare", args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "is in use by another Postgres server on this branch") {
		t.Errorf("a second server: %v\n%s", err, out)
	}
	if n := strings.Count(string(out), "\n"); n != 1 {
		t.Errorf("%d lines, want one:\n%s", n, out)
	}
	after, err := os.ReadFile(pidfile)
	if err != nil || string(after) != string(before) {
		t.Errorf("postmaster.pid of the first server: %v, %q", err, after)
	}
	b.in(t, "postgres", "SELECT 1")
}

// testCrash kills the whole server amid transfers between accounts, three times.
func testCrash(t, whole *testing.T, b *cluster) {
	for round := range 3 {
		var clients sync.WaitGroup
		for range 4 {
			conn := b.connect(t, "postgres")
			clients.Go(func() {
				defer func() { _ = conn.Close(context.Background()) }() // the server is gone by then
				for {
					if _, err := conn.Exec(context.Background(), `DO $$ DECLARE a int := 1 + random() * 999; b int := 1 + random() * 999; BEGIN
						UPDATE account SET balance = balance - 1 WHERE id = least(a, b);
						UPDATE account SET balance = balance + 1 WHERE id = greatest(a, b);
						UPDATE big SET v = v WHERE id = a * 20; END $$`); err != nil && conn.IsClosed() {
						return
					}
				}
			})
		}
		time.Sleep(time.Second)
		b.kill(t)
		clients.Wait()
		b.start(whole) // it serves the tests after this one, too
		conn := b.connect(t, "postgres")
		if n := query[int64](t, conn, "SELECT sum(balance) FROM account"); n != 1000*1000 {
			t.Errorf("round %d: balances sum to %d", round, n)
		}
		closeConn(t, conn)
	}
}

func testAmcheck(t *testing.T, b *cluster) {
	conn := b.connect(t, "postgres")
	defer closeConn(t, conn)
	bad := query[int64](t, conn, `SELECT count(*) FROM pg_class c, LATERAL verify_heapam(c.oid) WHERE relkind IN ('r', 't', 'm') AND relpersistence = 'p'`)
	if bad != 0 {
		t.Errorf("verify_heapam: %d complaints", bad)
	}
	n := query[int64](t, conn, `SELECT count(bt_index_check(c.oid, true)) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
		WHERE relkind = 'i' AND relam = 403 AND indisready AND indisvalid AND relpersistence = 'p'`)
	if n < 50 {
		t.Errorf("only %d indexes checked", n)
	}
}

func testOtherModes(t *testing.T, b *cluster) {
	single := b.command(t, "postgres", "--single", "-D", b.data, "postgres")
	single.Stdin = strings.NewReader("UPDATE small SET v = 77 WHERE id = 1;\nSELECT v FROM small WHERE id = 1;\n")
	if out, err := single.CombinedOutput(); err != nil || !strings.Contains(string(out), `v = "77"`) {
		t.Errorf("--single: %v\n%s", err, out)
	}
	for _, args := range [][]string{{"--version"}, {"-D", b.data, "-C", "data_directory"}, {"--describe-config"}} {
		plain := *b
		plain.preload = ""
		want, err := plain.command(t, "postgres", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, want)
		}
		have, err := b.command(t, "postgres", args...).CombinedOutput()
		if err != nil || string(have) != string(want) {
			t.Errorf("%v: %v, %q instead of %q", args, err, have, want)
		}
	}
}

// The second way in: no environment, the object is a module of the server.
func testLibrary(t *testing.T, r *rig, b *cluster) {
	r.branch(t)
	c := *b
	c.preload, c.library = "", r.preload()
	c.start(t)
	readEverything(t, &c)
	if owned := r.relationsInUpper(t); len(owned) != 0 {
		t.Errorf("%s: owned after reads: %v", c.server.name, owned)
	}
	testUpdate(t, r, &c)
	testDrop(t, r, &c)
	requireLock(t, &c) // by this way, too: with it a second server is refused
	testCrash(t, t, &c)
	testAmcheck(t, &c)
	c.stop(t)
}

// LD_PRELOAD and shared_preload_libraries name the same object, or two copies of it: the first is in force, the second does nothing.
func testBothWays(t *testing.T, r *rig, b *cluster) {
	for _, library := range []string{r.preload(), filepath.Join(filepath.Dir(r.preload()), "lazyrw-copy.so")} {
		r.branch(t)
		c := *b
		c.library = library
		c.start(t)
		readEverything(t, &c)
		if owned := r.relationsInUpper(t); len(owned) != 0 {
			t.Errorf("%s: owned after reads: %v", c.server.name, owned)
		}
		testUpdate(t, r, &c)
		c.in(t, "postgres", "LOAD '"+library+"'")
		testUpdate(t, r, &c)
		c.stop(t)
		if strings.Contains(c.log.String(), "lazyrw:") {
			t.Errorf("the shim is not silent:\n%s", c.log)
		}
	}
}
