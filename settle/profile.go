package settle

import (
	"path"
	"strconv"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// setting is one line of the branch profile.
type setting struct {
	name, value, why string
	// usual is the server's own default where it differs from value; a source that has
	// it has decided nothing.
	usual string
	// most, in the place of value, caps the setting: the source's own value holds as
	// far as it is no more, since what clients do may depend on it. A cap has the unit
	// of a bare number, unit, which is the server's (guc_tables.c).
	most, unit string
	// segments, beside most, is how many WAL segments the server wants at least.
	segments int64
	// from and to are the majors that know the setting, 0 for no bound.
	from, to int
}

// Reasons that several settings share.
const (
	whyArchive  = "a branch must not write into the source's WAL archive, nor read from it"
	whyStandby  = "a branch is no standby of the source and waits for none of its standbys"
	whyTarget   = "a branch recovers to its own end"
	whyPreload  = "libraries loaded at start may run jobs or call out; the seed's manifest lists what the source loads"
	whyNetwork  = "a branch is reached through its container's own network and socket directory"
	whyMachine  = "a branch does not have the source's machine"
	whyLog      = "docker logs shows what the server writes to standard error"
	whyLocation = "it names a place on the source's machine"
	whyReserved = "the server reserves memory for each from its start, whether it is used or not"
	whyMemory   = "a branch shares its machine with others, and its container may have little memory"
	whyDisk     = "a branch owns the WAL that it keeps"
	whyOverlay  = "a branch lies on OverlayFS and on the file system of the engine, which tears pages in a power cut"
)

// allSettings are what every branch sets otherwise than its source may.
var allSettings = []setting{
	{name: "archive_mode", value: "off", why: whyArchive},
	{name: "archive_command", value: "", why: whyArchive},
	{name: "archive_library", value: "", why: whyArchive, from: 15},
	{name: "restore_command", value: "", why: whyArchive},
	{name: "archive_cleanup_command", value: "", why: whyArchive},
	// It switches segments whether or not there is an archive (CheckArchiveTimeout in
	// checkpointer.c), and each is 16 MiB of a branch's own.
	{name: "archive_timeout", value: "0", why: whyArchive},
	{name: "recovery_end_command", value: "", why: whyArchive},

	{name: "primary_conninfo", value: "", why: whyStandby},
	{name: "primary_slot_name", value: "", why: whyStandby},
	{name: "synchronous_standby_names", value: "", why: whyStandby},
	{name: "synchronized_standby_slots", value: "", why: whyStandby, from: 17},
	{name: "sync_replication_slots", value: "off", why: whyStandby, from: 17},
	{name: "promote_trigger_file", value: "", why: whyStandby, to: 15},

	{name: "recovery_target", value: "", why: whyTarget},
	{name: "recovery_target_lsn", value: "", why: whyTarget},
	{name: "recovery_target_name", value: "", why: whyTarget},
	{name: "recovery_target_time", value: "", why: whyTarget},
	{name: "recovery_target_xid", value: "", why: whyTarget},

	{name: "shared_preload_libraries", value: "", why: whyPreload},
	{name: "session_preload_libraries", value: "", why: whyPreload},
	{name: "local_preload_libraries", value: "", why: whyPreload},

	{name: "listen_addresses", value: "*", usual: "localhost", why: whyNetwork},
	{name: "port", value: "5432", why: whyNetwork},
	{name: "unix_socket_directories", value: "/var/run/postgresql", why: whyNetwork},
	{name: "unix_socket_permissions", value: "0777", why: whyNetwork},
	// A group that the image has not ends the server's start.
	{name: "unix_socket_group", value: "", why: whyNetwork},
	{name: "bonjour", value: "off", why: whyNetwork},
	{name: "db_user_namespace", value: "off", why: whyNetwork, to: 16},
	{name: "ssl", value: "off", why: "certificates and keys lie outside the copy, and the way to a branch is local"},

	{name: "shared_buffers", value: "128MB", why: whyMachine},
	// Not "try": it would take huge pages from whom the host reserves them for.
	{name: "huge_pages", value: "off", usual: "try", why: whyMachine},
	{name: "huge_page_size", value: "0", why: whyMachine},
	{name: "shared_memory_type", value: "mmap", why: whyMachine},
	{name: "dynamic_shared_memory_type", value: "posix", why: whyMachine},
	// io_uring is not in every build, the default seccomp profile blocks it, and its
	// reads do not pass through libc, where the shim waits for them.
	{name: "io_method", value: "worker", why: "io_uring is blocked in containers", from: 18},
	{name: "debug_io_direct", value: "", why: whyMachine, from: 16},

	// Parallel workers find their memory here first, and else in /dev/shm, which is 64
	// MiB in a container that asks for nothing else (dsm_create in dsm.c). It is mapped
	// and not touched.
	{name: "min_dynamic_shared_memory", value: "64MB", usual: "0", why: "a container has 64 MiB of /dev/shm, too little for a parallel hash join"},

	{name: "max_connections", most: "200", why: whyReserved},
	{name: "max_worker_processes", most: "16", why: whyReserved},
	{name: "max_wal_senders", most: "10", why: whyReserved},
	{name: "max_locks_per_transaction", most: "1024", why: whyReserved},
	{name: "max_pred_locks_per_transaction", most: "1024", why: whyReserved},
	{name: "max_prepared_transactions", most: "200", why: whyReserved},
	{name: "autovacuum_max_workers", most: "5", why: whyReserved},
	{name: "autovacuum_worker_slots", most: "16", why: whyReserved, from: 18},
	{name: "track_activity_query_size", most: "16kB", unit: "B", why: whyReserved},
	{name: "wal_buffers", most: "16MB", unit: "8kB", why: whyReserved},
	// Both together must stay below max_connections.
	{name: "superuser_reserved_connections", most: "10", why: whyReserved},
	{name: "reserved_connections", most: "10", why: whyReserved, from: 16},

	// effective_cache_size reserves nothing and stays: plans are to be the source's.
	{name: "work_mem", most: "64MB", unit: "kB", why: whyMemory},
	{name: "maintenance_work_mem", most: "256MB", unit: "kB", why: whyMemory},
	{name: "autovacuum_work_mem", most: "256MB", unit: "kB", why: whyMemory},
	{name: "logical_decoding_work_mem", most: "64MB", unit: "kB", why: whyMemory},
	{name: "temp_buffers", most: "64MB", unit: "8kB", why: whyMemory},

	{name: "max_wal_size", most: "1GB", unit: "MB", segments: 16, why: whyDisk},
	{name: "min_wal_size", most: "80MB", unit: "MB", segments: 5, why: whyDisk},
	{name: "wal_keep_size", value: "0", why: whyDisk},
	{name: "summarize_wal", value: "off", why: whyDisk, from: 17},

	{name: "full_page_writes", value: "on", why: whyOverlay},
	// The other way opens every file for writing after a crash, and OverlayFS copies at
	// such an open what the shim does not hold back (SyncDataDirectory in fd.c).
	{name: "recovery_init_sync_method", value: "syncfs", usual: "fsync", why: "a branch that was killed must not open every file of its seed"},

	{name: "logging_collector", value: "off", why: whyLog},
	{name: "log_destination", value: "stderr", why: whyLog},

	{name: "dynamic_library_path", value: "$libdir", why: whyLocation},
	{name: "extension_control_path", value: "$system", why: whyLocation, from: 18},
	{name: "stats_temp_directory", value: "pg_stat_tmp", why: whyLocation, to: 14},
}

// profileOf is the branch profile for a major.
func profileOf(major int) []setting {
	var known []setting
	for _, s := range allSettings {
		if (s.from == 0 || major >= s.from) && (s.to == 0 || major <= s.to) {
			known = append(known, s)
		}
	}
	return known
}

// resolved is the profile for a source with these settings and that size of a WAL
// segment, in bytes: a cap holds only where the source's value is above it.
func resolved(profile []setting, source map[string]string, segment int64) []setting {
	var held []setting
	for _, s := range profile {
		if s.most == "" {
			held = append(held, s)
			continue
		}
		if floor := strconv.FormatInt(s.segments*segment>>20, 10) + "MB"; s.segments > 0 && exceeds(floor, s.most, s.unit) {
			s.most = floor
		}
		if was, ok := source[s.name]; ok && exceeds(was, s.most, s.unit) {
			s.value = s.most
			held = append(held, s)
		}
	}
	return held
}

func inProfile(profile []setting, name string) bool {
	for _, s := range profile {
		if s.name == name {
			return true
		}
	}
	return false
}

// profileText is pgoverlay.conf of a cluster whose PGDATA is dataDir below the volume's root. What a branch
// loads beyond the seed's own libraries is not said here but in a file that only a mounted branch has: a copy
// of PGDATA elsewhere, as pg_basebackup makes one, would not start if it named a library that is not there.
//
// cannotLoad says why the image's server could not load that library, which would keep it from starting; it is empty where
// it can.
func profileText(profile []setting, dataDir, cannotLoad string) string {
	var b strings.Builder
	b.WriteString("# pgoverlay.conf: what a branch sets otherwise than its source, and why.\n" +
		"#\n" +
		"# The last line of postgresql.conf includes this file, so it holds over everything\n" +
		"# there. `docker pgbranch create -c NAME=VALUE` and ALTER SYSTEM in a branch hold\n" +
		"# over this file, in that order.\n")
	why := ""
	for _, s := range profile {
		if s.why != why {
			why = s.why
			b.WriteString("\n# " + strings.ToUpper(why[:1]) + why[1:] + ".\n")
		}
		b.WriteString(s.name + " = " + quoteConf(s.value) + "\n")
	}
	if cannotLoad != "" {
		b.WriteString("\n" + contract.NoPreloadMark + cannotLoad + "\n")
		return b.String()
	}
	b.WriteString("\n# The volume of a branch adds the library that makes reads cost nothing.\n" +
		"include_if_exists " + quoteConf(contract.FromDataDir(dataDir, path.Join(contract.RuntimeDir, contract.PreloadConf))) + "\n")
	b.WriteString("\n# What this branch sets on its own.\ninclude '" + contract.BranchConf + "'\n")
	return b.String()
}

// branchConfText is contract.BranchConf in a seed, in whose place the volume plugin puts
// a branch's own.
const branchConfText = "# This branch sets nothing on its own.\n"

// profileChanges lists the settings that the profile changes: those that the source
// set otherwise.
func profileChanges(profile []setting, source map[string]string) []contract.Change {
	var changes []contract.Change
	for _, s := range profile {
		was, ok := source[s.name]
		// SHOW archive_command says "(disabled)" while archive_mode is off.
		if ok && was != s.value && was != "(disabled)" && (s.usual == "" || was != s.usual) {
			changes = append(changes, contract.Change{What: s.name, Was: presentable(was), Why: s.why})
		}
	}
	return changes
}

// secretive matches values that look as if they held a secret; the manifest goes
// into `docker volume inspect`.
var secretive = pattern(`(?i)passw|pwd|secret|token|credential|api_?key|access_?key|://[^/\s]*:[^/\s]*@`)

// presentable is a value fit for the manifest: empty where it may be secret.
func presentable(value string) string {
	if secretive().MatchString(value) {
		return ""
	}
	return value
}
