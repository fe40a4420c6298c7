//go:build e2e

package shimtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
)

// A variant is a way to run a branch of a seed: by which server, with which settings, by which way in.
type variant struct {
	server   server
	settings []string
	library  bool // shared_preload_libraries instead of LD_PRELOAD
}

func (v variant) name() string {
	name := strings.Join(append([]string{v.server.name}, v.settings...), " ")
	if v.library {
		name += " by library"
	}
	return name
}

// A row of the matrix: a seed, and the variants that run branches of it. A physical copy fits any build of the same major
// with the same alignment and byte order, so that the seed of one serves another architecture, too. Builds are brought when
// their row's turn comes.
type row struct {
	name, fstype string
	bring        func(*testing.T) []variant // the first one's server makes the seed
}

var matrix = []row{
	{"14", "ext4", func(t *testing.T) []variant { return []variant{{server: npmServer(t, 14)}} }},
	{"15", "xfs", func(t *testing.T) []variant { return []variant{{server: debianServers(t)[0]}} }},
	{"16", "xfs", func(t *testing.T) []variant { return []variant{{server: npmServer(t, 16)}} }},
	{"17", "btrfs", func(t *testing.T) []variant {
		return append([]variant{{server: debianRoot(t, 17, "amd64")}}, bothWays(debianRoot(t, 17, "arm64"))...)
	}},
	{"18", "ext4", func(t *testing.T) []variant {
		s := debianRoot(t, 18, "amd64")
		return []variant{{server: s, settings: []string{"io_method=worker"}}, {server: s, settings: []string{"io_method=sync"}}}
	}},
	{"18-musl", "ext4", func(t *testing.T) []variant { return bothWays(muslServer(t, 18)) }},
}

// bothWays is a server that finds the shim by LD_PRELOAD and, in the long form, by shared_preload_libraries: its loader is another
// than that of the servers on which TestBranch has both.
func bothWays(s server) []variant {
	variants := []variant{{server: s}}
	if os.Getenv("LZ_LONG") != "" {
		variants = append(variants, variant{server: s, library: true})
	}
	return variants
}

// What was measured of one variant.
type result struct {
	afterReads  int // relation files
	afterUpdate int64
	relations   int // that pg_amcheck has looked at
	took        time.Duration
}

// TestMatrix is what every branch must do, shortly, on every kind of server: start, read without owning a relation, own what
// it writes, come back after its end amid writes with nothing lost and nothing more copied, and pass amcheck.
func TestMatrix(t *testing.T) {
	var table strings.Builder
	out := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "server\tarchitecture\tfile system\trelations owned after reads\tKiB owned after an update\tchecked by amcheck\ttook\t")
	for _, row := range matrix {
		t.Run(row.name, func(t *testing.T) {
			variants := row.bring(t)
			r, sockets := newRig(t, row.fstype), socketDir(t)
			makeSeed(t, r, variants[0].server, sockets)
			sealed := r.seedSum(t)
			for _, v := range variants {
				t.Run(v.name(), func(t *testing.T) {
					got, verdict := result{}, "FAILED"
					defer func() {
						fmt.Fprintf(out, "%s\t%s\t%s\t%d\t%d\t%d\t%.1f s\t%s\n", v.name(), v.server.arch, row.fstype, got.afterReads,
							got.afterUpdate/1024, got.relations, got.took.Seconds(), verdict)
					}()
					testVariant(t, r, v, sockets, &got)
					if !t.Failed() {
						verdict = "ok"
					}
				})
			}
			if r.seedSum(t) != sealed {
				t.Error("the seed has changed")
			}
		})
	}
	_ = out.Flush() // to memory
	fmt.Printf("\n%s\n", table.String())
}

func testVariant(t *testing.T, r *rig, v variant, sockets string, got *result) {
	began := time.Now()
	r.unmount(t)
	r.layShim(t, v.server.arch)
	r.branch(t)
	b := &cluster{server: v.server, data: dataDir(r.volume, v.server.major), sockets: sockets, preload: r.preload()}
	if v.library {
		b.preload, b.library = "", r.preload()
	}
	b.start(t, v.settings...)
	requireShim(t, b)
	requireLock(t, b)
	readEverything(t, b)
	owned := r.relationsInUpper(t)
	got.afterReads = len(owned)
	if len(owned) != 0 {
		t.Errorf("owned after reads: %v", owned)
	}
	testUpdate(t, r, b)
	for _, bytes := range r.relationsInUpper(t) {
		got.afterUpdate += bytes
	}
	written := written(t, r, b, "account", "big", "small")
	testTransfers(t, b, v.settings...)
	requireShim(t, b)
	readEverything(t, b)
	for name := range r.relationsInUpper(t) {
		if !slices.ContainsFunc(written, func(w string) bool { return isFileOf(name, w) }) {
			t.Errorf("the restart has copied %s, which nobody wrote", name)
		}
	}
	if v.server.emulator == "" {
		got.relations = amcheckAll(t, b)
	} else { // ten times as slow
		got.relations = amcheck(t, b, "--database", "postgres")
	}
	b.stop(t)
	if strings.Contains(b.log.String(), "lazyrw:") {
		t.Errorf("the shim is not silent:\n%s", b.log)
	}
	got.took = time.Since(began)
}

