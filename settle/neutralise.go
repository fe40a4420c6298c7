package settle

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// neutraliser takes the objects out of the copy that would act on the world, or
// would keep rows from being frozen.
type neutraliser struct {
	changes []contract.Change
	// libraries are those that roles and databases load.
	libraries []string
}

func (n *neutraliser) note(what, was, why string) {
	n.changes = append(n.changes, contract.Change{What: what, Was: presentable(was), Why: why})
}

// inDatabase takes out what belongs to one database.
func (n *neutraliser) inDatabase(ctx context.Context, conn *pgx.Conn, d database) error {
	if err := n.rollBackPrepared(ctx, conn, d); err != nil {
		return err
	}
	return withoutEventTriggers(ctx, conn, func() error {
		if err := n.detachSubscriptions(ctx, conn, d); err != nil {
			return err
		}
		return n.dropOrphans(ctx, conn)
	})
}

// withoutEventTriggers runs f while no event trigger of the database fires.
// session_replication_role=replica keeps ordinary ones away and lets those through
// that were made ENABLE ALWAYS or REPLICA (filter_event_trigger in event_trigger.c);
// from 17 on event_triggers=off keeps all away, and this finds nothing to do.
func withoutEventTriggers(ctx context.Context, conn *pgx.Conn, f func() error) error {
	rows, err := conn.Query(ctx, `SELECT evtname::text, CASE evtenabled WHEN 'A' THEN 'ALWAYS' ELSE 'REPLICA' END
		FROM pg_event_trigger WHERE evtenabled IN ('A', 'R') AND current_setting('event_triggers', true) IS DISTINCT FROM 'off' ORDER BY 1`)
	if err != nil {
		return err
	}
	firing, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Name, When string }])
	if err != nil {
		return err
	}
	for _, t := range firing { // ALTER EVENT TRIGGER fires none
		if _, err := conn.Exec(ctx, "ALTER EVENT TRIGGER "+quoteIdent(t.Name)+" DISABLE"); err != nil {
			return err
		}
	}
	if err := f(); err != nil {
		return err
	}
	for _, t := range firing {
		if _, err := conn.Exec(ctx, "ALTER EVENT TRIGGER "+quoteIdent(t.Name)+" ENABLE "+t.When); err != nil {
			return err
		}
	}
	return nil
}

// inCluster takes out what belongs to no single database.
func (n *neutraliser) inCluster(ctx context.Context, conn *pgx.Conn) error {
	if err := n.dropSlots(ctx, conn); err != nil {
		return err
	}
	return n.resetPreloads(ctx, conn)
}

// resetPreloads takes the libraries out that ALTER ROLE and ALTER DATABASE … SET
// load at login: these hold over every configuration file, and a login whose
// library the image has not is refused.
func (n *neutraliser) resetPreloads(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `SELECT coalesce(r.rolname::text, ''), coalesce(d.datname::text, ''),
			split_part(c, '=', 1), substr(c, strpos(c, '=') + 1)
		FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase,
			unnest(s.setconfig) c
		WHERE split_part(c, '=', 1) IN ('session_preload_libraries', 'local_preload_libraries') ORDER BY 1, 2, 3`)
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Role, Database, Name, Value string }])
	if err != nil {
		return err
	}
	for _, f := range found {
		of := "ROLE ALL"
		switch {
		case f.Role != "" && f.Database != "":
			of = "ROLE " + quoteIdent(f.Role) + " IN DATABASE " + quoteIdent(f.Database)
		case f.Role != "":
			of = "ROLE " + quoteIdent(f.Role)
		case f.Database != "":
			of = "DATABASE " + quoteIdent(f.Database)
		}
		if _, err := conn.Exec(ctx, "ALTER "+of+" RESET "+f.Name); err != nil {
			return fmt.Errorf("%s of %s: %w", f.Name, of, err)
		}
		n.note("ALTER "+of+" SET "+f.Name, f.Value, whyPreload)
		n.libraries = append(n.libraries, libraries(f.Value)...)
	}
	return nil
}

func (n *neutraliser) dropSlots(ctx context.Context, conn *pgx.Conn) error {
	names, err := texts(ctx, conn, `SELECT slot_name::text FROM pg_replication_slots ORDER BY 1`)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := conn.Exec(ctx, "SELECT pg_drop_replication_slot("+quoteLiteral(name)+")"); err != nil {
			return fmt.Errorf("replication slot %q: %w", name, err)
		}
		n.changes = append(n.changes, slotChange(name))
	}
	return nil
}

