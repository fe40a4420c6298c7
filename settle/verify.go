package settle

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// verifyTables finds tables that hold anything older than the freeze. VACUUM itself
// does not say when something kept it from freezing.
func (f *freezer) verifyTables(ctx context.Context, conn *pgx.Conn) error {
	old, err := texts(ctx, conn, `SELECT c.oid::regclass::text FROM pg_class c
		WHERE c.relkind IN ('r', 'm', 't') AND age(c.relfrozenxid) > age('`+f.oldest+`'::xid) ORDER BY 1 LIMIT 10`)
	if err == nil && len(old) > 0 {
		err = notFrozen(ctx, conn, "tables are", old)
	}
	return err
}

// verify finds databases that hold anything older than the freeze.
func (f *freezer) verify(ctx context.Context) error {
	return f.server.inAny(ctx, func(conn *pgx.Conn) error {
		old, err := texts(ctx, conn, `SELECT datname::text FROM pg_database
			WHERE datconnlimit <> -2 AND age(datfrozenxid) > age('`+f.oldest+`'::xid) ORDER BY 1 LIMIT 10`)
		if err == nil && len(old) > 0 {
			err = notFrozen(ctx, conn, "databases are", old)
		}
		return err
	})
}

// horizonHolders name what keeps VACUUM from freezing: the four things that
// ComputeXidHorizons in procarray.c looks at.
const horizonHolders = `
SELECT 'replication slot ' || slot_name FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
UNION ALL SELECT 'prepared transaction ' || gid FROM pg_prepared_xacts
UNION ALL SELECT 'a standby''s feedback, pid ' || pid FROM pg_stat_replication WHERE backend_xmin IS NOT NULL
UNION ALL SELECT 'session of ' || backend_type || ', pid ' || pid FROM pg_stat_activity
	WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
ORDER BY 1`

func notFrozen(ctx context.Context, conn *pgx.Conn, what string, names []string) error {
	hint := "something in the copy holds the transaction horizon back"
	if holders, err := texts(ctx, conn, horizonHolders); err == nil && len(holders) > 0 {
		hint = "the transaction horizon is held back by: " + strings.Join(holders, ", ")
	}
	return fail(contract.AgentErrFailed, hint, "these %s not frozen: %s", what, strings.Join(names, ", "))
}

// verifyControl looks at what a stopped server has left in pg_control: a clean shutdown,
// with the settings that a branch runs with.
func verifyControl(c controlData, own map[string]string) error {
	if c.state != stateShutDown {
		return fmt.Errorf("pg_control says %q after the stop", c.state)
	}
	for name, value := range c.settings {
		if own[name] != value {
			return fmt.Errorf("pg_control says %s=%s and a branch runs with %s", name, value, own[name])
		}
	}
	return nil
}

// neverInSeed would make a branch's server act as something else than a primary
// that was shut down clean, or keep its WAL.
var neverInSeed = []string{
	"postmaster.pid", "postmaster.opts", "standby.signal", "recovery.signal", "backup_label", "tablespace_map", asideConf,
}

// verifyFiles looks at a settled PGDATA once more as a whole, whatever the steps
// before believe to have done.
func verifyFiles(root *os.Root) error {
	for _, name := range neverInSeed {
		if _, err := root.Lstat(name); err == nil {
			return fmt.Errorf("%s is still there", name)
		}
	}
	slots, err := fs.ReadDir(root.FS(), "pg_replslot")
	if err != nil {
		return err
	}
	if len(slots) > 0 {
		return fmt.Errorf("the replication slot %s is still there, and would keep WAL for ever", slots[0].Name())
	}
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !entry.Type().IsRegular() {
			return fail(contract.AgentErrFailed, "", "%s is no regular file: what it stands for is not a part of the copy", path.Clean(name))
		}
		return err
	})
}

// verifyChecksums reads every page of a stopped cluster that has checksums.
func (s *settler) verifyChecksums(ctx context.Context) error {
	_, err := s.account.output(ctx, "pg_checksums", "--check", "-D", s.data)
	return err
}
