//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// dumpFill is what a dump must bring over whole: rows that look like SQL, a body with
// semicolons, a large object, a subscription, and owners that nobody makes.
const dumpFill = `
CREATE ROLE rdsadmin; CREATE ROLE app LOGIN; GRANT rdsadmin TO app;
CREATE ROLE weak LOGIN PASSWORD '` + password + `' IN ROLE pg_read_all_data;
CREATE DATABASE dumped TEMPLATE template0 LOCALE 'C';
\c dumped
CREATE EXTENSION pgcrypto;
COMMENT ON EXTENSION pgcrypto IS 'a provider owns it';
CREATE TABLE orders AS SELECT g AS id, md5(g::text) AS pad FROM generate_series(1, 20000) g;
ALTER TABLE orders ADD PRIMARY KEY (id);
CREATE TABLE odd (id int, t text);
INSERT INTO odd VALUES (1, E'a\tb\nc\\.;'), (2, '\.'), (3, NULL), (4, 'O''Neil; -- $$');
CREATE FUNCTION f(a int) RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT CASE WHEN a > 1 THEN a END; END;
CREATE SEQUENCE n; SELECT setval('n', 77);
ALTER TABLE orders OWNER TO rdsadmin; GRANT SELECT ON odd TO app;
DO $$ BEGIN PERFORM lo_from_bytea(4711, decode(repeat('ab', 100000), 'hex')); END $$;
GRANT SELECT ON LARGE OBJECT 4711 TO weak;
CREATE SUBSCRIPTION s CONNECTION 'host=nowhere.invalid password=` + password + `' PUBLICATION p WITH (connect = false, slot_name = 'upstream');
ALTER DATABASE dumped SET work_mem = '5MB';
`

// dumpFacts is what the database dumped answers, on a source as on a branch.
const dumpFacts = `SELECT count(*), sum(id), md5(string_agg(pad, '' ORDER BY id)) FROM orders;
SELECT id, encode(convert_to(t, 'UTF8'), 'hex') FROM odd ORDER BY id;
SELECT f(7), (SELECT last_value FROM n), length(lo_get(4711)), current_setting('work_mem');
SELECT tableowner FROM pg_tables WHERE tablename = 'orders';
SELECT datcollate FROM pg_database WHERE datname = 'dumped'`

// dumpSource is a server that the dumps are of.
type dumpSource struct {
	source
	facts string
}

var dumpSources = struct {
	sync.Mutex
	made map[string]dumpSource
}{made: map[string]dumpSource{}}

func startDumpSource(t testing.TB, image string) dumpSource {
	t.Helper()
	ready(t)
	dumpSources.Lock()
	defer dumpSources.Unlock()
	if s, ok := dumpSources.made[image]; ok {
		return s
	}
	name := prefix + "dumped-" + image[strings.LastIndex(image, ":")+1:]
	s := dumpSource{source: source{container: name, network: name, image: image}}
	docker(t, "network", "create", name)
	docker(t, "run", "-d", "--name", name, "--network", name, "-e", "POSTGRES_PASSWORD="+password, "-e", "POSTGRES_INITDB_ARGS=--no-sync",
		image, "postgres", "-c", "fsync=off")
	waitFor(t, 5*time.Minute, "the source answers over TCP", func() bool {
		return command("", "docker", "exec", name, "pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres").code == 0
	})
	if r := command(dumpFill, "docker", "exec", "-i", name, "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-U", "postgres"); r.code != 0 {
		t.Fatalf("filling the source: %s", r.stderr)
	}
	s.facts = docker(t, "exec", name, "psql", "-qAtXU", "postgres", "-d", "dumped", "-c", dumpFacts)
	if !strings.HasPrefix(s.facts, "20000|") {
		t.Fatalf("the source holds %q", s.facts)
	}
	dumpSources.made[image] = s
	return s
}

// dump gives what a program of the source's container prints.
func (s dumpSource) dump(t testing.TB, args ...string) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command("docker", append([]string{"exec", s.container}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, errs.String())
	}
	return out.Bytes()
}

func (s dumpSource) pgDump(t testing.TB, args ...string) []byte {
	return s.dump(t, append([]string{"pg_dump", "-U", "postgres", "-d", "dumped"}, args...)...)
}

