//go:build e2e

package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// oddUser and oddDatabase are names that a URL, SQL, pg_hba.conf and a certificate each
// write in a way of their own.
const (
	oddUser     = `o'dd"us er@é%41`
	oddDatabase = `sh öp'%41`
)

// authority signs certificates for the tests.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB, dir, name string) authority {
	t.Helper()
	a := authority{}
	a.cert = &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.key, _ = a.issue(t, dir, name, a.cert)
	return a
}

// issue writes NAME.crt and NAME.key into dir.
func (a authority) issue(t testing.TB, dir, name string, cert *x509.Certificate) (*ecdsa.PrivateKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert.SerialNumber = big.NewInt(time.Now().UnixNano())
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(48*time.Hour)
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyText := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	certText := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for path, text := range map[string][]byte{".crt": certText, ".key": []byte(keyText)} {
		if err := os.WriteFile(filepath.Join(dir, name+path), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key, keyText
}

// guarded is a source that speaks nothing but TLS with those who hold its authority's
// certificate and a password, has PgBouncer before it, and runs jobs.
var guarded = struct {
	sync.Once
	source
	dir string // of certificates and keys
	// keyLine is a line of the client's key.
	keyLine string
	// copied is when the copy of guardedSeed was complete.
	copied time.Time
}{}

// beside is what Debian has beside its server: hack/e2e uses the shim tests' cache.
func beside(t testing.TB) string {
	t.Helper()
	r := command("", "../../shim/test/servers.sh", "beside", "17")
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	return r.stdout
}

const guardedRules = `local all all trust
host all,replication all 127.0.0.1/32 trust
hostssl all certified all cert
host replication certified all reject
hostssl all,replication all all scram-sha-256 clientcert=verify-full
hostnossl all all all reject
`

// A job each second writes into a table of its own database, and another one into one of
// the source by its name in the network, from wherever it runs.
const guardedJobs = `CREATE EXTENSION pg_cron;
CREATE EXTENSION dblink;
CREATE TABLE tick (at timestamptz);
CREATE TABLE item AS SELECT g AS id FROM generate_series(1, 1000) g;
GRANT SELECT ON item TO PUBLIC;
CREATE TABLE placed TABLESPACE elsewhere AS SELECT g AS id FROM generate_series(1, 1000) g;
CREATE ROLE certified LOGIN;
CREATE SCHEMA _timescaledb_config;
CREATE TABLE _timescaledb_config.bgw_job (id int, scheduled bool);
INSERT INTO _timescaledb_config.bgw_job VALUES (1, true), (2, false);
SELECT cron.schedule('here', '1 seconds', 'INSERT INTO tick VALUES (clock_timestamp())');
SELECT cron.schedule('there', '1 seconds', $$SELECT dblink_exec('host=e2e-guarded port=6435 user=postgres dbname=ledger',
	format('INSERT INTO ledger VALUES (now(), %L)', pg_postmaster_start_time()))$$);
`

// bouncers are PgBouncers by port: of Debian 12's age, before they passed replication
// on, and of 13's, with as many connections to the server as are wanted and with fewer.
const bouncers = `mkdir -p /pb; cd /pb
printf '"%s" "%s"\n' weak weak postgres x >users
pooler() { # PORT PROGRAM SIZE MODE AUTH
	printf '%s\n' '[databases]' 'ledger = host=127.0.0.1 dbname=ledger' '* = host=127.0.0.1' '[pgbouncer]' 'listen_addr = *' "listen_port = $1" "default_pool_size = $3" \
		"pool_mode = $4" "auth_type = $5" 'auth_file = /pb/users' 'unix_socket_dir =' "logfile = /pb/$1.log" "pidfile = /pb/$1.pid" >$1.ini
	chown -R postgres: /pb
	setpriv --reuid postgres --regid postgres --clear-groups $2 -d /pb/$1.ini
}
pooler 6432 pgbouncer-old 9 session scram-sha-256
pooler 6433 pgbouncer 9 transaction scram-sha-256
pooler 6434 pgbouncer 1 session scram-sha-256
pooler 6435 pgbouncer 9 transaction trust
`

func guardedSource(t testing.TB) source {
	t.Helper()
	ready(t)
	guarded.Do(func() {
		name := prefix + "guarded"
		s := source{container: name, network: name, image: makeVariant(t, "beside", "true", beside(t)+"/.", "/")}
		dir, err := os.MkdirTemp("", "e2e-guarded")
		if err != nil {
			t.Fatal(err)
		}
		ours := newAuthority(t, dir, "ca")
		newAuthority(t, dir, "stranger").issue(t, dir, "forged", &x509.Certificate{Subject: pkix.Name{CommonName: oddUser}})
		ours.issue(t, dir, "server", &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}})
		ours.issue(t, dir, "certified", &x509.Certificate{Subject: pkix.Name{CommonName: "certified"}})
		_, key := ours.issue(t, dir, "client", &x509.Certificate{Subject: pkix.Name{CommonName: oddUser}})
		guarded.dir, guarded.keyLine = dir, strings.Split(key, "\n")[1]

		docker(t, "network", "create", name)
		up := func() bool {
			return command("", "docker", "exec", name, "pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres").code == 0
		}
		docker(t, "run", "-d", "--name", name, "--network", name, "--network-alias", name+"-alias", "-e", "POSTGRES_PASSWORD="+password, "-e", "POSTGRES_INITDB_ARGS=--no-sync", "-e", "POSTGRES_INITDB_WALDIR=/var/lib/wal", s.image,
			"postgres", "-c", "fsync=off", "-c", "max_worker_processes=20", "-c", "wal_level=logical")
		waitFor(t, 4*time.Minute, "the source answers over TCP", up)
		// In a file, where it is on most servers: who may copy may not see that setting.
		preload := "shared_preload_libraries = 'pg_cron'\ncron.use_background_workers = on\n" +
			"cron.database_name = '" + strings.ReplaceAll(oddDatabase, "'", "''") + "'\n"
		if r := command(preload, "docker", "exec", "-i", name, "sh", "-c", `cat >>"$PGDATA/postgresql.conf"`); r.code != 0 {
			t.Fatal(r.stderr)
		}
		docker(t, "restart", name)
		waitFor(t, time.Minute, "the source answers again", up)
		for _, file := range []string{"ca.crt", "server.crt", "server.key"} {
			docker(t, "cp", filepath.Join(dir, file), name+":/var/lib/postgresql/"+file)
		}
		quoted := `"` + strings.ReplaceAll(oddDatabase, `"`, `""`) + `"`
		script := `CREATE DATABASE ` + quoted + `;
CREATE TABLESPACE elsewhere LOCATION '/var/lib/elsewhere';
SELECT pg_create_physical_replication_slot('standby1', true);
SELECT pg_create_logical_replication_slot('lake', 'pgoutput');
CREATE DATABASE ledger;
CREATE ROLE "` + strings.ReplaceAll(oddUser, `"`, `""`) + `" LOGIN REPLICATION PASSWORD '` + strings.ReplaceAll(oddPassword, "'", "''") + `';
CREATE ROLE weak LOGIN REPLICATION PASSWORD 'weak';
ALTER SYSTEM SET ssl = on;
ALTER SYSTEM SET ssl_cert_file = '/var/lib/postgresql/server.crt';
ALTER SYSTEM SET ssl_key_file = '/var/lib/postgresql/server.key';
ALTER SYSTEM SET ssl_ca_file = '/var/lib/postgresql/ca.crt';
\c ledger
CREATE TABLE ledger (at timestamptz, writer text);
\c ` + quoted + "\n" + guardedJobs
		docker(t, "exec", name, "sh", "-ec", `mkdir /var/lib/elsewhere; chown postgres: /var/lib/elsewhere /var/lib/postgresql/*.crt /var/lib/postgresql/*.key`)
		if r := command(script, "docker", "exec", "-i", name, "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", "postgres"); r.code != 0 {
			t.Fatalf("filling the source: %s", r.stderr)
		}
		if r := command(guardedRules, "docker", "exec", "-i", name, "sh", "-c", `cat >"$PGDATA/pg_hba.conf" && psql -qAtXU postgres -c 'SELECT pg_reload_conf()'`); r.code != 0 {
			t.Fatal(r.stderr)
		}
		docker(t, "exec", name, "bash", "-ec", bouncers)
		guarded.source = s
	})
	return guarded.source
}

