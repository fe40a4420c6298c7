//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// oddPassword has every kind of byte that a URL, a password file or SQL escapes.
const oddPassword = `p%41:@/?#&=+ w\d"é'$x` + "`" + `!Z9kQneedle`

// odd is a source set up for another machine: its settings are of a big server, partly
// on its command line, partly from ALTER SYSTEM, and its login rules let nobody in from
// where branches are reached.
var odd = struct {
	sync.Once
	source
}{}

func oddSource(t testing.TB) source {
	t.Helper()
	ready(t)
	odd.Do(func() {
		name := prefix + "odd"
		odd.source = source{container: name, network: name, image: "postgres:17"}
		docker(t, "network", "create", name)
		subnet := docker(t, "network", "inspect", "-f", "{{(index .IPAM.Config 0).Subnet}}", name)
		docker(t, "run", "-d", "--name", name, "--network", name, "-e", "POSTGRES_PASSWORD="+password, "-e", "POSTGRES_DB=shop", "postgres:17",
			"postgres", "-c", "fsync=off", "-c", "max_connections=2000", "-c", "max_locks_per_transaction=128",
			"-c", "max_worker_processes=40", "-c", "TimeZone=Asia/Tokyo", "-c", "superuser_reserved_connections=250")
		waitFor(t, 4*time.Minute, "the source answers over TCP", func() bool {
			return command("", "docker", "exec", name, "pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres").code == 0
		})
		script := `CREATE ROLE app LOGIN REPLICATION PASSWORD '` + strings.ReplaceAll(oddPassword, "'", "''") + `';
GRANT pg_read_all_settings TO app;
GRANT CREATE ON SCHEMA public TO app;
CREATE TABLE item AS SELECT g AS id, md5(g::text) AS name FROM generate_series(1, 60000) g;
ALTER TABLE item OWNER TO app;
`
		for _, setting := range []string{
			"max_connections = 2000", "max_locks_per_transaction = 128", "superuser_reserved_connections = 250", "shared_buffers = '64GB'", "huge_pages = on", "port = 6432", "listen_addresses = '10.1.2.3'", "work_mem = '2GB'",
			"maintenance_work_mem = '16GB'", "max_wal_size = '200GB'", "min_wal_size = '8GB'", "full_page_writes = off", "logging_collector = on",
			"log_destination = 'csvlog'", "log_directory = '/var/log/pg'", "ssl = on", "ssl_cert_file = '/etc/ssl/x.pem'",
			"unix_socket_directories = '/run/elsewhere'", "unix_socket_group = 'dba'", "unix_socket_permissions = '0700'",
			"recovery_init_sync_method = fsync", "archive_timeout = '30s'", "effective_cache_size = '48GB'", "random_page_cost = 1.1",
			"dynamic_library_path = '/opt/lib:$libdir'", "synchronous_standby_names = 'standby1'", "wal_keep_size = '64GB'",
		} {
			script += "ALTER SYSTEM SET " + setting + ";\n"
		}
		if r := command(script, "docker", "exec", "-i", name, "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", "shop"); r.code != 0 {
			t.Fatalf("filling the source: %s", r.stderr)
		}
		rules := "local all all trust\nhost replication,all app " + subnet + " scram-sha-256\nhost all all 10.0.0.0/8 ldap ldapserver=x ldapprefix=u\n"
		if r := command(rules, "docker", "exec", "-i", name, "sh", "-c", `cat > "$PGDATA/pg_hba.conf" && psql -qAtXU postgres -c 'SELECT pg_reload_conf()'`); r.code != 0 {
			t.Fatal(r.stderr)
		}
	})
	return odd.source
}

// oddSeed makes the seed of the odd source as app, whose password is odd, too.
func oddSeed(t testing.TB) string {
	t.Helper()
	s := oddSource(t)
	name := prefix + "oddseed"
	if ref := seedRef(name); ref != "" {
		return ref
	}
	r := command(oddPassword+"\n", "docker", "pgbranch", "seed", "create", name, "--from", "postgres://app@"+s.container+"/shop",
		"--network", s.network, "--password-stdin", "--progress", "plain")
	if r.code != 0 {
		t.Fatalf("seed create: exit %d\n%s", r.code, r.stderr)
	}
	return r.stdout
}

