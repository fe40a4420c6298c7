package settle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// probedSettings are the source's settings that decide about the copy or belong
// into its manifest. Which of them the user may read is the source's decision.
var probedSettings = []string{
	"archive_mode", "archive_command", "archive_library", "restore_command",
	"shared_preload_libraries", "session_preload_libraries", "local_preload_libraries",
	"synchronous_standby_names", "primary_slot_name", "cluster_name",
	"data_directory", "config_file", "hba_file", "ident_file",
	"wal_level", "max_connections", "max_worker_processes", "max_wal_senders", "max_replication_slots",
	"max_prepared_transactions", "max_locks_per_transaction", "track_commit_timestamp", "wal_log_hints",
	"full_page_writes", "data_checksums", "wal_segment_size", "io_method",
	"shared_buffers", "huge_pages", "listen_addresses", "port", "ssl",
	"default_statistics_target",
	"work_mem", "maintenance_work_mem", "max_wal_size", "min_wal_size", "recovery_init_sync_method",
	"TimeZone", "DateStyle", "IntervalStyle", "default_text_search_config",
	"lc_messages", "lc_monetary", "lc_numeric", "lc_time", "password_encryption",
}

func runProbe(ctx context.Context, in *input, ev *events) (contract.AgentEvent, error) {
	var req contract.ProbeRequest
	if err := in.request(&req); err != nil {
		return contract.AgentEvent{}, err
	}
	src, err := parseSource(req.Source)
	if err != nil {
		return contract.AgentEvent{}, err
	}
	ev.say(contract.StageProbe, "connecting to %s", src.address())
	found, err := src.probe(ctx, req.Logical)
	if err != nil {
		return contract.AgentEvent{}, err
	}
	return contract.AgentEvent{Stage: contract.StageProbe, Probe: found}, nil
}

// connect opens one connection to the source, within connectTimeout.
func (s source) connect(ctx context.Context, config *pgx.ConnConfig, why purpose) (*pgx.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(bounded, config)
	if err != nil {
		return nil, s.connectFailure(err, why)
	}
	return conn, nil
}

