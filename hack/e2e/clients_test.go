//go:build e2e

package e2e

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// A source behind PgBouncer is served where that passes replication on, and else refused
// with the word.
func TestThroughPgBouncer(t *testing.T) {
	s := guardedSource(t)
	for _, c := range []struct {
		what, port string
		want       []string
	}{
		{"which knows no replication", "6432", []string{"connection pooler", "not of a pooler"}},
		{"whose pool is too small", "6434", []string{"pool is full", "three connections", "6434"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			before := state(t)
			r := command("weak\n", "docker", "pgbranch", "seed", "create", prefix+"pooled", "--from", guardedFrom(net.JoinHostPort(s.container, c.port), "weak", "postgres", "sslmode=disable"),
				"--network", s.network, "--password-stdin", "--progress", "quiet")
			t.Logf("exit %d: %s", r.code, r.stderr)
			if r.code != 6 {
				t.Errorf("exit %d", r.code)
			}
			requireRefusal(t, r, before, c.want)
		})
	}
	t.Run("which passes it on", func(t *testing.T) {
		name := prefix + "pooled"
		t.Cleanup(func() { try("seed", "rm", name) })
		r := command("weak\n", "docker", "pgbranch", "seed", "create", name, "--from", guardedFrom(s.container+":6433", "weak", "postgres", ""),
			"--network", s.network, "--image", s.image, "--password-stdin", "--progress", "quiet")
		if r.code != 0 {
			t.Errorf("exit %d: %s", r.code, r.stderr)
		}
	})
	if r := command("", "docker", "exec", s.container, "psql", "-qAtXU", "postgres", "-c",
		"SELECT (SELECT count(*) FROM pg_replication_slots WHERE temporary), (SELECT count(*) FROM pg_stat_replication)"); r.stdout != "0|0" {
		t.Errorf("on the source there are slots and senders %s %s", r.stdout, r.stderr)
	}
}

