package settle

import (
	"path"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// setting is one line of the branch profile.
type setting struct {
	name, value, why string
	// usual is the server's own default where it differs from value; a source that has
	// it has decided nothing.
	usual string
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
)

// allSettings are what every branch sets otherwise than its source may.
var allSettings = []setting{
	{name: "archive_mode", value: "off", why: whyArchive},
	{name: "archive_command", value: "", why: whyArchive},
	{name: "archive_library", value: "", why: whyArchive, from: 15},
	{name: "restore_command", value: "", why: whyArchive},
	{name: "archive_cleanup_command", value: "", why: whyArchive},
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
	{name: "ssl", value: "off", why: "certificates and keys lie outside the copy, and the way to a branch is local"},

	{name: "shared_buffers", value: "128MB", why: whyMachine},
	// Not "try": it would take huge pages from whom the host reserves them for.
	{name: "huge_pages", value: "off", usual: "try", why: whyMachine},
	// io_uring is not in every build, the default seccomp profile blocks it, and its
	// reads do not pass through libc, where the shim waits for them.
	{name: "io_method", value: "worker", why: "io_uring is blocked in containers", from: 18},

	{name: "logging_collector", value: "off", why: whyLog},
	{name: "log_destination", value: "stderr", why: whyLog},

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
		"# there. ALTER SYSTEM in a branch holds over this file.\n")
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
	return b.String()
}

// profileChanges lists the settings that the profile changes: those that the
// copy's files, or else the running source, set otherwise.
func profileChanges(profile []setting, files, source map[string]string) []contract.Change {
	var changes []contract.Change
	for _, s := range profile {
		was, ok := files[s.name]
		if !ok {
			was, ok = source[s.name]
		}
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