// rollBackPrepared rolls back what was prepared for a two-phase commit: its
// coordinator will finish it in the source and knows of no branch.
func (n *neutraliser) rollBackPrepared(ctx context.Context, conn *pgx.Conn, d database) error {
	names, err := texts(ctx, conn, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY 1`)
	if err != nil {
		return err
	}
	for _, gid := range names {
		if _, err := conn.Exec(ctx, "ROLLBACK PREPARED "+quoteLiteral(gid)); err != nil {
			return fmt.Errorf("prepared transaction %q: %w", gid, err)
		}
		n.note(fmt.Sprintf("prepared transaction %s in database %s", gid, d.name), "",
			"rolled back: its coordinator finishes it in the source")
	}
	return nil
}

// nowhere is a connection string that leads to no host and needs no name looked
// up. The password satisfies password_required (16 and later).
const nowhere = "host=/pgoverlay/detached dbname=detached password=detached"

// detachSubscriptions disables each subscription, takes its slot's name away, and
// its publisher's address too: DROP SUBSCRIPTION connects even without a slot while
// tables are still being synchronised, and would drop their slots at the publisher
// (DropSubscription in subscriptioncmds.c). The address also holds a password.
func (n *neutraliser) detachSubscriptions(ctx context.Context, conn *pgx.Conn, d database) error {
	rows, err := conn.Query(ctx, `SELECT s.subname::text, coalesce(s.subslotname::text, '') FROM pg_subscription s
		JOIN pg_database d ON d.oid = s.subdbid WHERE d.datname = current_database() ORDER BY 1`)
	if err != nil {
		return err
	}
	subscriptions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Name, Slot string }])
	if err != nil {
		return err
	}
	for _, sub := range subscriptions {
		alter := "ALTER SUBSCRIPTION " + quoteIdent(sub.Name)
		for _, action := range []string{" DISABLE", " SET (slot_name = NONE)", " CONNECTION " + quoteLiteral(nowhere)} {
			if _, err := conn.Exec(ctx, alter+action); err != nil {
				return fmt.Errorf("subscription %q: %w", sub.Name, err)
			}
		}
		was := ""
		if sub.Slot != "" {
			was = "slot " + sub.Slot
		}
		n.note(fmt.Sprintf("subscription %s in database %s", sub.Name, d.name), was,
			"disabled, and its publisher forgotten: a branch must not use up the source's slot")
	}
	if len(subscriptions) == 0 {
		return nil
	}
	// VACUUM leaves the bytes of a dead row where they were, and with them the password.
	_, err = conn.Exec(ctx, "VACUUM (FULL) pg_catalog.pg_subscription")
	return err
}

// dropOrphans drops temporary tables whose sessions were the source's. Their files
// did not come along, they would hold the freeze horizon back, and autovacuum in
// every branch would drop them (do_autovacuum in autovacuum.c).
func (n *neutraliser) dropOrphans(ctx context.Context, conn *pgx.Conn) error {
	names, err := texts(ctx, conn, `SELECT format('%I.%I', s.nspname, c.relname) FROM pg_class c
		JOIN pg_namespace s ON s.oid = c.relnamespace
		WHERE c.relpersistence = 't' AND c.relkind IN ('r', 'p') ORDER BY c.oid`)
	if err != nil {
		return err
	}
	for _, name := range names {
		// A partitioned table takes its partitions along.
		if _, err := conn.Exec(ctx, "DROP TABLE IF EXISTS "+name+" CASCADE"); err != nil {
			return fmt.Errorf("temporary table %s: %w", name, err)
		}
	}
	return nil
}

// texts runs a query of one text column.
func texts(ctx context.Context, conn *pgx.Conn, query string) ([]string, error) {
	rows, err := conn.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// libraries splits a preload setting into its libraries.
func libraries(settings ...string) []string {
	var all []string
	for _, value := range settings {
		for _, name := range strings.Split(value, ",") {
			if name = strings.Trim(strings.TrimSpace(name), `"`); name != "" {
				all = append(all, name)
			}
		}
	}
	return all
}
