package settle

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// database is one database of the copy that can be connected to.
type database struct {
	name string
	oid  uint32
	// closed says that datallowconn was false in the source, as template0's is.
	closed bool

	// tables are what the freeze goes through, the largest first.
	tables []table
	// unlogged counts the unlogged tables.
	unlogged   int
	extensions []contract.Extension
	reported   []contract.Finding
}

// openDatabases allows connections to every database, so that each can be frozen.
// Databases with datconnlimit -2 are left out: a DROP DATABASE that was cut short
// has made them invalid, and nobody can connect to them again (dbcommands.c).
func (s *server) openDatabases(ctx context.Context) ([]database, error) {
	conn, err := s.connectAny(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, `SELECT datname::text, oid, NOT datallowconn FROM pg_database
		WHERE datconnlimit <> -2 ORDER BY datname`)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d database, err error) {
		err = row.Scan(&d.name, &d.oid, &d.closed)
		return d, err
	})
	if err != nil {
		return nil, err
	}
	return all, allowConnections(ctx, conn, all, true)
}

// closeDatabases undoes openDatabases.
func (s *server) closeDatabases(ctx context.Context, all []database) error {
	return s.inAny(ctx, func(conn *pgx.Conn) error { return allowConnections(ctx, conn, all, false) })
}

func allowConnections(ctx context.Context, conn *pgx.Conn, all []database, allow bool) error {
	for _, d := range all {
		if !d.closed {
			continue
		}
		if _, err := conn.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS %t", quoteIdent(d.name), allow)); err != nil {
			return err
		}
	}
	return nil
}

// inAny runs f with a connection to some database.
func (s *server) inAny(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := s.connectAny(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}

// inEach runs f with a connection to each database, one after the other.
func (s *server) inEach(ctx context.Context, all []database, f func(*pgx.Conn, *database) error) error {
	for i := range all {
		d := &all[i]
		err := s.in(ctx, d.name, func(conn *pgx.Conn) error { return f(conn, d) })
		if err != nil {
			return fmt.Errorf("database %s: %w", quoteIdent(d.name), err)
		}
	}
	return nil
}

// in runs f with a connection to the database.
func (s *server) in(ctx context.Context, database string, f func(*pgx.Conn) error) error {
	conn, err := s.connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}
