//go:build e2e

package shimtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// testStaleDescriptors (case C01): a session that has files open from before a copy-up sees what others have written since, as
// soon as its own buffers are gone, in the heap, in indexes, in both maps and in the transaction status.
func testStaleDescriptors(t *testing.T, p pair) {
	const look = "SELECT format('%s %s %s', sum(v), count(*), count(*) FILTER (WHERE pad = 'changed')) FROM v_stale"
	for _, c := range p.both() {
		old, writer := c.connect(t, "postgres"), c.connect(t, "postgres")
		query[string](t, old, look)
		exe(t, old, "SET enable_seqscan = off")
		query[string](t, old, look+" WHERE id > 0")
		query[int64](t, old, "SELECT count(*) FROM big WHERE id > 0")
		if c.server.major >= 18 {
			requireInWorkers(t, c, "v_stale")
		}
		exe(t, writer, "UPDATE v_stale SET v = v + 1, pad = 'changed' WHERE id % 2 = 0", "DELETE FROM v_stale WHERE id % 10 = 1", "VACUUM v_stale", "CHECKPOINT")
		exe(t, writer, "BEGIN", "UPDATE v_stale SET v = -1", "ROLLBACK", "SELECT count(*) FROM big", "CHECKPOINT")
		exe(t, old, "SELECT count(*) FROM big WHERE id > 0")
		by := query[string](t, old, look+" WHERE id > 0")
		exe(t, old, "SET enable_seqscan = on", "SELECT count(*) FROM big")
		if want := "227000 4500 2500"; by != want || query[string](t, old, look) != want {
			t.Errorf("the old session sees %s by index, or another sum by heap; want %s", by, want)
		}
		closeConn(t, old)
		closeConn(t, writer)
	}
	p.requireEqual(t, "postgres")
}

// requireInWorkers: an I/O worker of 18 has the table's file open. It reads for all sessions, by descriptors of its own.
func requireInWorkers(t *testing.T, c *cluster, table string) {
	t.Helper()
	conn := c.connect(t, "postgres")
	defer closeConn(t, conn)
	file := "/" + query[string](t, conn, "SELECT pg_relation_filepath('"+table+"')")
	rows, err := conn.Query(context.Background(), "SELECT pid FROM pg_stat_activity WHERE backend_type = 'io worker'")
	if err != nil {
		t.Fatal(err)
	}
	workers, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(workers, func(pid int32) bool {
		return slices.ContainsFunc(openFiles(int(pid)), func(name string) bool { return strings.HasSuffix(name, file) })
	}) {
		t.Errorf("no I/O worker of %v has %s open", workers, file)
	}
}

// openFiles are the files that the process has open, by their names.
func openFiles(pid int) (names []string) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is right
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil { // it may have been closed since
			names = append(names, name)
		}
	}
	return names
}

var workersLaunched = regexp.MustCompile(`"Workers Launched": [1-9]`)

// testStaleOfParallelWorkers: a session with old descriptors leads new workers, and VACUUM's parallel workers copy up indexes that
// the session has open.
func testStaleOfParallelWorkers(t *testing.T, p pair) {
	const look = "SELECT format('%s %s', sum(v), count(*)) FROM v_workers"
	ways := []string{look, look + " WHERE id > 0", look + " WHERE v >= 0"}
	for _, name := range []string{"v_workers", "v_workers_pkey", "v_workers_v"} {
		if bytes, owned := p.r.relationsInUpper(t)[pathOf(t, p.branch, p.r, name)]; owned {
			t.Fatalf("%d bytes of %s are the branch's own already", bytes, name)
		}
	}
	for _, c := range p.both() {
		old := c.connect(t, "postgres")
		exe(t, old, "SET max_parallel_workers_per_gather = 2", "SET parallel_setup_cost = 0", "SET parallel_tuple_cost = 0", "SET min_parallel_table_scan_size = 0")
		exe(t, old, ways[0])
		exe(t, old, "SET enable_seqscan = off", ways[1], ways[2], "RESET enable_seqscan")
		writer, said := c.connectNoting(t, "postgres")
		exe(t, writer, "SET min_parallel_index_scan_size = 0", "SET max_parallel_maintenance_workers = 2", "DELETE FROM v_workers WHERE id % 10 = 1",
			"VACUUM (VERBOSE, PARALLEL 2) v_workers", "UPDATE v_workers SET v = v + 1 WHERE id % 2 = 0", "CHECKPOINT", "SELECT count(*) FROM big")
		if !strings.Contains(said.String(), "parallel vacuum worker") {
			t.Errorf("VACUUM was not parallel:\n%s", said)
		}
		if plan := query[string](t, old, "EXPLAIN (ANALYZE, FORMAT JSON) "+look); !workersLaunched.MatchString(plan) {
			t.Errorf("the scan was not parallel:\n%s", plan)
		}
		want := query[string](t, writer, look)
		for i, how := range ways {
			if i > 0 {
				exe(t, old, "SET enable_seqscan = off")
			}
			if got := query[string](t, old, how); got != want {
				t.Errorf("%s: the old session sees %s, a new one %s", how, got, want)
			}
		}
		closeConn(t, old)
		closeConn(t, writer)
	}
	p.requireEqual(t, "postgres")
}