func writeDump(t testing.TB, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// seedOfDump makes a seed that goes with the test.
func seedOfDump(t testing.TB, stdin, name string, args ...string) result {
	t.Helper()
	t.Cleanup(func() { try("seed", "rm", name) })
	r := command(stdin, "docker", append([]string{"pgbranch", "seed", "create", name, "--progress", "plain"}, args...)...)
	t.Logf("exit %d: %s\n%s", r.code, r.stdout, r.stderr)
	return r
}

// requireFacts: a branch of the seed answers as the source does.
func (s dumpSource) requireFacts(t testing.TB, seed string) {
	t.Helper()
	name := seed + "-b"
	branch(t, name, seed)
	if got := pgbranch(t, "psql", "-d", "dumped", name, "--", "-qAtX", "-c", dumpFacts); got != s.facts {
		t.Errorf("a branch holds\n%s\nand the source\n%s", got, s.facts)
	}
}

// requireDetached: the branch's subscription asks nobody.
func requireDetached(t testing.TB, branch string) {
	t.Helper()
	if got := sql(t, branch, "dumped", "SELECT subenabled, subslotname IS NULL, subconninfo LIKE '%nowhere%' FROM pg_subscription"); got != "f|t|f" {
		t.Errorf("the subscription is %q", got)
	}
}

// Every format and compression of a dump makes the seed that its source is.
func TestSeedFromDump(t *testing.T) {
	s := startDumpSource(t, "postgres:17")
	s.dump(t, "pg_dump", "-U", "postgres", "-d", "dumped", "-Fd", "-f", "/tmp/dir")
	dir := filepath.Join(t.TempDir(), "dir")
	docker(t, "cp", s.container+":/tmp/dir", dir)
	zipped := string(s.dump(t, "sh", "-c", "pg_dump -U postgres -d dumped -C | gzip"))
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, stdin, from string
	}{
		{"custom", "", writeDump(t, "shop.dump", s.pgDump(t, "-Fc"))},
		{"tar", "", writeDump(t, "shop.tar", s.pgDump(t, "-Ft"))},
		{"directory", "", dir},
		{"gzip", zipped, "-"},
		{"zstd", "", writeDump(t, "shop.sql.zst", encoder.EncodeAll(s.pgDump(t, "-C"), nil))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := prefix + "of-" + c.name
			r := seedOfDump(t, c.stdin, name, "--from-dump", c.from)
			if r.code != 0 {
				t.Fatal(r.stderr)
			}
			for _, want := range []string{"made 3 roles", "app", "rdsadmin", "shown this once", "seed of Postgres 17"} {
				if !strings.Contains(r.stderr, want) {
					t.Errorf("it does not say %q", want)
				}
			}
			s.requireFacts(t, name)
			requireDetached(t, name+"-b")
		})
	}
}

// A dump of an older major goes into a newer image, and not the other way round.
func TestSeedFromDumpOfAnotherMajor(t *testing.T) {
	older := startDumpSource(t, "postgres:15")
	name := prefix + "newer"
	r := seedOfDump(t, string(older.pgDump(t, "-Fc")), name, "--from-dump", "-", "--image", "postgres:17")
	if r.code != 0 || !strings.Contains(r.stderr, "note: the dump is of Postgres 15, and the seed has 17") {
		t.Fatalf("exit %d", r.code)
	}
	older.requireFacts(t, name)

	newer := docker(t, "run", "--rm", "--user", "postgres", "--entrypoint", "sh", "postgres:18", "-c",
		`initdb -D /tmp/d -A trust --no-sync >/dev/null && pg_ctl -D /tmp/d -w -l /tmp/log -o "-k /tmp -h ''" start >/dev/null &&
		 pg_dump -h /tmp postgres && echo @@@ && pg_dumpall -h /tmp`)
	single, cluster, _ := strings.Cut(newer, "@@@\n")
	before := state(t)
	for _, dump := range []string{single, cluster} {
		r := seedOfDump(t, "", prefix+"bad", "--from-dump", writeDump(t, "new.sql", []byte(dump)), "--image", "postgres:15")
		if r.code != 2 {
			t.Errorf("exit %d", r.code)
		}
		requireRefusal(t, r, before, []string{"18", "has Postgres 15", "use --image postgres:18"})
	}
}

