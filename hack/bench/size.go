package main

import (
	"fmt"
	"time"
)

// Size is how big everything is.
type Size struct {
	Name string
	// SegmentRows is how many rows of one page each the single-segment table has: 121,472
	// make 949 MiB.
	SegmentRows int
	// BigTables is how many tables of that size the data set "big" has beside it.
	BigTables int
	// BenchScale is pgbench's, 15 MiB each: of its tables in the database that the servers
	// are asked in, and in another that is copied.
	BenchScale int
	// BenchTime is how long one run of pgbench takes.
	BenchTime time.Duration
	DiskBytes int64
}

var sizes = map[string]Size{
	// A data set of 1.4 GiB, and one of 10 GiB.
	"full": {Name: "full", SegmentRows: 121_472, BigTables: 9, BenchScale: 15, BenchTime: 15 * time.Second, DiskBytes: 12 << 30},
	// The segment is whole, since bytes are counted on it, and all else is little.
	"small": {Name: "small", SegmentRows: 121_472, BigTables: 1, BenchScale: 2, BenchTime: 5 * time.Second, DiskBytes: 4 << 30},
	// To try the program.
	"tiny": {Name: "tiny", SegmentRows: 2_560, BigTables: 2, BenchScale: 1, BenchTime: 3 * time.Second, DiskBytes: 1 << 30},
}

// Data sets.
const (
	dataOne = "one" // the single-segment table and pgbench's
	dataBig = "big" // with more tables of that size
)

// fill gives the script that fills a source. A row takes a page: updates of a share of
// the rows are updates of that share of the pages, one row each.
func (s Size) fill(kind string) string {
	// A seed has its source's settings: what only the filling needs must be gone when it ends.
	script := fmt.Sprintf(`
psql -qX -v ON_ERROR_STOP=1 -U postgres -d bench <<'SQL'
ALTER SYSTEM SET fsync = off;
ALTER SYSTEM SET autovacuum = off;
ALTER SYSTEM SET max_wal_size = '16GB';
SELECT pg_reload_conf();
SQL
psql -qX -v ON_ERROR_STOP=1 -U postgres -d bench <<'SQL'
CREATE TABLE seg (id int, n int, pad text) WITH (fillfactor = 50);
ALTER TABLE seg ALTER pad SET STORAGE PLAIN;
INSERT INTO seg SELECT g, 0, repeat(md5(g::text), 125) FROM generate_series(1, %d) g;
CREATE INDEX seg_id ON seg (id);
SQL
pgbench -i -q -s %[2]d -U postgres bench
createdb -U postgres shelf
pgbench -i -q -s %[2]d -U postgres shelf
`, s.SegmentRows, s.BenchScale)
	if kind == dataBig {
		for i := range s.BigTables {
			script += fmt.Sprintf("psql -qX -v ON_ERROR_STOP=1 -U postgres -d bench -c 'CREATE TABLE big%d AS SELECT * FROM seg'\n", i)
		}
	}
	return script + `echo 'host replication all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
psql -qX -U postgres -c 'ALTER SYSTEM RESET ALL' -c 'SELECT pg_reload_conf()' -c CHECKPOINT > /dev/null
`
}
