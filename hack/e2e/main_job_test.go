//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"
)

// readEverything reads every table and catalog of a database in full, TOAST
// included.
const readEverything = `
SET statement_timeout = 0;
DO $$
DECLARE r record; n bigint;
BEGIN
  FOR r IN SELECT c.oid::regclass AS rel, c.relkind FROM pg_class c WHERE c.relkind IN ('r', 'm', 't') LOOP
    -- A TOAST table has no row type to read whole.
    EXECUTE format(CASE r.relkind WHEN 't' THEN 'SELECT sum(length(chunk_data)) FROM %s'
      ELSE 'SELECT count(t::text) FROM %s t' END, r.rel) INTO n;
    PERFORM pg_relation_size(r.rel), pg_total_relation_size(r.rel);
  END LOOP;
END $$;`

// readAll reads all databases of a branch in every way that must cost nothing.
func readAll(t *testing.T, name string) {
	t.Helper()
	for _, database := range []string{"shop", "crm", "postgres", "template1"} {
		sql(t, name, database, readEverything, "CHECKPOINT")
	}
	sql(t, name, "shop", "SELECT count(*) FROM big", "EXPLAIN SELECT * FROM big WHERE id = 7",
		"SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT sum(id) FROM big WHERE id BETWEEN 1 AND 10000000",
		"SELECT pg_relation_size('big'), pg_database_size('shop')")
	docker(t, "exec", "pgbranch-"+name, "sh", "-c", "pg_dump -U postgres shop > /dev/null && pg_dumpall -U postgres > /dev/null")
	sql(t, name, "shop", "CHECKPOINT")
}

func TestReadingCopiesNothing(t *testing.T) {
	seed := mainSeed(t)
	name := prefix + "reader"
	branch(t, name, seed)

	log := command("", "docker", "logs", "pgbranch-"+name)
	if both := log.stdout + log.stderr; !strings.Contains(both, "database system was shut down") || strings.Contains(both, "redo starts") {
		t.Errorf("the seed was not settled:\n%s", both)
	}
	if size := sql(t, name, "shop", "SELECT pg_relation_size('big')"); len(size) < 9 || size < "209715200" {
		t.Errorf("the table has only %s bytes", size)
	}
	fresh := allocated(t, upper(t, name))
	t.Logf("a fresh branch has %d KiB allocated", fresh>>10)
	readAll(t, name)
	if files := relationFiles(t, upper(t, name)); len(files) > 0 {
		t.Errorf("reading copied relation files: %v", files)
	}
	t.Logf("after reading everything in four databases it has %d KiB allocated", allocated(t, upper(t, name))>>10)

	// The control: the same without the shim copies the table.
	eager := prefix + "eager"
	branch(t, eager, seed, "--cow", "off")
	sql(t, eager, "shop", "SELECT count(*) FROM big", "CHECKPOINT")
	var sum int64
	for _, size := range relationFiles(t, upper(t, eager)) {
		sum += size
	}
	if sum < 200<<20 {
		t.Errorf("without the shim reading copied only %d bytes: the test above shows nothing", sum)
	}
	t.Logf("without the shim reading one table copied %d MiB", sum>>20)
	var listed struct{ Branch, CowMode, CowReason string }
	if err := json.Unmarshal([]byte(pgbranch(t, "ls", "--format", "json", "--filter", "name="+eager)), &listed); err != nil {
		t.Fatal(err)
	}
	if listed.CowMode != "eager" {
		t.Errorf("ls says %+v", listed)
	}
}