// A provider's dump names roles that nobody makes, and extensions that no other image
// has. All of that is made or listed, and no row is lost.
func TestSeedFromAProvidersDump(t *testing.T) {
	s := startDumpSource(t, "postgres:17")
	text := string(s.dump(t, "sh", "-c", "pg_dumpall -U postgres --exclude-database=template1 --no-role-passwords"))
	text = strings.ReplaceAll(text, "pgcrypto", "aws_commons")
	text = strings.Replace(text, "CREATE ROLE postgres;", "", 1)
	text = strings.Replace(text, "ALTER ROLE postgres WITH SUPERUSER", "ALTER ROLE postgres WITH NOSUPERUSER", 1)
	text = strings.Replace(text, "GRANT SELECT ON TABLE public.odd TO app;", `GRANT SELECT ON TABLE public.odd TO app;
BEGIN;
GRANT ALL ON SCHEMA public TO rds_superuser;
ALTER DEFAULT PRIVILEGES FOR ROLE "Supabase Admin" GRANT SELECT ON TABLES TO cloudsqlsuperuser;
COMMIT;
CREATE EVENT TRIGGER ev ON ddl_command_end EXECUTE FUNCTION public.nothing();
CREATE USER MAPPING FOR rds_superuser SERVER gone OPTIONS (password '`+password+`');`, 1)
	if strings.Count(text, "aws_commons") < 2 || !strings.Contains(text, "NOSUPERUSER") || !strings.Contains(text, "rds_superuser") {
		t.Fatal("the dump is not what this test is for")
	}
	name := prefix + "rds"
	r := seedOfDump(t, "", name, "--from-dump", writeDump(t, "rds.sql", []byte(text)))
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	s.requireFacts(t, name)
	var inspected []engine.Seed
	if err := json.Unmarshal([]byte(pgbranch(t, "seed", "inspect", name)), &inspected); err != nil {
		t.Fatal(err)
	}
	found := inspected[0].Manifest.Dump
	if got := strings.Join(found.Roles, "|"); got != "rds_superuser|cloudsqlsuperuser|Supabase Admin" {
		t.Errorf("it made the roles %s", got)
	}
	var failed []string
	for _, f := range found.Failed {
		failed = append(failed, strings.Join(strings.Fields(f.Statement)[:3], " "))
		if f.Data || f.Line == 0 || f.Message == "" || f.Database != "dumped" || strings.Contains(f.Statement+f.Message, password) {
			t.Errorf("it lists %+v", f)
		}
		if len(found.Failed) <= 10 && !strings.Contains(r.stderr, f.Message) {
			t.Errorf("it does not say %q", f.Message)
		}
	}
	if got := strings.Join(failed, "|"); got != "CREATE EXTENSION IF|COMMENT ON EXTENSION|CREATE EVENT TRIGGER|CREATE USER MAPPING" {
		t.Errorf("it lists %s", got)
	}
	// The password that is shown once is the superuser's.
	_, told, _ := strings.Cut(r.stderr, "with the password ")
	told, _, _ = strings.Cut(told, ",")
	url := strings.Replace(pgbranch(t, "url", name+"-b"), "postgres@", "postgres:"+told+"@", 1)
	if r := command("", "docker", "run", "--rm", "--network", "host", "postgres:17", "psql", url, "-qAtXc", "SELECT current_database(), rolsuper FROM pg_roles WHERE rolname = current_user"); r.stdout != "dumped|t" {
		t.Errorf("logging in gives %q: %s", r.stdout, r.stderr)
	}
}