// A branch of a big server's seed starts in a small container, with what is the
// source's own otherwise.
func TestSettingsOfABiggerMachine(t *testing.T) {
	seed := oddSeed(t)
	var inspected []engine.Seed
	if err := json.Unmarshal([]byte(pgbranch(t, "seed", "inspect", seed)), &inspected); err != nil {
		t.Fatal(err)
	}
	changed := map[string]string{}
	for _, c := range inspected[0].Manifest.Neutralised {
		changed[c.What] = c.Was
		if c.Why == "" {
			t.Errorf("%s has no reason", c.What)
		}
	}
	for name, was := range map[string]string{
		"shared_buffers": "64GB", "huge_pages": "on", "port": "6432", "listen_addresses": "10.1.2.3", "max_connections": "2000",
		"work_mem": "2GB", "max_wal_size": "200GB", "full_page_writes": "off", "logging_collector": "on", "ssl": "on",
		"unix_socket_permissions": "0700", "max_worker_processes": "40", "archive_timeout": "30s", "wal_keep_size": "64GB",
		"superuser_reserved_connections": "250", "synchronous_standby_names": "standby1",
	} {
		if changed[name] != was {
			t.Errorf("seed inspect says that %s was %q, not %q", name, changed[name], was)
		}
	}

	// By hand, as Compose does it: 256 MiB of memory, and docker's 64 MiB of /dev/shm.
	name := prefix + "small"
	docker(t, "volume", "create", "-d", "pgoverlay", "-o", "seed="+seed, "-o", "conf.log_statement=ddl", name)
	t.Cleanup(func() { command("", "docker", "rm", "-f", name); command("", "docker", "volume", "rm", name) })
	docker(t, "run", "-d", "--name", name, "-m", "256m", "-v", name+":/var/lib/postgresql/data",
		"-e", "LD_PRELOAD=/var/lib/postgresql/data/.pgoverlay/lazyrw.so", "postgres:17")
	query := func(statements string) result {
		return command(statements, "docker", "exec", "-i", name, "psql", "-qAtXU", "app", "-v", "ON_ERROR_STOP=1", "-d", "shop")
	}
	waitFor(t, time.Minute, "the branch answers", func() bool { return query("SELECT 1").code == 0 })
	for setting, want := range map[string]string{
		"max_connections": "200", "shared_buffers": "128MB", "work_mem": "64MB", "listen_addresses": "*", "port": "5432",
		"full_page_writes": "on", "recovery_init_sync_method": "syncfs", "TimeZone": "Asia/Tokyo", "max_locks_per_transaction": "128",
		"effective_cache_size": "48GB", "random_page_cost": "1.1", "log_statement": "ddl", "max_wal_size": "1GB", "fsync": "off",
	} {
		if r := query("SHOW " + setting); r.stdout != want {
			t.Errorf("%s is %q, not %q %s", setting, r.stdout, want, r.stderr)
		}
	}
	// More than /dev/shm holds: a parallel hash join takes workers × work_mem ×
	// hash_mem_multiplier of shared memory.
	r := query(`SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0; SET enable_mergejoin = off; SET enable_nestloop = off;
SELECT count(*) FROM (SELECT id, repeat(name, 12) AS pad FROM item) a JOIN (SELECT id, repeat(name, 12) AS pad FROM item) b USING (id, pad);
SET max_parallel_maintenance_workers = 4; CREATE INDEX ON item (name); VACUUM (PARALLEL 2) item; ANALYZE item;`)
	if r.code != 0 || !strings.HasPrefix(r.stdout, "60000") {
		t.Errorf("parallel work in a small container: %s %s", r.stdout, r.stderr)
	}
}

