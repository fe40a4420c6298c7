package settle

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// outward are extensions that let SQL act beyond its server. Of schedulers the jobs
// are counted, too; none of them runs while its library is not preloaded.
var outward = map[string]string{
	"dblink":     "connects to other servers from SQL",
	"http":       "makes web requests from SQL",
	"pg_net":     "makes web requests from SQL",
	"plperlu":    "functions in it may do anything that the server's account may",
	"plpython3u": "functions in it may do anything that the server's account may",
	"plsh":       "functions in it run shell commands",
	"pglogical":  "replicates between servers",
}

// schedulers are tables of jobs that an extension's worker runs, each with a query
// that counts those in force.
var schedulers = []struct{ table, count, what string }{
	{"cron.job", "SELECT count(*) FROM cron.job WHERE active", "jobs of pg_cron"},
	{"_timescaledb_config.bgw_job", "SELECT count(*) FROM _timescaledb_config.bgw_job WHERE scheduled", "jobs of TimescaleDB"},
	{"pgagent.pga_job", "SELECT count(*) FROM pgagent.pga_job WHERE jobenabled", "jobs of pgAgent"},
}

// keyScriptSetting ends the names of settings by which extensions such as pgsodium and
// supabase_vault get the key of what they encrypt, from a program of the machine's.
const keyScriptSetting = ".getkey_script"

// keyScripts reports keys that did not come with the copy.
func (s *settler) keyScripts() []contract.Finding {
	scripts := map[string]string{}
	for name, value := range s.conf.values {
		scripts[name] = value
	}
	for name, value := range s.req.Settings {
		scripts[name] = value
	}
	for _, g := range s.req.Given {
		scripts[strings.ToLower(g.Name)] = g.Value
	}
	var found []contract.Finding
	for _, name := range slices.Sorted(maps.Keys(scripts)) {
		if strings.HasSuffix(name, keyScriptSetting) && scripts[name] != "" {
			found = append(found, contract.Finding{What: "encryption key of " + strings.TrimSuffix(name, keyScriptSetting),
				Detail: presentable("it comes from " + scripts[name] + ", outside the data directory: a branch cannot read what it encrypts without that")})
		}
	}
	return found
}

// findingsOf lists what in the database may act on the world once a branch runs.
// Options of foreign servers are shown only where they say where it leads, and
// those of user mappings, which hold passwords, not at all.
func findingsOf(ctx context.Context, conn *pgx.Conn, d database) ([]contract.Finding, error) {
	rows, err := conn.Query(ctx, `SELECT current_database()::text, what, detail FROM (
		SELECT 1 AS kind, 'foreign server ' || quote_ident(s.srvname) AS what, w.fdwname::text ||
			coalesce((SELECT ', ' || string_agg(option_name || '=' || option_value, ', ' ORDER BY option_name)
				FROM pg_options_to_table(s.srvoptions) WHERE option_name IN ('host', 'hostaddr', 'port', 'dbname', 'service')), '') ||
			', user mappings: ' || (SELECT count(*) FROM pg_user_mapping m WHERE m.umserver = s.oid) AS detail
		FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw
		UNION ALL
		SELECT 2, 'event trigger ' || quote_ident(evtname), evtevent || ', calls ' || evtfoid::regproc ||
			CASE evtenabled WHEN 'D' THEN ', disabled' ELSE '' END
		FROM pg_event_trigger) found ORDER BY kind, what`)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[contract.Finding])
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i].Detail = presentable(found[i].Detail)
	}
	for _, e := range d.extensions {
		if why, ok := outward[e.Name]; ok {
			found = append(found, contract.Finding{Database: d.name, What: "extension " + e.Name, Detail: why})
		}
	}
	jobs, err := jobsOf(ctx, conn, d)
	return append(found, jobs...), err
}

func jobsOf(ctx context.Context, conn *pgx.Conn, d database) ([]contract.Finding, error) {
	var found []contract.Finding
	for _, s := range schedulers {
		var exists bool
		if err := conn.QueryRow(ctx, "SELECT to_regclass("+quoteLiteral(s.table)+") IS NOT NULL").Scan(&exists); err != nil {
			return nil, err
		}
		if !exists {
			continue
		}
		var n int
		if err := conn.QueryRow(ctx, s.count).Scan(&n); err != nil {
			return nil, err
		}
		if n > 0 {
			found = append(found, contract.Finding{Database: d.name, What: s.what,
				Detail: strconv.Itoa(n) + " in force; they run only where the library is preloaded"})
		}
	}
	return found, nil
}