// What TLS demands of both sides is checked, and what is wrong said.
func TestTLSOfTheSource(t *testing.T) {
	s := guardedSource(t)
	file := func(name string) string { return filepath.Join(guarded.dir, name) }
	closed := t.TempDir()
	for name, text := range map[string]string{"closed.key": "-----BEGIN PRIVATE KEY-----\n", "locked.key": "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"} {
		if err := os.WriteFile(filepath.Join(closed, name), []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	client := []string{"--ssl-cert", file("client.crt"), "--ssl-key", file("client.key")}
	checked := append([]string{"--ssl-root-cert", file("ca.crt")}, client...)
	for _, c := range []struct {
		what, host, user, query string
		flags                   []string
		code                    int
		want                    []string
	}{
		{"a stranger's server", s.container, oddUser, "", append([]string{"--ssl-root-cert", file("stranger.crt")}, client...), 6, []string{"is not trusted", "--ssl-root-cert"}},
		{"another name", s.container + "-alias", oddUser, "", checked, 6, []string{"is not trusted", "not " + s.container + "-alias"}},
		{"another name, by the URL", s.container + "-alias", oddUser, "sslmode=verify-full&sslrootcert=" + file("ca.crt") + "&sslcert=" + file("client.crt") + "&sslkey=" + file("client.key"),
			nil, 6, []string{"is not trusted", "not " + s.container + "-alias"}},
		{"no TLS", s.container, oddUser, "sslmode=disable", nil, 6, []string{"rejects", "no encryption"}},
		{"no certificate", s.container, oddUser, "sslmode=require", nil, 6, []string{"client certificate", "--ssl-cert"}},
		{"no right to replicate", s.container, "certified", "", []string{"--ssl-root-cert", file("ca.crt"), "--ssl-cert", file("certified.crt"), "--ssl-key", file("certified.key")},
			6, []string{"rejects replication"}},
		{"a certificate of another role", s.container, oddUser, "", []string{"--ssl-root-cert", file("ca.crt"), "--ssl-cert", file("certified.crt"), "--ssl-key", file("certified.key")},
			6, []string{"certificate"}},
		{"a stranger's certificate", s.container, oddUser, "", []string{"--ssl-root-cert", file("ca.crt"), "--ssl-cert", file("forged.crt"), "--ssl-key", file("forged.key")},
			6, []string{"certificate", "--ssl-cert"}},
		{"another certificate's key", s.container, oddUser, "", []string{"--ssl-cert", file("client.crt"), "--ssl-key", file("certified.key")}, 2, []string{"key"}},
		{"a key with a passphrase", s.container, oddUser, "", []string{"--ssl-cert", file("client.crt"), "--ssl-key", filepath.Join(closed, "locked.key")}, 2, []string{"--ssl-key", "passphrase"}},
		{"a key that is closed to the user", s.container, oddUser, "", []string{"--ssl-cert", file("client.crt"), "--ssl-key", filepath.Join(closed, "closed.key")}, 2, []string{"--ssl-key", "permission denied"}},
		{"no key", s.container, oddUser, "sslcert=" + file("client.crt"), nil, 2, []string{"belong together"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			args := append([]string{"docker", "pgbranch", "seed", "create", prefix + "tls", "--from", guardedFrom(c.host, c.user, "postgres", c.query),
				"--network", s.network, "--password-stdin", "--progress", "quiet"}, c.flags...)
			if strings.Contains(c.what, "closed") { // root reads everything
				args = append([]string{"setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"}, args...)
			}
			before := state(t)
			r := command(oddPassword+"\n", args[0], args[1:]...)
			t.Logf("exit %d: %s", r.code, r.stderr)
			if r.code != c.code {
				t.Errorf("exit %d, want %d", r.code, c.code)
			}
			for _, w := range c.want {
				if !strings.Contains(r.stderr, w) {
					t.Errorf("it does not say %q", w)
				}
			}
			if after := state(t); after != before {
				t.Errorf("left behind\n%s\nwas\n%s", after, before)
			}
		})
	}
}

// Names and passwords that every notation writes in another way work from end to end.
func TestOddCredentials(t *testing.T) {
	seed := guardedSeed(t)
	name := prefix + "oddly"
	branch(t, name, seed)
	at, err := pgx.ParseConfig(pgbranch(t, "url", name))
	if err != nil {
		t.Fatal(err)
	}
	if at.User != oddUser || at.Database != oddDatabase {
		t.Errorf("the URL names %q and %q", at.User, at.Database)
	}
	at.Password = oddPassword
	conn, err := pgx.ConnectConfig(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if n := value[int](t, conn, "SELECT count(*) FROM item"); n != 1000 {
		t.Errorf("%d rows", n)
	}
	if got := sql(t, name, oddDatabase, "SELECT current_user"); got != oddUser {
		t.Errorf("psql is %q", got)
	}
}

// A source whose WAL and tablespaces lie outside its data directory gives branches that
// have them inside, each its own.
func TestPlacesOfTwoBranches(t *testing.T) {
	seed := guardedSeed(t)
	sealed := onDisk(t, "seeds", seed)
	before := checksum(t, sealed)
	one, two := prefix+"placed1", prefix+"placed2"
	branch(t, one, seed)
	branch(t, two, seed)
	asSuperuser := func(name, statement string) string {
		return docker(t, "exec", "pgbranch-"+name, "psql", "-qAtXU", "postgres", "-d", oddDatabase, "-c", statement)
	}
	asSuperuser(one, "UPDATE placed SET id = -id")
	asSuperuser(two, "TRUNCATE placed")
	asSuperuser(one, "CREATE TABLE more TABLESPACE elsewhere AS SELECT 1")
	for _, name := range []string{one, two} {
		asSuperuser(name, "CHECKPOINT")
		pgbranch(t, "stop", name)
		pgbranch(t, "start", name)
	}
	if got := asSuperuser(one, "SELECT count(*), sum(id), (SELECT count(*) FROM more) FROM placed"); got != "1000|-500500|1" {
		t.Errorf("one has %s", got)
	}
	if got := asSuperuser(two, "SELECT count(*), to_regclass('more') FROM placed"); got != "0|" {
		t.Errorf("the other has %s", got)
	}
	placed := 0
	for path := range relationFiles(t, upper(t, one)) {
		if strings.Contains(path, "pg_tblspc/") {
			placed++
		}
	}
	if placed == 0 {
		t.Error("what was written is not in the branch's own tree")
	}
	if after := checksum(t, sealed); after != before {
		t.Error("the seed changed")
	}
	if r := command("", "docker", "exec", guarded.container, "psql", "-qAtXU", "postgres", "-d", oddDatabase, "-c", "SELECT count(*), sum(id) FROM placed"); r.stdout != "1000|500500" {
		t.Errorf("the source has %s %s", r.stdout, r.stderr)
	}
}

// Jobs run neither in the settle nor in a branch, which `seed inspect` says, though a
// branch that is told to load their library runs them.
func TestJobsRest(t *testing.T) {
	seed := guardedSeed(t)
	s := guarded.source
	var inspected []engine.Seed
	if err := json.Unmarshal([]byte(pgbranch(t, "seed", "inspect", seed)), &inspected); err != nil {
		t.Fatal(err)
	}
	said, _ := json.Marshal(inspected[0].Manifest)
	for _, want := range []string{`"what":"jobs of pg_cron","detail":"2 in force`, `"what":"jobs of TimescaleDB","detail":"1 in force`, `"what":"extension dblink"`,
		`"what":"shared_preload_libraries","was":"pg_cron"`, `"preloadLibraries":["pg_cron"]`, `"name":"pg_cron","version":"1.`} {
		if !strings.Contains(string(said), want) {
			t.Errorf("seed inspect does not say %s in %s", want, said)
		}
	}

	quiet, loud := prefix+"quietjobs", prefix+"loudjobs"
	branch(t, quiet, seed, "--network", s.network)
	ticks := func(name string) string {
		return docker(t, "exec", "pgbranch-"+name, "psql", "-qAtXU", "postgres", "-d", oddDatabase, "-c", "SELECT count(*), max(at) <= '"+
			guarded.copied.UTC().Format(time.RFC3339Nano)+"' FROM tick")
	}
	// writers are the servers whose jobs have written the source's ledger.
	writers := func() string {
		return docker(t, "exec", s.container, "psql", "-qAtXU", "postgres", "-d", "ledger", "-c", "SELECT count(DISTINCT writer) FROM ledger")
	}
	first := ticks(quiet)
	if !strings.HasSuffix(first, "|t") || strings.HasPrefix(first, "0") {
		t.Errorf("the copy has ticks %s: a job ran in the settle, or never in the source", first)
	}
	began := writers()
	time.Sleep(3 * time.Second)
	if now := ticks(quiet); now != first {
		t.Errorf("jobs run in a branch: %s, and then %s", first, now)
	}
	if now := writers(); now != began || began == "0" {
		t.Errorf("the source's ledger has %s writers, and then %s", began, now)
	}
	branch(t, loud, seed, "--network", s.network, "-c", "shared_preload_libraries=pg_cron")
	waitFor(t, time.Minute, "jobs run in a branch that loads their library, or this shows nothing", func() bool {
		return ticks(loud) != first && writers() != began
	})
}