// One database read in full is what most branches see.
func TestFreshBranchIsSmall(t *testing.T) {
	name := prefix + "fresh"
	branch(t, name, mainSeed(t))
	sql(t, name, "shop", "SELECT 1")
	fresh := allocated(t, upper(t, name))
	if fresh > 256<<10 {
		t.Errorf("a fresh branch has %d KiB allocated, the budget is 256", fresh>>10)
	}
	sql(t, name, "shop", readEverything, "CHECKPOINT")
	read := allocated(t, upper(t, name))
	if read > 512<<10 {
		t.Errorf("after a full read of one database it has %d KiB, the budget is 512", read>>10)
	}
	t.Logf("allocated: %d KiB fresh, %d KiB after a full read of one database", fresh>>10, read>>10)
	owned, err := strconv.ParseInt(pgbranch(t, "inspect", "-f", "{{.ownedBytes}}", name), 10, 64)
	if err != nil || owned < read*9/10 || owned > read*11/10 {
		t.Errorf("inspect says it owns %d (%v), the disk says %d", owned, err, read)
	}
}

func TestWritesStayInTheBranch(t *testing.T) {
	seed := mainSeed(t)
	writer, sibling := prefix+"writer", prefix+"sibling"
	sealed := onDisk(t, "seeds", seed)
	before := checksum(t, sealed)
	branch(t, writer, seed)
	branch(t, sibling, seed)
	sql(t, writer, "shop", "SELECT count(*) FROM small", "CHECKPOINT")
	empty := allocated(t, upper(t, writer))
	sql(t, writer, "shop", "UPDATE small SET name = 'changed' WHERE id = 7", "CHECKPOINT")
	if grown := allocated(t, upper(t, writer)) - empty; grown >= 200<<10 {
		t.Errorf("a one-row update added %d KiB", grown>>10)
	} else {
		t.Logf("a one-row update of a small table added %d KiB", grown>>10)
	}
	for path := range relationFiles(t, upper(t, writer)) {
		t.Logf("copied up: %s", path)
	}
	if got := sql(t, writer, "shop", "SELECT name FROM small WHERE id = 7"); got != "changed" {
		t.Errorf("the branch reads %q", got)
	}
	if got := sql(t, sibling, "shop", "SELECT name FROM small WHERE id = 7"); got != "name 7" {
		t.Errorf("the sibling reads %q", got)
	}
	sql(t, writer, "shop", "UPDATE big SET grp = -1 WHERE id <= 1000", "DROP TABLE small", "CREATE TABLE fresh AS SELECT 1", "VACUUM", "CHECKPOINT")
	pgbranch(t, "stop", writer)
	pgbranch(t, "start", writer)
	if got := sql(t, writer, "shop", "SELECT count(*) FROM big WHERE grp = -1"); got != "1000" {
		t.Errorf("after a restart %s rows are changed", got)
	}
	if after := checksum(t, sealed); after != before {
		t.Error("the sealed seed has changed")
	}
}

// Two sessions share a tiny buffer pool: the first has the table's file open from
// before the second session's write, and must see the new rows once the buffers
// were evicted.
func TestASessionSeesWhatAnotherWroteAfterEviction(t *testing.T) {
	seed := mainSeed(t)
	name := prefix + "evict"
	docker(t, "volume", "create", "-d", "pgoverlay", "-o", "seed="+seed, name)
	t.Cleanup(func() {
		command("", "docker", "rm", "-f", name)
		command("", "docker", "volume", "rm", name)
	})
	docker(t, "run", "-d", "--name", name, "-v", name+":/var/lib/postgresql/data",
		"-e", "LD_PRELOAD=/var/lib/postgresql/data/.pgoverlay/lazyrw.so", "-p", "127.0.0.1::5432",
		"postgres:17", "-c", "shared_buffers=128kB", "-c", "max_parallel_workers_per_gather=0")
	waitFor(t, time.Minute, "the hand-made branch answers", func() bool {
		return command("", "docker", "exec", name, "psql", "-U", "postgres", "-d", "shop", "-c", "SELECT 1").code == 0
	})
	first, second := connect(t, name), connect(t, name)
	ctx := context.Background()
	if n := value[int](t, first, "SELECT count(*) FROM small WHERE name LIKE 'name %'"); n != 200 {
		t.Fatalf("%d rows before the write", n)
	}
	value[int](t, first, "SELECT count(*) FROM big WHERE grp = -5")
	if _, err := second.Exec(ctx, "UPDATE small SET name = 'new'"); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Exec(ctx, "UPDATE big SET grp = -5 WHERE id <= 500"); err != nil {
		t.Fatal(err)
	}
	// Sixteen buffers: any scan of a catalog evicts what there is.
	if _, err := second.Exec(ctx, "CHECKPOINT"); err != nil {
		t.Fatal(err)
	}
	value[int](t, second, "SELECT count(*) FROM pg_attribute")
	if n := value[int](t, first, "SELECT count(*) FROM small WHERE name = 'new'"); n != 200 {
		t.Errorf("the first session sees %d of 200 new rows", n)
	}
	if n := value[int](t, first, "SELECT count(*) FROM big WHERE grp = -5"); n != 500 {
		t.Errorf("the first session sees %d of 500 new rows in the big table", n)
	}
	if files := relationFiles(t, upper(t, name)); len(files) == 0 {
		t.Error("nothing was copied up: the writes went elsewhere")
	}
	// The hand-made branch is listed as any other.
	row := pgbranch(t, "ls", "--filter", "name="+name, "--format", "{{.Branch}} {{.State}} {{.Cow}}")
	if row != name+" running lazyrw" {
		t.Errorf("ls says %q", row)
	}
}

