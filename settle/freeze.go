package settle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Bounds on one VACUUM command. Every command scans pg_class at its end
// (vac_update_datfrozenxid in vacuum.c), so small tables share one.
const (
	batchBytes  = 64 << 20
	batchTables = 200
)

// maxFreezers bounds how many databases are frozen at a time, and by how many
// connections each.
const maxFreezers = 4

// table is one relation to vacuum, quoted, with the bytes of all that belongs to it.
type table struct {
	name  string
	bytes int64
	// bare says that the table has rows and no statistics.
	bare bool
}

// freezer freezes every row of every database, so that no reader in a branch finds
// a hint bit to set, a page to prune, or a table that autovacuum wants.
type freezer struct {
	server  *server
	root    *os.Root // PGDATA
	workers int
	report  func(done, total int64)

	// oldest is a transaction id that was given out when the freeze began: nothing in a
	// frozen table is older than it. A snapshot's xmax would not do: it is the id of a
	// transaction that still runs, and holds the horizon there, where none has ended since.
	oldest string

	mu sync.Mutex
	// done are the bytes of finished tables, current those of the tables that are being
	// done, by database, and said the most that was reported: the server's progress of
	// a table is gone before the table counts as done.
	done, said, total int64
	current           map[string]int64
}

// add counts finished bytes of a database and notes what else of it is scanned.
func (f *freezer) add(database string, finished, scanned int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done += finished
	f.current[database] = scanned
	sum := f.done
	for _, bytes := range f.current {
		sum += bytes
	}
	f.said = max(f.said, min(sum, f.total-1))
	f.report(f.said, f.total)
}

func newFreezer(s *server, root *os.Root, maxConnections int, report func(done, total int64)) *freezer {
	workers := min(maxFreezers, runtime.NumCPU())
	for workers > 1 && workers*(workers+1) >= maxConnections { // each database has a watch, too
		workers--
	}
	return &freezer{server: s, root: root, workers: workers, report: report, current: map[string]int64{}}
}