// What a branch sets for itself holds over restarts, kills and resets, is in nothing but
// the branch, and ALTER SYSTEM holds over it.
func TestSettingsOfABranch(t *testing.T) {
	seed := oddSeed(t)
	seedFiles := onDisk(t, "seeds", seed)
	before := checksum(t, seedFiles)
	name := prefix + "own"
	branch(t, name, seed, "-c", "work_mem=96MB", "-c", `log_line_prefix=it's \ %m `, "-c", "max_connections=321")
	check := func(when, workMem string) {
		t.Helper()
		got := sql(t, name, "shop", "SHOW work_mem", "SHOW log_line_prefix", "SHOW max_connections")
		if want := workMem + "\nit's \\ %m \n321"; got != want {
			t.Errorf("%s: %q, not %q", when, got, want)
		}
	}
	check("at first", "96MB")
	sql(t, name, "shop", "SET SESSION AUTHORIZATION DEFAULT")
	docker(t, "exec", "pgbranch-"+name, "psql", "-qXU", "postgres", "-d", "shop", "-c", "ALTER SYSTEM SET work_mem = '5MB'")
	docker(t, "kill", "pgbranch-"+name)
	pgbranch(t, "start", name)
	check("after a kill and ALTER SYSTEM", "5MB")
	pgbranch(t, "reset", "-f", name)
	check("after a reset", "96MB")
	pgbranch(t, "stop", name)
	pgbranch(t, "start", name)
	check("after a restart", "96MB")
	if after := checksum(t, seedFiles); after != before {
		t.Error("the seed changed")
	}
	var inspected []engine.Branch
	if err := json.Unmarshal([]byte(pgbranch(t, "inspect", name)), &inspected); err != nil {
		t.Fatal(err)
	}
	if inspected[0].Settings["work_mem"] != "96MB" {
		t.Errorf("inspect says %v", inspected[0].Settings)
	}
}

func TestSettingsThatABranchCannotHave(t *testing.T) {
	seed := oddSeed(t)
	for _, c := range []struct {
		setting string
		code    int
		want    []string
	}{
		{"data_directory=/x", 2, []string{"data_directory", "volume"}},
		{"PORT=6000", 2, []string{"port", "--publish"}},
		{"work_mem", 2, []string{"work_mem", "no value"}},
		{"work mem=1", 2, []string{"work mem"}},
		{"no_such_setting=1", 2, []string{"no_such_setting", "unrecognized"}},
		{"work_mem=lots", 2, []string{"work_mem=lots", "invalid value"}},
		{"max_connections=0", 2, []string{"max_connections=0", "outside the valid range"}},
		{"shared_buffers=4TB", 1, []string{"shared memory", "exited"}},
	} {
		t.Run(c.setting, func(t *testing.T) {
			before := state(t)
			r := try("create", prefix+"bad", "--from", seed, "-c", c.setting)
			t.Logf("exit %d: %s", r.code, r.stderr)
			if r.code != c.code {
				t.Errorf("exit %d, want %d", r.code, c.code)
			}
			for _, w := range c.want {
				if !strings.Contains(r.stderr, w) {
					t.Errorf("%q does not say %q", r.stderr, w)
				}
			}
			if after := state(t); after != before {
				t.Errorf("left behind\n%s\nwas\n%s", after, before)
			}
		})
	}
}

// A killed branch recovers without opening, and so copying, every file of its seed; the
// server's own way, as a control, copies what the shim does not hold back.
func TestAKilledBranchOwnsLittle(t *testing.T) {
	seed := oddSeed(t)
	for _, method := range []string{"syncfs", "fsync"} {
		name := prefix + "killed" + method
		// The source has fsync=off, with which neither is done.
		branch(t, name, seed, "-c", "fsync=on", "-c", "recovery_init_sync_method="+method)
		sql(t, name, "shop", "CREATE TABLE mine (a int)", "INSERT INTO mine VALUES (1)")
		docker(t, "kill", "pgbranch-"+name)
		before := allocated(t, upper(t, name))
		pgbranch(t, "start", name)
		if got := sql(t, name, "shop", "SELECT a FROM mine"); got != "1" {
			t.Errorf("after the kill there is %q", got)
		}
		t.Logf("%s: the branch owns %d KiB before its recovery, %d KiB after", method, before>>10, allocated(t, upper(t, name))>>10)
		_, err := os.Stat(upper(t, name) + "/PG_VERSION")
		if copied := err == nil; copied != (method == "fsync") {
			t.Errorf("%s: that a file is copied which nobody writes is %v", method, copied)
		}
	}
}