// guardedFrom is the URL of a role of the guarded source.
func guardedFrom(host, user, database, query string) string {
	u := url.URL{Scheme: "postgres", User: url.User(user), Host: host, Path: "/" + database, RawQuery: query}
	return u.String()
}

// guardedSeed makes the seed of the guarded source by everything odd at once: password,
// certificate and the check of the server's, all debugging on. A watcher looks for each
// secret meanwhile.
func guardedSeed(t testing.TB) (ref string) {
	t.Helper()
	s := guardedSource(t)
	name := prefix + "guardedseed"
	if ref := seedRef(name); ref != "" {
		return ref
	}
	since := time.Now()
	watched := watch(t, name, oddPassword, url.QueryEscape(oddPassword), url.PathEscape(oddPassword), guarded.keyLine)
	cmd := exec.Command("docker", "--debug", "pgbranch", "seed", "create", name, "--from", guardedFrom(s.container, oddUser, oddDatabase, ""),
		"--network", s.network, "--image", s.image, "--password-stdin", "--progress", "json",
		"--ssl-root-cert", filepath.Join(guarded.dir, "ca.crt"), "--ssl-cert", filepath.Join(guarded.dir, "client.crt"), "--ssl-key", filepath.Join(guarded.dir, "client.key"))
	cmd.Stdin = strings.NewReader(oddPassword + "\n")
	said := &timed{first: map[string]time.Time{}}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, said
	err := cmd.Run()
	if err != nil {
		t.Fatalf("seed create: %v\n%s", err, said.text.String())
	}
	watched(since, out.String()+said.text.String())
	guarded.copied = said.first[`"prepare"`]
	if guarded.copied.IsZero() {
		t.Fatalf("when the copy was complete was not said:\n%s", said.text.String())
	}
	return strings.TrimSpace(out.String())
}

// timed keeps what is written to it, and when a word was first seen.
type timed struct {
	text  bytes.Buffer // not embedded: io.Copy would go around Write
	first map[string]time.Time
}

func (w *timed) Write(p []byte) (int, error) {
	const word = `"prepare"`
	if bytes.Contains(p, []byte(word)) && w.first[word].IsZero() {
		w.first[word] = time.Now()
	}
	return w.text.Write(p)
}