// probe asks what the source is. logical leaves out what only a base backup needs.
func (s source) probe(ctx context.Context, logical bool) (*contract.Probe, error) {
	conn, err := s.connect(ctx, s.config, forQueries)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	p := &contract.Probe{Host: s.config.Host, Port: int(s.config.Port), User: s.config.User, Database: s.config.Database}
	type ask func(context.Context, *pgx.Conn, *contract.Probe) error
	asks := []ask{
		askVersion, refuseSourceMajor, askState, askTablespaces, checkTablespaceFolders, askSettings, askKeyScripts, askGiven, askBytes, askDatabases,
	}
	if logical {
		asks = []ask{askVersion, askState, askBytes}
	}
	for _, ask := range asks {
		if err := ask(ctx, conn, p); err != nil {
			return nil, s.queryFailure(err)
		}
	}
	if logical {
		return p, nil
	}
	p.PreloadLibraries = preloaded(p.Settings)
	p.Extensions = s.extensions(ctx, conn)
	if p.SystemIdentifier, err = s.tryReplication(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// queryFailure is for a source that let us in and then failed a catalog query.
func (s source) queryFailure(err error) error {
	var known *contract.AgentError
	if errors.As(err, &known) {
		return known
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return fail(contract.AgentErrFailed, "", "%s failed a catalog query: %s (%s)", s.address(), pg.Message, pg.Code)
	}
	return s.connectFailure(err, forQueries)
}

func askVersion(ctx context.Context, conn *pgx.Conn, p *contract.Probe) error {
	var number string
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num'), current_setting('server_version')`).
		Scan(&number, &p.ServerVersion); err != nil {
		return err
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		return pooler("server_version_num is " + number)
	}
	p.Major = n / 10000
	return nil
}

func refuseSourceMajor(_ context.Context, _ *pgx.Conn, p *contract.Probe) error {
	return refuseMajor(p.Major, p.ServerVersion)
}

func refuseMajor(major int, version string) error {
	hint := ""
	switch {
	case major < contract.OldestMajor:
		hint = fmt.Sprintf("copy one database of it by a dump, with --logical --image postgres:%d, or a newer one up to %d", contract.OldestMajor, contract.NewestMajor)
	case major > contract.NewestMajor:
		hint = "a newer docker pgbranch may know it"
	default:
		return nil
	}
	return fail(contract.AgentErrMajor, hint, "the source runs Postgres %s, and seeds are made of %d to %d", version, contract.OldestMajor, contract.NewestMajor)
}

func askState(ctx context.Context, conn *pgx.Conn, p *contract.Probe) error {
	return conn.QueryRow(ctx, `SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.clock_timestamp(),
		(SELECT rolname::text FROM pg_catalog.pg_roles WHERE oid = 10)`).
		Scan(&p.InRecovery, &p.Time, &p.Superuser)
}

// askTablespaces leaves out tablespaces in place, which have no location of their
// own (allow_in_place_tablespaces, 15 and later; pg_tablespace_location gives ” or
// a path relative to the data directory): a base backup takes them along.
func askTablespaces(ctx context.Context, conn *pgx.Conn, p *contract.Probe) error {
	rows, err := conn.Query(ctx, `SELECT oid, spcname::text, location FROM
		(SELECT oid, spcname, pg_catalog.pg_tablespace_location(oid) AS location FROM pg_catalog.pg_tablespace) t
		WHERE location LIKE '/%' ORDER BY oid`)
	if err != nil {
		return err
	}
	p.Tablespaces, err = pgx.CollectRows(rows, pgx.RowToStructByPos[contract.Tablespace])
	return err
}

// checkTablespaceFolders refuses a tablespace whose link leads nowhere or in a circle:
// its size is null (calculate_tablespace_size in dbsize.c) or fails. Where the user
// may not ask, the base backup finds out.
func checkTablespaceFolders(ctx context.Context, conn *pgx.Conn, p *contract.Probe) error {
	for _, t := range p.Tablespaces {
		var there bool
		err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_tablespace_size("+strconv.FormatUint(uint64(t.OID), 10)+") IS NOT NULL").Scan(&there)
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg) && pg.Code == "42501":
			return nil
		case errors.As(err, &pg), err == nil && !there:
			return unreadable(t)
		case err != nil:
			return err
		}
	}
	return nil
}

func unreadable(t contract.Tablespace) error {
	return fail(contract.AgentErrFailed, "put the folder back, or drop the tablespace",
		"the source's tablespace %q cannot be copied: its server does not find the files in %s", t.Name, t.Location)
}

// askGiven lists what files and the command line set. Only a member of
// pg_read_all_settings sees the files' names.
func askGiven(ctx context.Context, conn *pgx.Conn, p *contract.Probe) error {
	rows, err := conn.Query(ctx, `SELECT name, pg_catalog.current_setting(name), source, coalesce(sourcefile, '')
		FROM pg_catalog.pg_settings WHERE source IN ('configuration file', 'command line', 'environment variable')
		AND setting IS DISTINCT FROM boot_val ORDER BY name`)
	if err != nil {
		return err
	}
	p.Given, err = pgx.CollectRows(rows, pgx.RowToStructByPos[contract.GivenSetting])
	return err
}

func askSettings(ctx context.Context, conn *pgx.Conn, p *contract.Probe) error {
	var names []string
	for _, name := range probedSettings {
		names = append(names, quoteLiteral(name))
	}
	rows, err := conn.Query(ctx, `SELECT name, pg_catalog.current_setting(name) FROM pg_catalog.pg_settings
		WHERE name IN (`+strings.Join(names, ",")+`)`)
	if err != nil {
		return err
	}
	p.Settings, err = collectSettings(rows)
	return err
}

