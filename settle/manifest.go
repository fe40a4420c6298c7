package settle

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// describe asks the private server what the manifest says of the databases.
func (s *server) describe(ctx context.Context, all []database, m *contract.Manifest) error {
	m.Extensions, m.Reported, m.UnloggedTables = nil, nil, 0
	for _, d := range all {
		m.Extensions = append(m.Extensions, d.extensions...)
		m.Reported = append(m.Reported, d.reported...)
		m.UnloggedTables += d.unlogged
	}
	return s.inAny(ctx, func(conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&m.ServerVersion); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, databasesQuery(s.major, "pg_database_size(oid)"))
		if err != nil {
			return err
		}
		if m.Databases, err = pgx.CollectRows(rows, pgx.RowToStructByPos[contract.Database]); err != nil {
			return err
		}
		rows, err = conn.Query(ctx, "SELECT spcname::text FROM pg_tablespace WHERE oid NOT IN (1663, 1664) ORDER BY spcname")
		if err != nil {
			return err
		}
		m.Tablespaces, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
}

// extensionsOf lists the database's extensions but plpgsql, which comes with every
// server and is in every database.
func extensionsOf(ctx context.Context, conn *pgx.Conn) ([]contract.Extension, error) {
	rows, err := conn.Query(ctx, `SELECT pg_catalog.current_database()::text, extname::text, extversion FROM pg_catalog.pg_extension
		WHERE extname <> 'plpgsql' ORDER BY extname`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[contract.Extension])
}

// unloggedIn counts the database's unlogged tables.
func unloggedIn(ctx context.Context, conn *pgx.Conn) (n int, err error) {
	err = conn.QueryRow(ctx, "SELECT count(*) FROM pg_class WHERE relpersistence = 'u' AND relkind IN ('r', 'p', 'm')").Scan(&n)
	return n, err
}

// databasesQuery gives the columns of contract.Database. Providers of a database's
// collation came with 15, the built-in one, and its locale's present name, with 17
// (pg_database.h).
// size is the expression for their size.
func databasesQuery(major int, size string) string {
	provider, locale, version := "'libc'", "datcollate::text", "''"
	if major >= 15 {
		provider = "CASE datlocprovider WHEN 'c' THEN 'libc' WHEN 'i' THEN 'icu' WHEN 'b' THEN 'builtin' ELSE datlocprovider::text END"
		version = "coalesce(pg_database_collation_actual_version(oid), '')"
		column := "daticulocale"
		if major >= 17 {
			column = "datlocale"
		}
		locale = "CASE datlocprovider WHEN 'c' THEN datcollate::text ELSE coalesce(" + column + "::text, datcollate::text) END"
	}
	return `SELECT datname::text, ` + size + `, pg_encoding_to_char(encoding)::text, ` + provider + `, ` +
		locale + `, datctype::text, ` + version + ` FROM pg_database WHERE datconnlimit <> -2 ORDER BY datname`
}

// ownTree gives every file below root to the account and returns the sum of the
// sizes of the regular ones.
func ownTree(root string, a account) (int64, error) {
	var sum int64
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if entry.Type().IsRegular() {
			sum += info.Size()
		}
		return a.own(path)
	})
	return sum, err
}

// syncTree flushes the file system of the staging volume: everything below it is
// on disk when this returns.
func syncTree(stage string) error {
	dir, err := os.Open(stage)
	if err != nil {
		return err
	}
	defer dir.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(dir.Fd())))
}

// writeManifest writes Stage/manifest.json so that it is either there, whole and on
// disk, or not there: its presence is what lets a staging volume be sealed.
func writeManifest(stage string, m contract.Manifest) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(stage, contract.StagingManifest)
	temp := path + ".tmp"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	dir, err := os.Open(stage)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
