//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// manyTables is more than a server of default settings can lock at once: 64 locks for
// each of 100 connections, and some spare.
const manyTables = 20_000

// A dump of very many tables, in one transaction, is restored: the restore's server has
// locks for it. A source that has not for pg_dump is told of.
func TestLongDumpOfManyTables(t *testing.T) {
	ready(t)
	name := prefix + "many"
	docker(t, "network", "create", name)
	run := func(locks int) {
		docker(t, "run", "-d", "--name", name, "--network", name, "-e", "POSTGRES_PASSWORD="+password, "-v", name+":/var/lib/postgresql/data",
			"-e", "POSTGRES_INITDB_ARGS=--no-sync", "postgres:17", "postgres", "-c", "fsync=off", "-c", fmt.Sprintf("max_locks_per_transaction=%d", locks))
		waitFor(t, 5*time.Minute, "the source answers over TCP", func() bool {
			return command("", "docker", "exec", name, "pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres").code == 0
		})
	}
	run(64)
	var fill strings.Builder
	fill.WriteString("CREATE DATABASE many;\n\\c many\n")
	for i := range manyTables {
		fmt.Fprintf(&fill, "CREATE TABLE t%d AS SELECT %d AS id;\n", i, i)
	}
	if r := command(fill.String(), "docker", "exec", "-i", name, "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-U", "postgres"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	from := []string{"--from", "postgres://postgres@" + name + "/many", "--network", name, "--logical", "--password-stdin"}
	before := state(t)
	r := seedOfDump(t, password+"\n", prefix+"bad", from...)
	if r.code != 6 {
		t.Errorf("exit %d", r.code)
	}
	requireRefusal(t, r, before, []string{"out of shared memory", "raise max_locks_per_transaction on the source"})

	docker(t, "rm", "-f", name)
	run(1024)
	dump := docker(t, "exec", name, "pg_dump", "-U", "postgres", "-d", "many")
	began := time.Now()
	r = seedOfDump(t, "BEGIN;\n"+dump+"\nCOMMIT;\n", prefix+"many-seed", "--from-dump", "-", "--database", "many")
	if r.code != 0 || strings.Contains(r.stderr, "warning") {
		t.Fatalf("exit %d", r.code)
	}
	t.Logf("%d tables in %s", manyTables, time.Since(began))
	branch(t, prefix+"many-branch", prefix+"many-seed")
	if got := sql(t, prefix+"many-branch", "many", "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", "SELECT id FROM t19999"); got != "20000\n19999" {
		t.Errorf("the branch holds %s", got)
	}
}
