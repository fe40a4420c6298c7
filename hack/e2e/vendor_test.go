//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// vendorConf is the configuration of an image that keeps it outside PGDATA, as Supabase's
// does, and takes a part of it and a key's program from a volume of its own.
const vendorConf = `data_directory = '/var/lib/postgresql/data'
hba_file = '/etc/postgresql/pg_hba.conf'
listen_addresses = '*'
max_connections = 61
archive_mode = on
archive_command = 'touch /tmp/archived'
shared_preload_libraries = 'auto_explain'
pgsodium.getkey_script = '/etc/postgresql-custom/getkey.sh'
include = '/etc/postgresql-custom/custom.conf'
`

// vendorImage is a postgres:17 whose command names that configuration. The volume is what
// vendorSource mounts: the image alone does not start.
func vendorImage(t testing.TB) string {
	t.Helper()
	ref := makeVariant(t, "vendor", `mkdir -p /etc/postgresql /etc/postgresql-custom
cat >/etc/postgresql/postgresql.conf <<'END'
`+vendorConf+`END
printf '%s\n' 'local all all trust' 'host all,replication all all scram-sha-256' >/etc/postgresql/pg_hba.conf
chown -R postgres: /etc/postgresql /etc/postgresql-custom`)
	container := prefix + "vendorcmd"
	docker(t, "create", "--name", container, ref)
	defer command("", "docker", "rm", "-v", container)
	docker(t, "commit", "--change", `CMD ["postgres", "-D", "/etc/postgresql"]`, container, ref)
	t.Cleanup(func() { command("", "docker", "rmi", "-f", ref) })
	return ref
}

func vendorSource(t testing.TB, image string) source {
	t.Helper()
	name := prefix + "vendor"
	s := source{container: name, network: name, image: image}
	docker(t, "network", "create", name)
	docker(t, "volume", "create", name)
	t.Cleanup(func() {
		command("", "docker", "rm", "-f", "-v", name)
		command("", "docker", "volume", "rm", name)
		command("", "docker", "network", "rm", name)
	})
	docker(t, "run", "--rm", "--user", "0:0", "-v", name+":/custom", "--entrypoint", "sh", image, "-ec",
		`echo 'work_mem = 33MB' >/custom/custom.conf; printf '#!/bin/sh\ncat /etc/postgresql-custom/root.key\n' >/custom/getkey.sh
echo `+vendorKey+` >/custom/root.key; chmod 755 /custom/getkey.sh; chown -R postgres: /custom`)
	docker(t, "run", "-d", "--name", name, "--network", name, "-v", name+":/etc/postgresql-custom",
		"-e", "POSTGRES_PASSWORD="+password, "-e", "POSTGRES_DB=shop", "-e", "POSTGRES_INITDB_ARGS=--no-sync", image)
	waitFor(t, 3*time.Minute, "the vendor's server answers over TCP", func() bool {
		return command("", "docker", "exec", name, "pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres").code == 0
	})
	docker(t, "exec", name, "psql", "-qXU", "postgres", "-d", "shop", "-c", "CREATE TABLE item AS SELECT g AS id FROM generate_series(1, 1000) g")
	return s
}

const vendorKey = "3f0cvendorkey"

// A source whose configuration and key lie in other volumes: what did not come along is
// named, and branches start, in the vendor's image and in the stock one, with none of it.
func TestConfigurationInAnotherVolume(t *testing.T) {
	image := vendorImage(t)
	s := vendorSource(t, image)
	name := prefix + "vendorseed"
	t.Cleanup(func() { try("seed", "rm", name) })
	r := command(password+"\n", "docker", "pgbranch", "seed", "create", name, "--from", s.url("shop"), "--network", s.network,
		"--image", image, "--password-stdin", "--progress", "quiet")
	if r.code != 0 {
		t.Fatalf("seed create: exit %d: %s", r.code, r.stderr)
	}
	inspected := pgbranch(t, "seed", "inspect", name)
	if strings.Contains(inspected, vendorKey) {
		t.Error("the key is in the manifest")
	}
	var seeds []engine.Seed
	if err := json.Unmarshal([]byte(inspected), &seeds); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, c := range seeds[0].Manifest.Neutralised {
		said[c.What] = c.Was + ": " + c.Why
	}
	for _, f := range seeds[0].Manifest.Reported {
		said[f.What] = f.Detail
	}
	for what, want := range map[string]string{
		"work_mem":                   "33MB: the source has it from a file outside the data directory, /etc/postgresql-custom/custom.conf",
		"max_connections":            "61: the source has it from a file outside the data directory, /etc/postgresql/postgresql.conf",
		"archive_command":            "touch /tmp/archived: ",
		"shared_preload_libraries":   "auto_explain: ",
		"encryption key of pgsodium": "it comes from /etc/postgresql-custom/getkey.sh, outside the data directory",
	} {
		if !strings.HasPrefix(said[what], want) {
			t.Errorf("of %s it says %q, not %q", what, said[what], want)
		}
	}
	for of, flags := range map[string][]string{"vendored": nil, "onstock": {"--image", "postgres:17"}} {
		of := prefix + of
		t.Cleanup(func() { try("rm", "-f", of) })
		r := try(append([]string{"create", of, "--from", name}, flags...)...)
		if r.code != 0 {
			t.Fatalf("create: exit %d: %s", r.code, r.stderr)
		}
		if warned := strings.Contains(r.stderr, "the image's arguments -D /etc/postgresql"); warned != (flags == nil) {
			t.Errorf("that the image's arguments are left out is said: %v, in %s", warned, r.stderr)
		}
		got := docker(t, "exec", "pgbranch-"+of, "psql", "-qAtXU", "postgres", "-d", "shop", "-c",
			`SELECT count(*), current_setting('config_file'), current_setting('archive_mode'), current_setting('shared_preload_libraries') ~ 'auto_explain' FROM item`)
		if want := "1000|/var/lib/postgresql/data/postgresql.conf|off|f"; got != want {
			t.Errorf("%s answers %s, not %s", of, got, want)
		}
		if restarts := docker(t, "inspect", "-f", "{{.RestartCount}}", "pgbranch-"+of); restarts != "0" {
			t.Errorf("%s was restarted %s times", of, restarts)
		}
	}
}
