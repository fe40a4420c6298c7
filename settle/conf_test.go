package settle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func TestParseConfLine(t *testing.T) {
	for _, tc := range []struct {
		line, name, value string
		ok                bool
	}{
		{line: "port = 5432", name: "port", value: "5432", ok: true},
		{line: "port 5432\r\n", name: "port", value: "5432", ok: true},
		{line: "  Port=5432 # the usual\n", name: "port", value: "5432", ok: true},
		{line: "port='5432'#x", name: "port", value: "5432", ok: true},
		{line: "archive_command = 'cp %p ''/a b/%f''' # c", name: "archive_command", value: "cp %p '/a b/%f'", ok: true},
		{line: `a = 'x\'y\n\101\\'`, name: "a", value: "x'y\nA\\", ok: true},
		{line: "pg_stat_statements.max = 100", name: "pg_stat_statements.max", value: "100", ok: true},
		{line: "include_dir 'conf.d'", name: "include_dir", value: "conf.d", ok: true},
		{line: "shared_buffers = 128MB\t# min 128kB", name: "shared_buffers", value: "128MB", ok: true},
		{line: "empty = ''", name: "empty", value: "", ok: true},
		{line: "#port = 5432"},
		{line: "   # comment"},
		{line: ""},
		{line: "port ="},
		{line: "port = 'unfinished"},
		{line: "port = 5432 garbage"},
		{line: "= 5"},
		{line: `a = 'ends in \`},
	} {
		name, value, ok := parseConfLine(tc.line)
		assert.Equal(t, ok, tc.ok, "%q", tc.line)
		if tc.ok {
			assert.Equal(t, name, tc.name, "%q", tc.line)
			assert.Equal(t, value, tc.value, "%q", tc.line)
		}
	}
}

func TestQuoteConfIsReadBack(t *testing.T) {
	for _, value := range []string{"", "plain", "it's", `back\slash`, "two\nlines", `'\''`} {
		_, got, ok := parseConfLine("x = " + quoteConf(value))
		assert.Assert(t, ok)
		assert.Equal(t, got, value)
	}
}

// copyOf makes a PGDATA with these files and a settler on it.
func copyOf(t *testing.T, files map[string]string) (*settler, func(name string) string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		assert.NilError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		assert.NilError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	root, err := os.OpenRoot(dir)
	assert.NilError(t, err)
	t.Cleanup(func() { root.Close() })
	control := controlData{settings: map[string]string{"max_connections": "250", "wal_level": "logical"}}
	s := &settler{root: root, major: 17, control: control}
	return s, func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		assert.NilError(t, err)
		return string(text)
	}
}

// said returns what the settler noted of a change.
func said(t *testing.T, s *settler, what string) contract.Change {
	t.Helper()
	for _, c := range s.manifest.Neutralised {
		if c.What == what {
			return c
		}
	}
	t.Fatalf("%q is not among the changes: %v", what, s.manifest.Neutralised)
	return contract.Change{}
}

func TestConfigureNeutralisesTheSourcesConfiguration(t *testing.T) {
	s, read := copyOf(t, map[string]string{
		mainConf: "archive_mode = on\narchive_command = 'push --token=abc %p'\ndata_directory = '/var/lib/pg'\n" +
			"work_mem = 64MB\ninclude 'missing.conf'\ninclude '/etc/shared.conf'\ninclude_dir 'conf.d'\n" +
			"primary_conninfo = 'host=db password=hunter2'\n",
		"conf.d/10.conf":   "hba_file = '/etc/pg_hba.conf'\nshared_preload_libraries = 'pg_cron, \"timescaledb\"'\n",
		"conf.d/note.txt":  "data_directory = '/untouched'\n",
		"conf.d/.hid.conf": "data_directory = '/untouched'\n",
		autoConf:           "# Do not edit\nwork_mem = '1GB'\nrestore_command = 'fetch %f'\nprimary_conninfo = 'password=hunter2'\n",
		hbaConf:            "# a comment\nhostssl all all 10.0.0.0/8 cert\n",
	})
	assert.NilError(t, s.configure())

	main := read(mainConf)
	assert.Assert(t, strings.HasSuffix(main, "\ninclude 'pgoverlay.conf'\n"))
	for _, gone := range []string{"\ndata_directory", "\ninclude 'missing", "\ninclude '/etc", "hunter2"} {
		assert.Assert(t, !strings.Contains(main, gone), "%q is still in %s", gone, main)
	}
	assert.Assert(t, strings.Contains(main, "\ninclude_dir 'conf.d'\n"))
	assert.Assert(t, strings.Contains(main, ": data_directory = '/var/lib/pg'\n"), "the original line is lost")
	assert.Assert(t, strings.Contains(read("conf.d/10.conf"), "# pgoverlay: "))
	assert.Equal(t, read("conf.d/note.txt"), "data_directory = '/untouched'\n")
	assert.Equal(t, read("conf.d/.hid.conf"), "data_directory = '/untouched'\n")
	assert.Equal(t, read(autoConf), emptyAuto)
	assert.Assert(t, strings.Contains(main, "\nwork_mem = '1GB'\n\n"+includeComment), main)
	assert.Assert(t, strings.Contains(read(profileConf), "\nwork_mem = '64MB'\n"))
	assert.Equal(t, read(contract.BranchConf), branchConfText)
	assert.Assert(t, strings.Contains(read(profileConf), "\narchive_mode = 'off'\n"))
	assert.Assert(t, strings.HasSuffix(read(profileConf), "\ninclude_if_exists '.pgoverlay/preload.conf'\n\n# What this branch sets on its own.\ninclude 'pgoverlay.branch.conf'\n"), "what a branch loads and sets comes last")
	assert.Assert(t, strings.HasPrefix(read(hbaConf), hbaRules))
	assert.Equal(t, read(identConf), identMinimum)

	assert.Equal(t, said(t, s, "archive_mode").Was, "on")
	assert.Equal(t, said(t, s, "archive_command").Was, "", "a token got into the manifest")
	assert.Equal(t, said(t, s, "restore_command").Was, "fetch %f")
	assert.Equal(t, said(t, s, "data_directory").Was, "/var/lib/pg")
	assert.Equal(t, said(t, s, "primary_conninfo").Was, "")
	said(t, s, "include missing.conf")
	assert.DeepEqual(t, s.preloadLibraries(), []string{"pg_cron", "timescaledb"})
}

func TestConfigureTwiceChangesNothing(t *testing.T) {
	s, read := copyOf(t, map[string]string{
		mainConf: "archive_mode = on\ndata_directory = '/x'\n", autoConf: "work_mem = '8MB'\nport = 1\n", hbaConf: "host all all all reject\n",
	})
	assert.NilError(t, s.configure())
	first := map[string]string{mainConf: read(mainConf), hbaConf: read(hbaConf), autoConf: read(autoConf)}
	assert.NilError(t, s.configure())
	for name, text := range first {
		assert.Equal(t, read(name), text, name)
	}
}

func TestConfigureWithoutAnyFile(t *testing.T) {
	s, read := copyOf(t, nil)
	s.req.Settings = map[string]string{"TimeZone": "Europe/Berlin", "archive_command": "push"}
	assert.NilError(t, s.configure())
	main := read(mainConf)
	for _, line := range []string{"max_connections = '250'", "wal_level = 'logical'", "TimeZone = 'Europe/Berlin'", "include 'pgoverlay.conf'"} {
		assert.Assert(t, strings.Contains(main, "\n"+line+"\n"), "%s lacks %s", main, line)
	}
	assert.Equal(t, read(hbaConf), hbaRules)
	assert.Equal(t, said(t, s, "archive_command").Was, "push")
}

func TestConfigureStaysInsideTheCopy(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "victim.conf")
	assert.NilError(t, os.WriteFile(outside, []byte("data_directory = '/x'\n"), 0o600))
	s, _ := copyOf(t, map[string]string{mainConf: "include 'link.conf'\ninclude '../../victim.conf'\n"})
	assert.NilError(t, os.Symlink(outside, filepath.Join(s.root.Name(), "link.conf")))
	assert.NilError(t, s.configure())
	text, err := os.ReadFile(outside)
	assert.NilError(t, err)
	assert.Equal(t, string(text), "data_directory = '/x'\n")
}

func TestConfigureRefusesAnIncludeLoop(t *testing.T) {
	s, _ := copyOf(t, map[string]string{mainConf: "include 'postgresql.conf'\n"})
	assert.ErrorContains(t, s.configure(), "include each other")
}

// What is encrypted cannot be read without a key that did not come along.
func TestKeyScriptsAreReported(t *testing.T) {
	s, _ := copyOf(t, map[string]string{mainConf: "pgsodium.getkey_script = '/etc/keys/old.sh'\nwork_mem = 4MB\n"})
	s.req.Given = []contract.GivenSetting{
		{Name: "pgsodium.getkey_script", Value: "/etc/keys/get.sh", Source: "configuration file"},
		{Name: "vault.getkey_script", Value: "curl https://u:p@keys/x", Source: "command line"},
	}
	assert.NilError(t, s.configure())
	found := s.keyScripts()
	assert.Equal(t, len(found), 2)
	assert.Equal(t, found[0].What, "encryption key of pgsodium")
	assert.Assert(t, strings.Contains(found[0].Detail, "/etc/keys/get.sh"), found[0].Detail)
	assert.Equal(t, found[1].What, "encryption key of vault")
	assert.Assert(t, !strings.Contains(found[1].Detail, "u:p"), found[1].Detail)
}

func TestDropRefused(t *testing.T) {
	s, read := copyOf(t, map[string]string{mainConf: "lc_messages = 'de_DE.UTF-8'\nwork_mem = 4MB\n", autoConf: "lc_messages = 'xx'\n"})
	assert.NilError(t, s.configure())
	dropped, err := s.dropRefused([]string{`LOG:  invalid value for parameter "lc_messages": "de_DE.UTF-8"`})
	assert.NilError(t, err)
	assert.Assert(t, dropped)
	assert.Assert(t, strings.Contains(read(mainConf), ": lc_messages = 'de_DE.UTF-8'\nwork_mem = 4MB\n"))
	assert.Equal(t, read(autoConf), emptyAuto)
	assert.Equal(t, said(t, s, "lc_messages").Was, "de_DE.UTF-8")

	dropped, err = s.dropRefused([]string{"FATAL:  could not map anonymous shared memory"})
	assert.NilError(t, err)
	assert.Assert(t, !dropped)
}

func TestProfileOfKnowsEachMajor(t *testing.T) {
	assert.Assert(t, !inProfile(profileOf(14), "archive_library"))
	assert.Assert(t, inProfile(profileOf(15), "archive_library"))
	assert.Assert(t, !inProfile(profileOf(16), "synchronized_standby_slots"))
	assert.Assert(t, inProfile(profileOf(17), "synchronized_standby_slots"))
	assert.Assert(t, inProfile(profileOf(14), "stats_temp_directory"))
	assert.Assert(t, !inProfile(profileOf(15), "stats_temp_directory"))
	assert.Assert(t, !inProfile(profileOf(17), "io_method"))
	assert.Assert(t, inProfile(profileOf(18), "io_method"))
}

func TestAmountsAreComparedAsTheServerReadsThem(t *testing.T) {
	for _, c := range []struct {
		value, most, unit string
		want              bool
	}{
		{"2000", "200", "", true}, {"200", "200", "", false}, {"0x100", "200", "", true}, {"-1", "200", "", false},
		{"65537", "64MB", "kB", true}, {"64MB", "64MB", "kB", false}, {"1GB", "64MB", "kB", true}, {"0.5GB", "64MB", "kB", true},
		{"2048", "16MB", "8kB", false}, {"2049", "16MB", "8kB", true}, {"-1", "16MB", "8kB", false}, {"64 GB", "1GB", "MB", true},
		{"lots", "64MB", "kB", false}, {"64mb", "1MB", "kB", false}, {"", "1MB", "kB", false}, {"10min", "200", "", false},
	} {
		assert.Equal(t, exceeds(c.value, c.most, c.unit), c.want, "%+v", c)
	}
}

// A cap lowers and never raises, whoever set the value: a file, ALTER SYSTEM, or the
// command line, of which only the running source knows.
func TestCapsHoldWhereTheSourceIsAbove(t *testing.T) {
	s, read := copyOf(t, map[string]string{
		mainConf: "max_connections = 2000\nwork_mem = 4MB\nmin_wal_size = 4GB\n", autoConf: "maintenance_work_mem = '8GB'\n",
	})
	s.control.segmentSize = 64 << 20
	for name, value := range map[string]string{"temp_buffers": "1GB", "max_wal_size": "100GB", "config_file": "/etc/x.conf",
		"archive_command": "push --token x", "TimeZone": "Asia/Tokyo", "ssl_passphrase_command": "echo x", "max_worker_processes": "99"} {
		s.req.Given = append(s.req.Given, contract.GivenSetting{Name: name, Value: value, Source: "command line"})
	}
	assert.NilError(t, s.configure())
	profile, main := read(profileConf), read(mainConf)
	for _, line := range []string{"max_connections = '200'", "maintenance_work_mem = '256MB'", "temp_buffers = '64MB'",
		"max_wal_size = '1GB'", "min_wal_size = '320MB'"} {
		assert.Assert(t, strings.Contains(profile, "\n"+line+"\n"), "%s lacks %s", profile, line)
	}
	for _, name := range []string{"\nwork_mem", "max_wal_senders", "wal_buffers"} {
		assert.Assert(t, !strings.Contains(profile, name), "%s is in %s", name, profile)
	}
	assert.Assert(t, strings.Contains(main, "\ntimezone = 'Asia/Tokyo'\n"), main)
	for _, gone := range []string{"token", "config_file", "passphrase"} {
		assert.Assert(t, !strings.Contains(main, gone), "%s is in %s", gone, main)
	}
	assert.Equal(t, said(t, s, "max_connections").Was, "2000")
	assert.Equal(t, said(t, s, "max_wal_size").Was, "100GB")
	// A limit of the command line is neither carried over nor, as a cap, raised.
	assert.Equal(t, said(t, s, "max_worker_processes").Was, "99")
	assert.Assert(t, !strings.Contains(main+profile, "max_worker_processes"))
}

func TestPresentable(t *testing.T) {
	assert.Equal(t, presentable("cp %p /archive/%f"), "cp %p /archive/%f")
	for _, secret := range []string{"PGPASSWORD=x push", "push --token abc", "curl https://u:p@host/%f", "AWS_SECRET_ACCESS_KEY=1 s3 cp"} {
		assert.Equal(t, presentable(secret), "", secret)
	}
}

func TestEditHBA(t *testing.T) {
	const source = "# note\n\nhostssl all all 10.0.0.0/8 ldap ldapserver=x\n@include\n"
	edited := editHBA(source)
	assert.Assert(t, strings.HasPrefix(edited, hbaRules))
	for line := range strings.Lines(strings.TrimPrefix(edited, hbaRules)) {
		assert.Assert(t, strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"), "%q is still in force", line)
	}
	assert.Assert(t, strings.Contains(edited, oldRule+"hostssl all all 10.0.0.0/8 ldap ldapserver=x\n"))
	assert.Equal(t, editHBA(edited), edited)
	assert.Equal(t, editHBA(""), hbaRules)
	assert.Equal(t, editHBA(hbaRules), hbaRules)
}