// askKeyScripts asks for settings of extensions by name: pg_settings shows none whose
// library is not loaded (GUC_NO_SHOW_ALL of a placeholder, add_placeholder_variable in
// guc.c), and those of a loaded one to its superusers only.
func askKeyScripts(ctx context.Context, conn *pgx.Conn, p *contract.Probe) error {
	for _, name := range []string{"pgsodium" + keyScriptSetting, "vault" + keyScriptSetting} {
		var value *string
		err := conn.QueryRow(ctx, "SELECT pg_catalog.current_setting("+quoteLiteral(name)+", true)").Scan(&value)
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg) && pg.Code == "42501":
			p.Settings[name] = "a program that the user may not see"
		case err != nil:
			return err
		case value != nil && *value != "":
			p.Settings[name] = *value
		}
	}
	return nil
}

func collectSettings(rows pgx.Rows) (map[string]string, error) {
	found := map[string]string{}
	var name, value string
	_, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		found[name] = value
		return nil
	})
	return found, err
}

// askDatabases asks what the image must know in order to open the databases and to sort
// as the source does. A glibc database knows its version from 15 on.
func askDatabases(ctx context.Context, conn *pgx.Conn, p *contract.Probe) error {
	rows, err := conn.Query(ctx, databasesQuery(p.Major, "0::bigint"))
	if err != nil {
		return err
	}
	if p.Databases, err = pgx.CollectRows(rows, pgx.RowToStructByPos[contract.Database]); err != nil {
		return err
	}
	var version string
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.version()").Scan(&version); err != nil {
		return err
	}
	p.Libc = libcOf(version, p.Databases)
	return nil
}

// libcOf reads the C library out of version(), which names the platform as config.guess
// does, "x86_64-pc-linux-musl"; "" for another system than Linux.
func libcOf(version string, databases []contract.Database) string {
	switch {
	case strings.Contains(version, "-linux-musl"):
		return "musl"
	case !strings.Contains(version, "-linux-gnu"):
		return ""
	}
	for _, d := range databases {
		if d.Provider == "libc" && d.CollationVersion != "" {
			return "glibc " + d.CollationVersion
		}
	}
	return "glibc"
}

// askBytes leaves 0 where the user may not ask for the size of every database, or
// one goes away meanwhile.
func askBytes(ctx context.Context, conn *pgx.Conn, p *contract.Probe) error {
	err := conn.QueryRow(ctx, `SELECT coalesce(sum(pg_catalog.pg_database_size(oid)), 0)::bigint
		FROM pg_catalog.pg_database`).Scan(&p.Bytes)
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		p.Bytes = 0
		return nil
	}
	return err
}

// tryReplication opens and closes what pg_basebackup will need, two physical
// replication connections at a time, and returns the system identifier.
func (s source) tryReplication(ctx context.Context) (string, error) {
	files, err := s.connect(ctx, s.replication(), forReplication)
	if err != nil {
		return "", s.fullPool(err)
	}
	defer files.Close(context.WithoutCancel(ctx))
	wal, err := s.connect(ctx, s.replication(), forReplication)
	if err != nil {
		return "", s.fullPool(err)
	}
	defer wal.Close(context.WithoutCancel(ctx))

	// A pooler answers for itself until it is asked for something of the server's.
	if _, err := s.identifySystem(ctx, wal); err != nil {
		return "", err
	}
	return s.identifySystem(ctx, files)
}

func (s source) identifySystem(ctx context.Context, conn *pgx.Conn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	results, err := conn.PgConn().Exec(ctx, "IDENTIFY_SYSTEM").ReadAll()
	if err != nil {
		// A pooler that ignores the startup parameter passes this on as SQL.
		var pg *pgconn.PgError
		if errors.As(err, &pg) {
			return "", pooler(pg.Message)
		}
		return "", s.fullPool(s.connectFailure(err, forReplication))
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < 3 {
		return "", pooler("IDENTIFY_SYSTEM gives no answer")
	}
	return string(results[0].Rows[0][0]), nil
}
