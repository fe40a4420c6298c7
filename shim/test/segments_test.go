//go:build e2e

package shimtest

import (
	"fmt"
	"strings"
	"testing"
)

// A relation of two segments: one row a page, since two do not fit below its fillfactor, and room in each page for the
// row's next version.
const (
	segmentPages = 1 << 17 // RELSEG_SIZE: pages of 8 KiB in a segment of 1 GiB
	extraPages   = 4096    // 32 MiB in the second
)

// testTwoSegments: what is written or cut off in the second segment leaves the first, of 1 GiB, the seed's.
func testTwoSegments(t *testing.T, s server, fstype string) {
	r, sockets := newRig(t, fstype), socketDir(t)
	makeSeed(t, r, s, sockets, func(c *cluster) {
		c.in(t, "postgres", "BEGIN", "CREATE TABLE two (id int, v int, pad text) WITH (fillfactor = 50)", "ALTER TABLE two ALTER pad SET STORAGE plain",
			fmt.Sprintf(`COPY two FROM PROGRAM $$awk 'BEGIN { pad = sprintf("%%03000d", 0); for (i = 0; i < %d; i++) print i "\t0\t" pad }'$$ WITH (FREEZE)`,
				segmentPages+extraPages), "COMMIT")
	})
	r.branch(t)
	b := &cluster{server: s, data: dataDir(r.volume, s.major), sockets: sockets, preload: r.preload()}
	b.start(t, "shared_buffers=16MB")
	requireShim(t, b)
	first := pathOf(t, b, r, "two")
	second := first + ".1"
	old := b.connect(t, "postgres")
	if n := query[int64](t, old, "SELECT count(*) FROM two"); n != segmentPages+extraPages {
		t.Fatalf("%d rows", n)
	}
	if n := query[int64](t, old, "SELECT pg_relation_size('two') / 8192"); n != segmentPages+extraPages {
		t.Fatalf("%d pages: not one row in each", n)
	}
	if owned := r.relationsInUpper(t); len(owned) != 0 {
		t.Errorf("owned after reads: %v", owned)
	}

	b.in(t, "postgres", fmt.Sprintf("UPDATE two SET v = 1 WHERE ctid = '(%d,1)'", segmentPages+100), "CHECKPOINT")
	owned := r.relationsInUpper(t)
	fmt.Printf("  one row of the second segment on %-5s owned %d KiB of %d\n", fstype, owned[second]/1024, extraPages*8)
	if owned[second] == 0 || owned[second] > extraPages*8192+1<<20 {
		t.Errorf("%d bytes of the second segment are owned", owned[second])
	}
	requireFirstUntouched(t, owned, first, second)
	if n := query[int64](t, old, "SELECT sum(v) FROM two"); n != 1 {
		t.Errorf("the old session sums %d, not 1", n)
	}

	// Twice: the truncation stops early when it is slow (lazy_truncate_heap).
	b.in(t, "postgres", fmt.Sprintf("DELETE FROM two WHERE id >= %d", segmentPages), "VACUUM (TRUNCATE) two", "VACUUM (TRUNCATE) two", "CHECKPOINT")
	owned = r.relationsInUpper(t)
	if owned[second] != 0 {
		t.Errorf("%d bytes are owned of a second segment that is empty", owned[second])
	}
	requireFirstUntouched(t, owned, first, second)
	if n := query[int64](t, old, "SELECT count(*) FROM two"); n != segmentPages {
		t.Errorf("the old session counts %d rows, not %d", n, segmentPages)
	}
	if n := query[int64](t, old, "SELECT pg_relation_size('two')"); n != 1<<30 {
		t.Errorf("the table has %d bytes, not 1 GiB", n)
	}
	closeConn(t, old)
	b.stop(t)
}

// requireFirstUntouched: of the table's files the branch owns the second segment, and maps.
func requireFirstUntouched(t *testing.T, owned map[string]int64, first, second string) {
	t.Helper()
	for name, bytes := range owned {
		if name == first || strings.HasPrefix(name, first) && name != second && bytes > 1<<20 {
			t.Errorf("%d bytes of %s are owned", bytes, name)
		}
	}
}