// connectNoting is connect, with what the server says meanwhile.
func (c *cluster) connectNoting(t *testing.T, database string) (*pgx.Conn, *bytes.Buffer) {
	t.Helper()
	config, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=5432 user=postgres dbname=%s", c.sockets, database))
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { fmt.Fprintln(&said, n.Message, n.Detail) }
	conn, err := pgx.ConnectConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("%v\n%s", err, c.log)
	}
	return conn, &said
}

// A held file is one of the transaction status, open for reading since before it was copied up: in the branch, as any process of
// a server may have it, and in the seed, which shows what the first would show if it were stale.
type held struct {
	name          string // below the volume
	branch, lower *os.File
	before        []byte
}

func holdStatus(t *testing.T, p pair) (files []held) {
	t.Helper()
	for _, dir := range []string{"pg_xact", "pg_multixact/offsets", "pg_multixact/members", "pg_subtrans"} {
		names, err := filepath.Glob(filepath.Join(dataDir(p.r.path("seed"), p.branch.server.major), dir, "[0-9A-F]*"))
		if err != nil || len(names) == 0 {
			t.Fatalf("the seed has nothing in %s: %v", dir, err)
		}
		for _, lower := range names {
			name, err := filepath.Rel(p.r.path("seed"), lower)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(p.r.path("upper"), name)); err == nil {
				t.Fatalf("%s is the branch's own already", name)
			}
			h := held{name: name, branch: openFile(t, filepath.Join(p.r.volume, name)), lower: openFile(t, lower)}
			h.before = contents(t, h.branch)
			files = append(files, h)
		}
	}
	return files
}

func openFile(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // for reading only
	return f
}

func contents(t *testing.T, f *os.File) []byte {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, info.Size())
	if n, err := f.ReadAt(text, 0); n != len(text) {
		t.Fatalf("%s: %d of %d bytes: %v", f.Name(), n, len(text), err)
	}
	return text
}

// testStaleTransactionStatus (case C01): a descriptor from before the copy-up shows the commits since. It comes first: no file of
// these may have been written in the branch.
func testStaleTransactionStatus(t *testing.T, p pair) {
	files := holdStatus(t, p)
	var old []*pgx.Conn
	for _, c := range p.both() {
		conn := c.connect(t, "postgres")
		defer closeConn(t, conn)
		query[int64](t, conn, "SELECT sum(v) FROM v_status")
		makeStatus(t, c)
		old = append(old, conn)
	}
	for _, h := range files {
		h.requireFresh(t, p.r)
	}
	for i, c := range p.both() {
		if long() && c.server.major < 17 { // 17 keeps half a million transactions in memory, at least
			c.in(t, "postgres", "SET synchronous_commit = off", "DO $$ BEGIN FOR i IN 1..140000 LOOP PERFORM txid_current(); COMMIT; END LOOP; END $$", "CHECKPOINT")
		}
		const want = "247886 5000 1" // of 247500: 500 rows have one more, 100 one less, and one has -7 instead of 7
		if got := query[string](t, old[i], "SELECT format('%s %s %s', sum(v), count(*), count(*) FILTER (WHERE v = -7)) FROM v_status"); got != want {
			t.Errorf("the old session sees %s, not %s", got, want)
		}
	}
}

func (h held) requireFresh(t *testing.T, r *rig) {
	t.Helper()
	upper, err := os.ReadFile(filepath.Join(r.path("upper"), h.name))
	if err != nil {
		t.Errorf("%s was not written: %v", h.name, err)
		return
	}
	switch now := contents(t, h.branch); {
	case !bytes.Equal(now, upper):
		t.Errorf("%s: the old descriptor does not show what the branch has", h.name)
	case bytes.Equal(now, h.before):
		t.Errorf("%s: nothing has changed: this proves nothing", h.name)
	case !bytes.Equal(contents(t, h.lower), h.before):
		t.Errorf("%s has changed in the seed", h.name)
	}
}

// makeStatus commits, aborts, and locks, so that each kind of file is written.
func makeStatus(t *testing.T, c *cluster) {
	t.Helper()
	one, other := c.connect(t, "postgres"), c.connect(t, "postgres")
	defer closeConn(t, one)
	defer closeConn(t, other)
	exe(t, one, "UPDATE v_status SET v = v + 1 WHERE id % 10 = 0", "BEGIN", "UPDATE v_status SET v = 1000000 WHERE id % 10 = 1", "ROLLBACK")
	// More subtransactions than a backend announces (PGPROC_MAX_CACHED_SUBXIDS, 64): whose they are is in pg_subtrans.
	exe(t, one, "BEGIN", `DO $$ BEGIN FOR i IN 1..100 LOOP BEGIN
		UPDATE v_status SET v = v - 1 WHERE id = 10 * i + 2; EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$`, "CHECKPOINT", "COMMIT")
	const lock = "SELECT id FROM v_status WHERE id = 7 FOR KEY SHARE"
	exe(t, one, "BEGIN", lock)
	exe(t, other, "BEGIN", lock, "UPDATE v_status SET v = -7 WHERE id = 7", "COMMIT")
	exe(t, one, "COMMIT", "CHECKPOINT")
	exe(t, one, "SELECT count(*) FROM big", "CHECKPOINT") // v_status leaves the buffers, unseen
}
