//go:build e2e

// Package e2e shows the product's promises on a real engine: real dockerd, real
// Postgres, real overlayfs. `make test` runs it; what it needs and does not find
// is a failure.
package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Everything that these tests make in the engine bears this prefix.
const prefix = "e2e-"

// result is how a command ended.
type result struct {
	stdout, stderr string
	code           int
}

// command runs a program to its end.
func command(stdin string, name string, args ...string) result {
	cmd := exec.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	err := cmd.Run()
	r := result{strings.TrimRight(out.String(), "\n"), strings.TrimRight(errs.String(), "\n"), cmd.ProcessState.ExitCode()}
	if err != nil && r.code < 0 {
		r.stderr += "\n" + err.Error()
	}
	return r
}

// docker runs docker, which must succeed, and gives its output.
func docker(t testing.TB, args ...string) string {
	t.Helper()
	r := command("", "docker", args...)
	if r.code != 0 {
		t.Fatalf("docker %q: exit %d\n%s\n%s", args, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// pgbranch runs `docker pgbranch`, which must succeed, and gives its output.
func pgbranch(t testing.TB, args ...string) string {
	t.Helper()
	return docker(t, append([]string{"pgbranch"}, args...)...)
}

// try runs `docker pgbranch`, however it ends.
func try(args ...string) result {
	return command("", "docker", append([]string{"pgbranch"}, args...)...)
}

// sql runs statements on a branch as psql does, each in its own transaction, and
// gives the unaligned rows.
func sql(t testing.TB, branch, database string, statements ...string) string {
	t.Helper()
	args := []string{"psql", "-d", database, branch, "--", "-qAtX", "-v", "ON_ERROR_STOP=1"}
	for _, s := range statements {
		args = append(args, "-c", s)
	}
	return pgbranch(t, args...)
}

var setupOnce sync.Once

// ready brings the volume plugin of this build into the engine.
func ready(t testing.TB) {
	t.Helper()
	setupOnce.Do(func() {
		for _, image := range []string{"postgres:15", "postgres:17", "postgres:18"} {
			docker(t, "image", "inspect", "-f", "{{.Id}}", image)
		}
		sweep()
		r := try("setup")
		if r.code != 0 {
			t.Fatalf("setup: %s", r.stderr)
		}
		t.Logf("%s\n%s", r.stdout, r.stderr)
	})
}

func TestMain(m *testing.M) {
	code := m.Run()
	if os.Getenv("E2E_KEEP") == "" {
		sweep()
	}
	os.Exit(code)
}

// sweep removes what these tests, or a run of them that died, made.
func sweep() {
	lines := func(args ...string) []string { return strings.Fields(command("", "docker", args...).stdout) }
	for _, id := range lines("ps", "-aq", "--filter", "name="+prefix) {
		command("", "docker", "rm", "-f", "-v", id)
	}
	volumes := lines("volume", "ls", "-q", "--filter", "name="+prefix)
	// Branches go before the seeds that they stand on.
	slices.SortFunc(volumes, func(a, b string) int { return strings.Count(a, "@") - strings.Count(b, "@") })
	for _, name := range volumes {
		command("", "docker", "volume", "rm", "-f", name)
	}
	for _, ref := range lines("images", "-q", "--filter", "reference="+prefix+"variant") {
		command("", "docker", "rmi", "-f", ref)
	}
	for _, id := range lines("network", "ls", "-q", "--filter", "name="+prefix) {
		command("", "docker", "network", "rm", id)
	}
}

// password is the fixtures' superuser password: found anywhere but in the head of
// the source, it has leaked.
const password = "Tr0ub4dor-e2e-secret"

// source is a running server to make seeds of.
type source struct {
	container, network, image string
}

// url is the source's address as a helper container sees it.
func (s source) url(database string) string {
	return "postgres://postgres@" + s.container + "/" + database
}

var (
	sourcesMu sync.Mutex
	sources   = map[string]source{}
)

// startSource gives the fixture server of an image, made at its first use and
// shared by the tests. It has in shop a table of 200 MiB that was never vacuumed,
// with its index, and a small one, and in crm, a second database, a third.
func startSource(t testing.TB, image string, bigRows int) source {
	t.Helper()
	ready(t)
	sourcesMu.Lock()
	defer sourcesMu.Unlock()
	key := fmt.Sprintf("%s/%d", image, bigRows)
	if s, ok := sources[key]; ok {
		return s
	}
	name := prefix + "source-" + regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(key, "-")
	s := source{container: name, network: name, image: image}
	docker(t, "network", "create", s.network)
	docker(t, "run", "-d", "--name", s.container, "--network", s.network, "--shm-size", "512m",
		"-e", "POSTGRES_PASSWORD="+password, "-e", "POSTGRES_DB=shop", "-e", "POSTGRES_INITDB_ARGS=--no-sync", image,
		"postgres", "-c", "autovacuum=off", "-c", "fsync=off", "-c", "max_wal_size=4GB")
	waitFor(t, 5*time.Minute, "the source answers over TCP", func() bool {
		return command("", "docker", "exec", s.container, "pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres").code == 0
	})
	script := fmt.Sprintf(`
CREATE TABLE big AS SELECT g AS id, g %% 1000 AS grp, repeat(md5(g::text), 6) AS pad FROM generate_series(1, %d) g;
CREATE INDEX big_id ON big (id);
CREATE TABLE small (id int PRIMARY KEY, name text);
INSERT INTO small SELECT g, 'name ' || g FROM generate_series(1, 200) g;
CREATE SEQUENCE numbers;
CREATE DATABASE crm;
\c crm
CREATE TABLE contact AS SELECT g AS id, md5(g::text) AS name FROM generate_series(1, 20000) g;
CREATE INDEX ON contact (name);
`, bigRows)
	if r := command(script, "docker", "exec", "-i", s.container, "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", "shop"); r.code != 0 {
		t.Fatalf("filling the source: %s", r.stderr)
	}
	docker(t, "exec", s.container, "sh", "-c", `echo 'host replication all all scram-sha-256' >> "$PGDATA/pg_hba.conf"`)
	docker(t, "exec", s.container, "psql", "-qAtX", "-U", "postgres", "-c", "SELECT pg_reload_conf()")
	sources[key] = s
	return s
}

// bigRows makes the table of the main fixture 200 MiB: 227 bytes a row and its
// line pointer, 35 rows a page.
const bigRows = 910_000

// makeSeed makes a seed of a source, once, and gives its reference.
func makeSeed(t testing.TB, s source, name string) string {
	t.Helper()
	if ref := seedRef(name); ref != "" {
		return ref
	}
	args := []string{"pgbranch", "seed", "create", name, "--from", s.url("shop"), "--network", s.network, "--password-stdin", "--progress", "plain"}
	if !strings.HasPrefix(s.image, "postgres:") {
		args = append(args, "--image", s.image)
	}
	r := command(password+"\n", "docker", args...)
	if r.code != 0 {
		t.Fatalf("seed create: exit %d\n%s", r.code, r.stderr)
	}
	t.Logf("seed create %s:\n%s", name, r.stderr)
	return r.stdout
}

func seedRef(name string) string {
	return strings.TrimSpace(try("seed", "ls", "-q", "--filter", "name="+name).stdout)
}

// mainSeed gives the seed of the main fixture.
func mainSeed(t testing.TB) string {
	t.Helper()
	return makeSeed(t, startSource(t, "postgres:17", bigRows), prefix+"shop")
}

// anySeed gives a seed that is there, of the main fixture or of the demo, and makes a
// small one else: for tests to which the size is nothing.
func anySeed(t testing.TB) string {
	t.Helper()
	ready(t)
	for _, name := range []string{prefix + "shop", "demo-shop"} {
		if ref := seedRef(name); ref != "" {
			return ref
		}
	}
	return makeSeed(t, startSource(t, "postgres:17", 1000), prefix+"little")
}

// branch makes a branch that is removed at the test's end.
func branch(t testing.TB, name, seed string, flags ...string) string {
	t.Helper()
	t.Cleanup(func() { try("rm", "-f", name) })
	return pgbranch(t, append([]string{"create", name, "--from", seed}, flags...)...)
}

// dataRoot is the plugin's data root on the engine's host, which is this machine.
func dataRoot(t testing.TB) string {
	t.Helper()
	source := docker(t, "plugin", "inspect", "pgoverlay", "-f",
		`{{range .Config.Mounts}}{{if eq .Name "data"}}{{.Source}}{{end}}{{end}}`)
	root := filepath.Join(source, "pgoverlay")
	if _, err := os.Stat(filepath.Join(root, "store.json")); err != nil {
		t.Fatalf("the plugin's data root is not on this machine: %v", err)
	}
	return root
}

// onDisk gives the folder of a branch or of a seed generation below the data root.
func onDisk(t testing.TB, kind, name string) string {
	t.Helper()
	metas, err := filepath.Glob(filepath.Join(dataRoot(t), kind, "*", "meta.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, meta := range metas {
		raw, err := os.ReadFile(meta)
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			Name       string
			Generation int
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatalf("%s: %v", meta, err)
		}
		if kind == "seeds" {
			m.Name = fmt.Sprintf("%s@%d", m.Name, m.Generation)
		}
		if m.Name == name {
			return filepath.Dir(meta)
		}
	}
	t.Fatalf("no %s/%s on disk", kind, name)
	return ""
}

// upper gives a branch's upper.
func upper(t testing.TB, name string) string {
	return filepath.Join(onDisk(t, "branches", name), "upper")
}

// relation matches files of tables and indexes, forks and segments included, in
// any layout.
var relation = regexp.MustCompile(`(^|/)(base/\d+|global|pg_tblspc/\d+/[^/]+/\d+)/\d+(_[a-z]+)?(\.\d+)?$`)

// relationFiles lists the relation files below a folder with their sizes.
func relationFiles(t testing.TB, root string) map[string]int64 {
	t.Helper()
	found := map[string]int64{}
	walk(t, root, func(path string, info fs.FileInfo) {
		if info.Mode().IsRegular() && relation.MatchString(path) {
			found[path] = info.Size()
		}
	})
	return found
}

// allocated gives the bytes that a tree occupies on disk.
func allocated(t testing.TB, root string) int64 {
	t.Helper()
	var sum int64
	walk(t, root, func(_ string, info fs.FileInfo) { sum += info.Sys().(*syscall.Stat_t).Blocks * 512 })
	return sum
}

// checksum is over every path, content, mode and owner of a tree.
func checksum(t testing.TB, root string) string {
	t.Helper()
	h := sha256.New()
	walk(t, root, func(path string, info fs.FileInfo) {
		st := info.Sys().(*syscall.Stat_t)
		fmt.Fprintf(h, "%s %o %d %d %d\n", path, info.Mode(), st.Uid, st.Gid, info.ModTime().UnixNano())
		if info.Mode().IsRegular() {
			body, err := os.ReadFile(filepath.Join(root, path))
			if err != nil {
				t.Fatal(err)
			}
			h.Write(body)
		}
	})
	return fmt.Sprintf("%x", h.Sum(nil))
}

func walk(t testing.TB, root string, each func(path string, info fs.FileInfo)) {
	t.Helper()
	err := filepath.Walk(root, func(path string, info fs.FileInfo, err error) error {
		if os.IsNotExist(err) {
			return nil // a running server removes files
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err == nil {
			each(rel, info)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// connect opens a session on a branch's published port with the source's own
// password.
func connect(t testing.TB, branch string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), strings.Replace(pgbranch(t, "url", branch), "postgres@", "postgres:"+password+"@", 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// value runs a query with one answer.
func value[T any](t testing.TB, conn *pgx.Conn, query string) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(context.Background(), query).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// waitAsBefore waits until nothing is left of what began after before was taken.
func waitAsBefore(t testing.TB, before string, each func()) {
	t.Helper()
	var now string
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		each()
		if now = state(t); now == before {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after a minute there is\n%s\nwhere there was\n%s", now, before)
		}
	}
}

func waitFor(t testing.TB, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain until %s", limit, what)
		}
	}
}

// state is all that the product has in the engine and on disk, to be compared
// before and after something that must leave nothing behind.
func state(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	containers := strings.Split(docker(t, "ps", "-a", "--format", "{{.Names}} {{.ID}} {{.State}}"), "\n")
	slices.Sort(containers)
	for _, c := range containers {
		if strings.HasPrefix(c, prefix) || strings.HasPrefix(c, "pgbranch-") {
			fmt.Fprintln(&b, c)
		}
	}
	for line := range strings.Lines(docker(t, "volume", "ls", "--format", "{{.Driver}} {{.Name}}")) {
		if strings.HasPrefix(line, "pgoverlay:latest ") || strings.HasPrefix(line, "local pgbranch-") || strings.HasPrefix(line, "local "+prefix) {
			fmt.Fprintln(&b, strings.TrimSpace(line))
		}
	}
	root := dataRoot(t)
	for _, kind := range []string{"seeds", "branches", "staging"} {
		entries, err := os.ReadDir(filepath.Join(root, kind))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			fmt.Fprintln(&b, kind, e.Name())
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, root) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// requireRefusal: what was refused said all of want, and left the state as it was before.
func requireRefusal(t testing.TB, r result, before string, want []string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(r.stderr, w) {
			t.Errorf("it does not say %q", w)
		}
	}
	if after := state(t); after != before {
		t.Errorf("left behind\n%s\nwas\n%s", after, before)
	}
}
