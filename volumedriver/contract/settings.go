package contract

import (
	"fmt"
	"strings"
)

// OptConfPrefix begins an option that sets one of a branch's own Postgres settings:
// conf.work_mem=64MB.
const OptConfPrefix = "conf."

// BranchConf is the file in PGDATA that holds a branch's own settings. The seed's
// configuration includes it, after everything but ALTER SYSTEM.
const BranchConf = "pgoverlay.branch.conf"

// refusedSettings would take a branch away from its own data or from whoever wants to
// reach it, and say what to do instead.
var refusedSettings = map[string]string{
	"data_directory":          "a branch's data directory is its volume",
	"config_file":             "a branch's configuration lies in its volume",
	"hba_file":                "who may log in is decided in the branch's own pg_hba.conf",
	"ident_file":              "user name maps lie in the branch's own pg_ident.conf",
	"external_pid_file":       "a branch has no use for it",
	"include":                 "it is no setting",
	"include_dir":             "it is no setting",
	"include_if_exists":       "it is no setting",
	"port":                    "the server's own port stays 5432; choose the published one with --publish",
	"listen_addresses":        "a branch listens in its own network; choose the published address with --publish",
	"unix_socket_directories": "the agent looks for the socket where the stock image has it",
	"archive_mode":            "a branch must not write into its source's WAL archive",
	"primary_conninfo":        "a branch is no standby",
	"primary_slot_name":       "a branch is no standby",
}

// CheckSetting says why a branch cannot have a setting of its own, nil if it can as far
// as can be known without the server. The names are matched as the server does, without
// regard to case.
func CheckSetting(name, value string) error {
	if name == "" {
		return fmt.Errorf("a setting needs a name: NAME=VALUE")
	}
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || !(r >= '0' && r <= '9' || r == '.' || r == '$')) {
			return fmt.Errorf("%q is no name of a setting", name)
		}
	}
	if why, ok := refusedSettings[strings.ToLower(name)]; ok {
		return fmt.Errorf("%s cannot be set for a branch: %s", strings.ToLower(name), why)
	}
	if strings.ContainsAny(value, "\x00\n\r") {
		return fmt.Errorf("the value of %s has more than one line", name)
	}
	return nil
}
