//go:build e2e

package e2e

import (
	"strconv"
	"strings"
	"testing"
)

// A branch of a source with replication slots keeps no more WAL than its settings say,
// and the source's slots stay where they were.
func TestLongWALStaysBounded(t *testing.T) {
	seed := guardedSeed(t)
	slots := func() string {
		return docker(t, "exec", guarded.container, "psql", "-qAtXU", "postgres", "-c",
			"SELECT slot_name, active, confirmed_flush_lsn FROM pg_replication_slots ORDER BY 1")
	}
	before := slots()
	if strings.Count(before, "\n") != 1 {
		t.Fatalf("the source has the slots %q", before)
	}
	name := prefix + "writer"
	branch(t, name, seed, "-c", "max_wal_size=256MB")
	query := func(statement string) string {
		return docker(t, "exec", "pgbranch-"+name, "psql", "-qAtXU", "postgres", "-c", statement)
	}
	const written = 2 << 30
	from := query("SELECT pg_current_wal_insert_lsn()")
	for range written / (64 << 20) {
		query("SELECT count(pg_logical_emit_message(false, 'bulk', repeat('x', 1 << 20))) FROM generate_series(1, 64)")
	}
	query("CHECKPOINT")
	moved, err := strconv.ParseInt(query("SELECT (pg_current_wal_insert_lsn() - '"+from+"')::bigint"), 10, 64)
	if err != nil || moved < written {
		t.Fatalf("only %d bytes of WAL were written: %v", moved, err)
	}
	kept, err := strconv.ParseInt(query("SELECT sum(size)::bigint FROM pg_ls_waldir()"), 10, 64)
	if err != nil || kept > 512<<20 {
		t.Errorf("after %d MiB of WAL it keeps %d MiB: %v", moved>>20, kept>>20, err)
	}
	t.Logf("after %d MiB of WAL it keeps %d MiB", moved>>20, kept>>20)
	if after := slots(); after != before {
		t.Errorf("the source's slots are %q, and were %q", after, before)
	}
}