// socketDir is a folder that the servers' user can reach, with a path short enough for a socket.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lazyrw-sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// requireShim: the postmaster has the object mapped. Without it a branch works, eagerly.
func requireShim(t *testing.T, b *cluster) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", b.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(maps), "/lazyrw-test.so") {
		t.Fatalf("%s runs without the shim", b.server.name)
	}
}

// requireLock: the server holds the branch lock, which says more than that the object is mapped.
func requireLock(t *testing.T, b *cluster) {
	t.Helper()
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(locks), fmt.Sprintf("FLOCK  ADVISORY  WRITE %d ", b.cmd.Process.Pid)) {
		t.Errorf("the server holds no branch lock:\n%s", locks)
	}
}

// written are the first segments of the main forks of these tables, their indexes and their TOAST tables, relative to the volume.
func written(t *testing.T, r *rig, c *cluster, tables ...string) []string {
	t.Helper()
	conn := c.connect(t, "postgres")
	defer closeConn(t, conn)
	rows, err := conn.Query(context.Background(), `
		WITH t AS (SELECT oid FROM pg_class WHERE relname = ANY($1) AND relkind = 'r'),
		     h AS (SELECT oid FROM t UNION SELECT reltoastrelid FROM pg_class JOIN t USING (oid) WHERE reltoastrelid <> 0)
		SELECT pg_relation_filepath(oid) FROM h UNION SELECT pg_relation_filepath(indexrelid) FROM pg_index JOIN h ON indrelid = oid`, tables)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(paths) < len(tables) {
		t.Fatalf("files of %v: %v, %v", tables, paths, err)
	}
	for i, path := range paths {
		if paths[i], err = filepath.Rel(r.volume, filepath.Join(c.data, path)); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// isFileOf says whether name is a fork or a segment of the relation whose main fork is the file first.
func isFileOf(name, first string) bool {
	rest, ok := strings.CutPrefix(name, first)
	return ok && (rest == "" || rest[0] == '_' || rest[0] == '.')
}

// testTransfers ends the whole server amid transfers between accounts, and starts it again: none is half there, and none that
// was acknowledged is gone.
func testTransfers(t *testing.T, b *cluster, settings ...string) {
	t.Helper()
	var done atomic.Int64
	ended := make(chan struct{})
	conn := b.connect(t, "postgres")
	before := query[int64](t, conn, "SELECT balance FROM account WHERE id = 1")
	go func() {
		defer close(ended)
		defer func() { _ = conn.Close(context.Background()) }() // the server is gone by then
		for {
			if _, err := conn.Exec(context.Background(), `BEGIN; UPDATE account SET balance = balance - 1 WHERE id = 1;
				UPDATE account SET balance = balance + 1 WHERE id = 2; UPDATE big SET v = v WHERE id % 1000 = 7; COMMIT`); err != nil {
				return
			}
			done.Add(1)
		}
	}()
	for end := time.Now().Add(60 * time.Second); done.Load() < 20; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server does no work")
		}
	}
	b.kill(t)
	<-ended
	b.start(t, settings...)
	again := b.connect(t, "postgres")
	defer closeConn(t, again)
	if sum := query[int64](t, again, "SELECT sum(balance) FROM account"); sum != 1000*1000 {
		t.Errorf("balances sum to %d", sum)
	}
	// The one that was under way may have been committed before its answer came.
	if moved := before - query[int64](t, again, "SELECT balance FROM account WHERE id = 1"); moved != done.Load() && moved != done.Load()+1 {
		t.Errorf("%d transfers acknowledged, %d there", done.Load(), moved)
	}
	if !strings.Contains(b.log.String(), "not properly shut down") {
		t.Errorf("no recovery:\n%s", b.log)
	}
}

var amcheckProgress = regexp.MustCompile(`(\d+)/(\d+) relations \(100%\)`)

// amcheckAll has pg_amcheck look at every relation of every database. It returns how many those are.
func amcheckAll(t *testing.T, c *cluster) int {
	t.Helper()
	return amcheck(t, c, "--all")
}

// amcheck runs pg_amcheck over some databases, each index against its heap. It returns the number of relations.
func amcheck(t *testing.T, c *cluster, which ...string) int {
	t.Helper()
	var relations int
	cmd := exec.Command(filepath.Join(debianServers(t)[0].bin, "pg_amcheck"), append(which, "--heapallindexed", "--install-missing",
		"--no-strict-names", "--progress", "--host", c.sockets, "--username", "postgres")...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if m := amcheckProgress.FindStringSubmatch(stderr.String()); m != nil {
		_, _ = fmt.Sscan(m[1], &relations)
	}
	if err != nil || stdout.Len() > 0 || relations < 200 {
		t.Errorf("pg_amcheck: %v, %d relations\n%s\n%s", err, relations, stdout.String(), stderr.String())
	}
	return relations
}