func (f *freezer) run(ctx context.Context, all []database) error {
	for _, d := range all {
		for _, t := range d.tables {
			f.total += t.bytes
		}
	}
	if err := f.server.inAny(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT (pg_current_xact_id()::text::numeric % 4294967296)::text`).Scan(&f.oldest)
	}); err != nil {
		return err
	}
	f.report(0, f.total)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(f.workers)
	for _, d := range bySize(all) {
		group.Go(func() error {
			if err := f.database(ctx, d); err != nil {
				return fmt.Errorf("database %s: %w", quoteIdent(d.name), err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	f.report(f.total, f.total)
	return nil
}

// bySize puts the database with the most to do first.
func bySize(all []database) []database {
	bytes := func(d database) (sum int64) {
		for _, t := range d.tables {
			sum += t.bytes
		}
		return sum
	}
	return slices.SortedStableFunc(slices.Values(all), func(a, b database) int { return cmp.Compare(bytes(b), bytes(a)) })
}

// tablesOf lists what has rows, the largest first. Partitioned tables have none,
// and the source's statistics of them stay as they are: autovacuum would not make
// new ones either. Toast tables go with their owners.
func tablesOf(ctx context.Context, conn *pgx.Conn) ([]table, error) {
	rows, err := conn.Query(ctx, `SELECT format('%I.%I', s.nspname, c.relname), pg_total_relation_size(c.oid) AS bytes,
			pg_relation_size(c.oid) > 0 AND (
				NOT EXISTS (SELECT FROM pg_statistic WHERE starelid = c.oid AND NOT stainherit) OR
				EXISTS (SELECT FROM pg_statistic_ext e WHERE stxrelid = c.oid AND NOT EXISTS
					(SELECT FROM pg_statistic_ext_data d WHERE d.stxoid = e.oid)))
		FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'm') ORDER BY bytes DESC, c.oid`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t table, err error) {
		err = row.Scan(&t.name, &t.bytes, &t.bare)
		return t, err
	})
}

// batches groups tables into VACUUM commands, in order.
func batches(tables []table) [][]table {
	var all [][]table
	var bytes int64
	for _, t := range tables {
		last := len(all) - 1
		if last < 0 || bytes+t.bytes > batchBytes || len(all[last]) == batchTables {
			all, bytes = append(all, nil), 0
			last++
		}
		all[last] = append(all[last], t)
		bytes += t.bytes
	}
	return all
}

// Options of the VACUUM commands. Pages that are frozen whole are skipped, of which an old
// database mostly consists: nothing in them is left to write, and no index entry that
// leads there is dead. INDEX_CLEANUP ON, because the default leaves the index entries of
// a few dead rows, and a reader that meets one marks it in the index page
// (_bt_killitems in nbtutils.c). PARALLEL 0, because parallel workers want shared memory
// that a container does not have; tables are done in parallel.
const freezeOptions = "FREEZE, INDEX_CLEANUP ON, PARALLEL 0"

func (f *freezer) database(ctx context.Context, d database) error {
	if err := f.inParallel(ctx, d); err != nil {
		return err
	}
	return f.server.in(ctx, d.name, func(conn *pgx.Conn) error {
		// ANALYZE has written rows there after these tables' own turn. This runs alone in
		// its database, so nothing holds the horizon back: only backends of the same
		// database do that for tables that are not shared (ComputeXidHorizons in procarray.c).
		if err := vacuum(ctx, conn, freezeOptions, "pg_catalog.pg_statistic", "pg_catalog.pg_statistic_ext_data"); err != nil {
			return err
		}
		return f.verifyTables(ctx, conn)
	})
}

// inParallel deals the database's tables out to the workers.
func (f *freezer) inParallel(ctx context.Context, d database) error {
	work, dealt := make(chan []table), batches(d.tables)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(work)
		for _, batch := range dealt {
			select {
			case work <- batch:
			case <-ctx.Done():
				return nil
			}
		}
		return nil
	})
	for range min(f.workers, len(dealt)) {
		group.Go(func() error {
			return f.server.in(ctx, d.name, func(conn *pgx.Conn) error { return f.vacuumAll(ctx, conn, d.name, work) })
		})
	}
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if len(dealt) > 1 {
			f.watch(watching, d)
		}
	}()
	err := group.Wait()
	stop()
	<-watched // its connection must not hold the horizon back for what comes next
	return err
}

// watchEvery is how often the progress inside of tables is asked for.
const watchEvery = 200 * time.Millisecond

// watch reports how far the vacuums of the database are inside of their tables, and has
// what lies behind them written. Nothing depends on it, so it gives up at the first error.
func (f *freezer) watch(ctx context.Context, d database) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var conn *pgx.Conn
	behind := writeback{root: f.root, begun: map[string]int64{}}
	for {
		select {
		case <-ctx.Done():
			if conn != nil {
				_ = conn.Close(context.WithoutCancel(ctx))
			}
			return
		case <-ticker.C:
		}
		var err error
		if conn == nil {
			if conn, err = f.server.connect(ctx, d.name); err != nil {
				return
			}
		}
		// Not cut short: a backend that is cancelled ends some time later.
		scanned, err := scannedIn(context.WithoutCancel(ctx), conn)
		if err != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
			return
		}
		var sum int64
		for path, bytes := range scanned {
			sum += bytes
			behind.upTo(path, bytes)
		}
		f.add(d.name, 0, sum)
	}
}

// scannedIn gives the bytes that running vacuums have scanned, by the file of the table
// below PGDATA.
func scannedIn(ctx context.Context, conn *pgx.Conn) (map[string]int64, error) {
	rows, err := conn.Query(ctx, `SELECT coalesce(pg_relation_filepath(relid), ''), heap_blks_scanned * current_setting('block_size')::bigint
		FROM pg_stat_progress_vacuum WHERE datname = current_database()`)
	if err != nil {
		return nil, err
	}
	scanned := map[string]int64{}
	var path string
	var bytes int64
	_, err = pgx.ForEachRow(rows, []any{&path, &bytes}, func() error {
		scanned[path] += bytes
		return nil
	})
	return scanned, err
}

// vacuumAll freezes batches of tables, and analyzes those that have no statistics.
// Others keep the source's, so that plans are the source's too, and nobody pays for
// another look at the same rows.
func (f *freezer) vacuumAll(ctx context.Context, conn *pgx.Conn, database string, work <-chan []table) error {
	for batch := range work {
		var names, bare []string
		var bytes int64
		for _, t := range batch {
			names = append(names, t.name)
			bytes += t.bytes
			// Nobody plans a query in template0, and pg_statistic would have to be frozen again.
			if t.bare && database != "template0" {
				bare = append(bare, t.name)
			}
		}
		if err := vacuum(ctx, conn, freezeOptions, names...); err != nil {
			return blame(ctx, conn, freezeOptions, names, err)
		}
		if len(bare) > 0 {
			if _, err := conn.Exec(ctx, "ANALYZE "+strings.Join(bare, ", ")); err != nil {
				return blame(ctx, conn, freezeOptions+", ANALYZE", bare, err)
			}
		}
		f.add(database, bytes, 0)
	}
	return nil
}

func vacuum(ctx context.Context, conn *pgx.Conn, options string, names ...string) error {
	_, err := conn.Exec(ctx, "VACUUM ("+options+") "+strings.Join(names, ", "))
	return err
}

// blame names the table that VACUUM failed on, which its error does not always do.
func blame(ctx context.Context, conn *pgx.Conn, options string, names []string, err error) error {
	if conn.IsClosed() {
		return err
	}
	for _, name := range names {
		one := vacuum(ctx, conn, options, name)
		var pg *pgconn.PgError
		if errors.As(one, &pg) && pg.Code == "58P01" && strings.Contains(pg.Message, "could not access file") {
			return fail(contract.AgentErrFailed, "use an image that has the extension: --image",
				"the table %s needs a library that the image has not: %s", name, pg.Message)
		}
		if one != nil {
			return fmt.Errorf("table %s: %w", name, one)
		}
	}
	return err
}

// last freezes the shared catalogs that closing the databases has written.
func (f *freezer) last(ctx context.Context) error {
	return f.server.inAny(ctx, func(conn *pgx.Conn) error {
		return vacuum(ctx, conn, freezeOptions, "pg_catalog.pg_database", "pg_catalog.pg_shdepend")
	})
}