func TestBranchContainersAreStockAndUnprivileged(t *testing.T) {
	name := prefix + "plain"
	branch(t, name, mainSeed(t))
	var inspected []struct {
		AppArmorProfile string
		Path            string
		Args            []string
		HostConfig      struct {
			Privileged          bool
			CapAdd, SecurityOpt []string
			Devices             []any
			PidMode, IpcMode    string
			ReadonlyPaths       []string
			MaskedPaths         []string
		}
		Config struct {
			Entrypoint, Cmd []string
			User            string
		}
	}
	if err := json.Unmarshal([]byte(docker(t, "inspect", "pgbranch-"+name)), &inspected); err != nil {
		t.Fatal(err)
	}
	c := inspected[0]
	entrypoint := docker(t, "image", "inspect", "-f", "{{json .Config.Entrypoint}} {{json .Config.Cmd}}", "postgres:17")
	own, _ := json.Marshal(c.Config.Entrypoint)
	cmd, _ := json.Marshal(c.Config.Cmd)
	if got := string(own) + " " + string(cmd); got != entrypoint {
		t.Errorf("runs %s, the image's own is %s", got, entrypoint)
	}
	h := c.HostConfig
	if h.Privileged || len(h.CapAdd)+len(h.SecurityOpt)+len(h.Devices) > 0 || h.PidMode != "" || h.IpcMode != "private" ||
		len(h.MaskedPaths) == 0 || len(h.ReadonlyPaths) == 0 || strings.Contains(c.AppArmorProfile, "unconfined") {
		t.Errorf("is not confined as any container is: %+v", c)
	}
	// What the kernel says of the server itself: no capability, and seccomp filters.
	status := docker(t, "exec", "pgbranch-"+name, "grep", "-E", "^(CapEff|CapPrm|Seccomp):", "/proc/1/status")
	if !strings.Contains(status, "CapEff:\t0000000000000000") || !strings.Contains(status, "Seccomp:\t2") {
		t.Errorf("the server's process has\n%s", status)
	}
}

