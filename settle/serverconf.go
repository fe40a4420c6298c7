package settle

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// ownSettings are those that the settle's private server must share with a branch.
// With other values of the first eight a branch would write an
// XLOG_PARAMETER_CHANGE record at its first start, and with another
// full_page_writes an XLOG_FPW_CHANGE (XLogReportParameters and
// UpdateFullPageWrites in xlog.c). default_statistics_target decides what ANALYZE
// leaves behind.
var ownSettings = []string{
	"wal_level", "wal_log_hints", "track_commit_timestamp", "max_connections", "max_worker_processes",
	"max_wal_senders", "max_prepared_transactions", "max_locks_per_transaction",
	"full_page_writes", "default_statistics_target",
}

// limits are the settings of which recovery may demand at least pg_control's
// (CheckRequiredParameterValues in xlogrecovery.c, recoverPrepared… in twophase.c).
var limits = []string{
	"max_connections", "max_worker_processes", "max_wal_senders", "max_prepared_transactions", "max_locks_per_transaction",
}

// raise returns own with every limit at least that of pg_control, and whether that
// differs.
func raise(own map[string]string, control controlData) (map[string]string, bool) {
	raised, differs := map[string]string{}, false
	for name, value := range own {
		raised[name] = value
		if !slices.Contains(limits, name) {
			continue
		}
		mine, err1 := strconv.Atoi(value)
		demanded, err2 := strconv.Atoi(control.settings[name])
		if err1 == nil && err2 == nil && demanded > mine {
			raised[name] = control.settings[name]
			differs = true
		}
	}
	return raised, differs
}

// branchSettings asks the image's server what a branch would run with. The first
// question alone finds out whether it takes the configuration.
func (a account) branchSettings(ctx context.Context, data string) (map[string]string, error) {
	values := make([]string, len(ownSettings))
	ask := func(ctx context.Context, i int) (err error) {
		values[i], err = a.output(ctx, "postgres", "-D", data, "-C", ownSettings[i])
		return err
	}
	if err := ask(ctx, 0); err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for i := range ownSettings[1:] {
		group.Go(func() error { return ask(ctx, i+1) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	own := map[string]string{}
	for i, name := range ownSettings {
		own[name] = strings.TrimSpace(values[i])
	}
	return own, nil
}

// freezeMemory is the private server's maintenance_work_mem: each worker of the
// freeze may use that much for the dead rows of one table.
const freezeMemory = "128MB"

// privateConf is the whole configuration of the private server: none of the
// source's settings is in it, so none can fire. Whoever may reach the socket
// directory is trusted; its mode is 0700.
//
// inPlace says that the cluster has tablespaces, which lie in pg_tblspc itself:
// without allow_in_place_tablespaces recovery ends in a PANIC there
// (CheckTablespaceDirectory in xlogrecovery.c). The setting is younger than 14.0.
func privateConf(major int, data, run string, inPlace bool, shared map[string]string) string {
	type line struct {
		name, value string
		from        int
	}
	lines := []line{
		{name: "data_directory", value: data},
		{name: "hba_file", value: run + "/hba.conf"},
		{name: "ident_file", value: run + "/ident.conf"},
		{name: "listen_addresses", value: ""},
		{name: "unix_socket_directories", value: run},
		{name: "unix_socket_permissions", value: "0700"},
		{name: "superuser_reserved_connections", value: "0"},
		{name: "reserved_connections", value: "0", from: 16},
		{name: "log_destination", value: "stderr"},
		{name: "log_line_prefix", value: ""},
		{name: "lc_messages", value: "C"},

		// Nothing may act on its own. max_logical_replication_workers=0 keeps even the
		// launcher away (ApplyLauncherRegister in launcher.c).
		{name: "archive_mode", value: "off"},
		{name: "hot_standby", value: "off"},
		// Archive recovery demands a command (validateRecoveryParameters in
		// xlogrecovery.c); this one has nothing to give, and all WAL is in pg_wal.
		{name: "restore_command", value: "false"},
		{name: "autovacuum", value: "off"},
		{name: "autovacuum_freeze_max_age", value: "2000000000"},
		{name: "autovacuum_multixact_freeze_max_age", value: "2000000000"},
		{name: "max_logical_replication_workers", value: "0"},
		{name: "event_triggers", value: "off", from: 17},
		{name: "jit", value: "off"},

		// The volume is synced as a whole at the end.
		{name: "fsync", value: "off"},
		{name: "synchronous_commit", value: "off"},
		{name: "restart_after_crash", value: "off"},

		// Full page images of everything that is frozen would be a second copy of the
		// cluster in WAL. restoreFullPageWrites sets this back.
		{name: "max_wal_size", value: "64GB"},
		{name: "checkpoint_timeout", value: "1d"},
		// A recycled segment would leave old WAL behind the last record, where the seed
		// needs zeros.
		{name: "wal_recycle", value: "off"},
		{name: "wal_init_zero", value: "on"},

		// Small, so that pages go from the kernel's cache and back within the processor's:
		// with 128MB a freeze took twice the processor time, with 1GB four times.
		{name: "shared_buffers", value: "16MB"},
		{name: "huge_pages", value: "off"},
		{name: "maintenance_work_mem", value: freezeMemory},
		{name: "vacuum_buffer_usage_limit", value: "1MB", from: 16},
		{name: "io_method", value: "sync", from: 18},
		// A container has 64 MiB of /dev/shm; mmap uses files in PGDATA/pg_dynshmem.
		{name: "dynamic_shared_memory_type", value: "mmap"},
		{name: "max_parallel_workers", value: "0"},
		{name: "max_parallel_maintenance_workers", value: "0"},

		{name: "vacuum_freeze_min_age", value: "0"},
		{name: "vacuum_freeze_table_age", value: "0"},
		{name: "vacuum_multixact_freeze_min_age", value: "0"},
		{name: "vacuum_multixact_freeze_table_age", value: "0"},
		// The failsafe would leave dead index entries behind (lazy_check_wraparound_failsafe
		// in vacuumlazy.c).
		{name: "vacuum_failsafe_age", value: "2100000000"},
		{name: "vacuum_multixact_failsafe_age", value: "2100000000"},
		{name: "vacuum_cost_delay", value: "0"},
	}
	if inPlace {
		lines = append(lines, line{name: "allow_in_place_tablespaces", value: "on"})
	}
	for _, name := range ownSettings {
		lines = append(lines, line{name: name, value: shared[name]})
	}
	var b strings.Builder
	for _, l := range lines {
		if l.from <= major {
			fmt.Fprintf(&b, "%s = %s\n", l.name, quoteConf(l.value))
		}
	}
	return b.String()
}
