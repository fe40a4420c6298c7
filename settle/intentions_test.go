package settle

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// What a copy intends to do to the world is set by the profile whatever the source says,
// on every major that knows the setting.
func TestTheProfileSetsEveryIntention(t *testing.T) {
	for name, value := range map[string]string{
		"archive_mode": "off", "archive_command": "", "restore_command": "", "archive_cleanup_command": "", "recovery_end_command": "",
		"primary_conninfo": "", "primary_slot_name": "", "synchronous_standby_names": "", "shared_preload_libraries": "",
		"session_preload_libraries": "", "local_preload_libraries": "", "recovery_target_time": "", "ssl": "off",
	} {
		for major := contract.OldestMajor; major <= contract.NewestMajor; major++ {
			i := slices.IndexFunc(profileOf(major), func(s setting) bool { return s.name == name })
			assert.Assert(t, i >= 0, "%s on %d", name, major)
			s := profileOf(major)[i]
			assert.Assert(t, s.most == "" && s.value == value, "%s on %d is %+v", name, major, s)
		}
	}
	assert.Assert(t, inProfile(profileOf(15), "archive_library") && inProfile(profileOf(17), "sync_replication_slots"))
}

// The private server is told to do nothing on its own, and listens nowhere.
func TestThePrivateServerActsOnNothing(t *testing.T) {
	for major := contract.OldestMajor; major <= contract.NewestMajor; major++ {
		lines := strings.Split(privateConf(major, "/stage/root", "/run/x", false, map[string]string{}), "\n")
		said := map[string]string{}
		for _, line := range lines {
			if name, value, ok := parseConfLine(line); ok {
				said[name] = value
			}
		}
		for name, value := range map[string]string{
			"listen_addresses": "", "archive_mode": "off", "hot_standby": "off", "restore_command": "false", "autovacuum": "off",
			"max_logical_replication_workers": "0", "unix_socket_permissions": "0700", "hba_file": "/run/x/hba.conf",
		} {
			got, ok := said[name]
			assert.Assert(t, ok && got == value, "%s on %d: %q", name, major, got)
		}
		for _, name := range slices.Collect(maps.Keys(said)) {
			assert.Assert(t, !strings.Contains(name, "preload_libraries") && !strings.HasPrefix(name, "include"), name)
		}
	}
}