// Docker lets a second container mount a branch's volume. Its server must not
// start, nor disturb the first.
func TestASecondServerIsKeptOff(t *testing.T) {
	name := prefix + "twice"
	branch(t, name, mainSeed(t))
	// Both servers are process 1 of their container: the start time tells them apart.
	pidFile := []string{"exec", "pgbranch-" + name, "head", "-n", "3", "/var/lib/postgresql/data/postmaster.pid"}
	before := docker(t, pidFile...)
	time.Sleep(time.Second)
	r := command("", "docker", "run", "--rm", "--name", prefix+"second", "-v", name+":/var/lib/postgresql/data",
		"-e", "LD_PRELOAD=/var/lib/postgresql/data/.pgoverlay/lazyrw.so", "postgres:17")
	if r.code == 0 || !strings.Contains(r.stderr, "in use by another Postgres server on this branch") {
		t.Errorf("a second server: exit %d\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	sql(t, name, "shop", "CREATE TABLE still_here AS SELECT 1", "CHECKPOINT")
	if after := docker(t, pidFile...); after != before {
		t.Errorf("postmaster.pid was\n%s\nand is\n%s", before, after)
	}
}

func TestResetKeepsNameContainerAndPort(t *testing.T) {
	name := prefix + "reset"
	branch(t, name, mainSeed(t))
	before := pgbranch(t, "ls", "--filter", "name="+name, "--format", "{{.Branch}} {{.Container}} {{.Port}}")
	id := docker(t, "inspect", "-f", "{{.Id}}", "pgbranch-"+name)
	sql(t, name, "shop", "DROP TABLE small", "CREATE TABLE mine AS SELECT 1", "CHECKPOINT")
	if r := try("reset", name); r.code != 2 || !strings.Contains(r.stderr, "--force") {
		t.Errorf("reset without anyone to ask: exit %d, %s", r.code, r.stderr)
	}
	pgbranch(t, "reset", "-f", name)
	if after := pgbranch(t, "ls", "--filter", "name="+name, "--format", "{{.Branch}} {{.Container}} {{.Port}}"); after != before {
		t.Errorf("was %q, is %q", before, after)
	}
	if after := docker(t, "inspect", "-f", "{{.Id}}", "pgbranch-"+name); after != id {
		t.Error("it has another container")
	}
	if got := sql(t, name, "shop", "SELECT count(*) FROM small", "SELECT to_regclass('mine') IS NULL"); got != "200\nt" {
		t.Errorf("after the reset it reads %q", got)
	}
	if files := relationFiles(t, upper(t, name)); len(files) > 0 {
		t.Errorf("after the reset it owns %v", files)
	}
}

func TestVerbs(t *testing.T) {
	seed := mainSeed(t)
	name := prefix + "verbs"
	if out := branch(t, name, seed); out != name {
		t.Errorf("create printed %q", out)
	}
	if r := try("create", name, "--from", seed); r.code != 4 || !strings.Contains(r.stderr, "exists already") {
		t.Errorf("a second create: exit %d, %s", r.code, r.stderr)
	}
	if out := pgbranch(t, "ls", "-q", "--filter", "name="+name); out != name {
		t.Errorf("ls -q printed %q", out)
	}
	if table := pgbranch(t, "ls"); !strings.HasPrefix(table, "BRANCH") || !strings.Contains(table, "lazyrw") {
		t.Errorf("ls printed\n%s", table)
	}
	if n := value[int](t, connect(t, name), "SELECT count(*) FROM small"); n != 200 {
		t.Errorf("over the published port: %d rows", n)
	}
	if r := try("psql", name, "--", "-c", "SELECT 1/0"); r.code != 1 || !strings.Contains(r.stderr, "division by zero") {
		t.Errorf("psql's own failure: exit %d, %s", r.code, r.stderr)
	}
	if r := command("SELECT 41 + 1;\n", "docker", "pgbranch", "psql", name, "-At"); r.stdout != "42" {
		t.Errorf("psql from standard input: %+v", r)
	}
	port := pgbranch(t, "ls", "--filter", "name="+name, "--format", "{{.Port}}")
	pgbranch(t, "stop", name)
	pgbranch(t, "stop", name)
	if r := try("psql", name); r.code != 4 || !strings.Contains(r.stderr, "pgbranch start") {
		t.Errorf("psql on a stopped branch: exit %d, %s", r.code, r.stderr)
	}
	pgbranch(t, "start", name)
	pgbranch(t, "start", name)
	if now := pgbranch(t, "ls", "--filter", "name="+name, "--format", "{{.Port}} {{.State}}"); now != port+" running" {
		t.Errorf("the port was %s, and now %q", port, now)
	}
	if r := try("rm", name, prefix+"nobody"); r.code != 4 {
		t.Errorf("rm of a running branch: exit %d, %s", r.code, r.stderr)
	}
	if r := try("seed", "rm", seed); r.code != 4 || !strings.Contains(r.stderr, name) {
		t.Errorf("seed rm under a branch: exit %d, %s", r.code, r.stderr)
	}
	if r := command("", "docker", "volume", "rm", seed); r.code == 0 || !strings.Contains(r.stderr, name) {
		t.Errorf("docker volume rm of a seed under a branch: exit %d, %s", r.code, r.stderr)
	}
	pgbranch(t, "rm", "-f", name)
	if r := try("inspect", name); r.code != 3 {
		t.Errorf("inspect of what is gone: exit %d, %s", r.code, r.stderr)
	}
}

// On a terminal a seeding shows bars with bytes of the total and the rate; on one
// of no size, as scripts make, lines.
func TestProgressOnATerminal(t *testing.T) {
	s := startSource(t, "postgres:17", bigRows)
	for size, want := range map[string][]string{
		"cols 110 rows 30": {"base backup", "[====", "MiB of 2", "MiB/s", "\x1b["},
		"cols 0 rows 0":    {"base backup: ", "MiB of 2", "MiB/s"},
	} {
		name := prefix + "tty"
		r := command("", "script", "-qec", "stty "+size+" && PGPASSWORD="+password+
			" docker pgbranch seed create "+name+" --from "+s.url("shop")+" --network "+s.network, "/dev/null")
		if r.code != 0 {
			t.Fatalf("%s: exit %d\n%s%s", size, r.code, r.stdout, r.stderr)
		}
		for _, w := range want {
			if !strings.Contains(r.stdout, w) {
				t.Errorf("%s: no %q in\n%q", size, w, r.stdout)
			}
		}
		pgbranch(t, "seed", "rm", name)
	}
}

// Both other majors at hand: 15, and 18 with its own layout.
func TestOtherMajors(t *testing.T) {
	for _, major := range []string{"15", "18"} {
		t.Run(major, func(t *testing.T) { checkMajor(t, "postgres:"+major, major) })
	}
}

// checkMajor takes a source of another major from the seed to a branch that was killed.
func checkMajor(t *testing.T, image, major string) {
	seed := makeSeed(t, startSource(t, image, 100_000), prefix+"pg"+major)
	name := prefix + "on" + major
	branch(t, name, seed)
	if got := sql(t, name, "shop", "SHOW server_version_num"); !strings.HasPrefix(got, major) {
		t.Errorf("the branch is of %s", got)
	}
	readAll(t, name)
	if files := relationFiles(t, upper(t, name)); len(files) > 0 {
		t.Errorf("reading copied relation files: %v", files)
	}
	sql(t, name, "shop", "UPDATE small SET name = 'changed' WHERE id = 7", "CHECKPOINT")
	files := relationFiles(t, upper(t, name))
	if len(files) == 0 {
		t.Error("an update copied no relation file: the check above cannot see them")
	}
	docker(t, "kill", "-s", "KILL", "pgbranch-"+name)
	pgbranch(t, "start", name)
	if got := sql(t, name, "shop", "SELECT name FROM small WHERE id = 7"); got != "changed" {
		t.Errorf("after SIGKILL and a restart it reads %q", got)
	}
	docker(t, "exec", "pgbranch-"+name, "psql", "-qXU", "postgres", "-d", "shop", "-c", "CREATE EXTENSION amcheck")
	docker(t, "exec", "pgbranch-"+name, "pg_amcheck", "-U", "postgres", "--heapallindexed", "-d", "shop", "--no-dependent-toast")
}