// What may have cost data, or is no whole dump, is not sealed, and nothing of it stays.
func TestSeedFromADamagedDump(t *testing.T) {
	s := startDumpSource(t, "postgres:17")
	plain, custom := string(s.pgDump(t)), s.pgDump(t, "-Fc")
	wrong := strings.Replace(plain, "\n7\t", "\nseven\t", 1)
	orders := strings.Replace(plain, "ADD CONSTRAINT orders_pkey PRIMARY KEY (id)", "ADD CONSTRAINT orders_pkey PRIMARY KEY (ident)", 1)
	cut := plain[:strings.LastIndex(plain[:len(plain)-200], ";\n")+2]
	flipped := bytes.Clone(custom)
	flipped[len(flipped)/2] ^= 0xff
	for _, c := range []struct {
		name, text string
		args, want []string
	}{
		{"a row", wrong, nil, []string{"COPY public.orders", `invalid input syntax for type integer: "seven"`, "line 7, column id", "--force"}},
		{"a key", orders, nil, []string{"ADD CONSTRAINT orders_pkey", `column "ident"`, "1 statement"}},
		{"plain, cut off between statements", cut, []string{"--force"}, []string{"cut off", "dump complete"}},
		{"plain, cut off in a COPY", plain[:len(plain)/2], []string{"--force"}, []string{"cut off", "data of the COPY"}},
		{"custom, cut off", string(custom[:len(custom)*2/3]), []string{"--force"}, []string{"cut off", "pg_restore"}},
		{"custom, damaged", string(flipped), []string{"--force"}, []string{"damaged"}},
		{"no dump", "\x00\x01\x02", nil, []string{"neither SQL nor an archive"}},
		{"a psql command", plain + "\\! id\n", nil, []string{`\! id`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := state(t)
			path := writeDump(t, "dump", []byte(c.text))
			r := seedOfDump(t, "", prefix+"bad", append([]string{"--from-dump", path, "--image", "postgres:17"}, c.args...)...)
			if r.code != 6 {
				t.Errorf("exit %d", r.code)
			}
			requireRefusal(t, r, before, c.want)
		})
	}
	r := seedOfDump(t, "", prefix+"forced", "--from-dump", writeDump(t, "dump", []byte(wrong)), "--force")
	if r.code != 0 || !strings.Contains(r.stderr, "may have cost data") {
		t.Errorf("with --force: exit %d", r.code)
	}
	if got := pgbranch(t, "seed", "inspect", "-f", "{{.Manifest.Dump.FailedData}} {{(index .Manifest.Dump.Failed 0).Data}}", prefix+"forced"); got != "1 true" {
		t.Errorf("the manifest says %s", got)
	}
}

var halfRestored = regexp.MustCompile(`"stage":"restore","done":\d+`)

// An interrupt in the middle of a dump leaves nothing behind.
func TestSeedFromDumpInterrupted(t *testing.T) {
	s := startDumpSource(t, "postgres:17")
	plain := s.pgDump(t)
	before := state(t)
	cmd := exec.Command("docker", "pgbranch", "seed", "create", prefix+"stopped", "--from-dump", "-", "--progress", "json")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(plain[:len(plain)/2]); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	buffer := make([]byte, 4096)
	never := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() })
	defer never.Stop()
	for !halfRestored.Match(said.Bytes()) {
		n, err := errs.Read(buffer)
		said.Write(buffer[:n])
		if err != nil {
			t.Fatalf("it ended: %s", said.String())
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(errs)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit %d: %s%s", code, said.String(), rest)
	}
	waitAsBefore(t, before, func() {})
}

// A role without REPLICATION is told of --logical, which copies its database.
func TestSeedLogical(t *testing.T) {
	s := startDumpSource(t, "postgres:17")
	from := []string{"--from", "postgres://weak@" + s.container + "/dumped", "--network", s.network, "--password-stdin"}
	r := seedOfDump(t, password+"\n", prefix+"bad", from...)
	if r.code != 6 || !strings.Contains(r.stderr, "--logical") {
		t.Errorf("exit %d", r.code)
	}
	before := state(t)
	r = seedOfDump(t, password+"\n", prefix+"bad", append(from, "--logical", "--image", "postgres:15")...)
	if r.code != 2 {
		t.Errorf("exit %d", r.code)
	}
	requireRefusal(t, r, before, []string{"use --image postgres:17"})
	r = seedOfDump(t, password+"\n", prefix+"bad", "--from", "postgres://app@"+s.container+"/dumped", "--network", s.network, "--logical", "--password-stdin")
	if r.code != 6 {
		t.Errorf("exit %d", r.code)
	}
	name := prefix + "logical"
	if r := seedOfDump(t, password+"\n", name, append(from, "--logical")...); r.code != 0 {
		t.Fatal(r.stderr)
	}
	s.requireFacts(t, name)
	// Roles come along with their attributes, by pg_dumpall.
	if got := sql(t, name+"-b", "dumped", "SELECT rolcanlogin, pg_has_role('app', 'rdsadmin', 'member'), rolpassword IS NULL FROM pg_authid WHERE rolname = 'app'"); got != "t|t|t" {
		t.Errorf("the role app is %s", got)
	}
}
