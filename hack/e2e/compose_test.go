//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// composeRows makes the seeds of these tests small: their size is not the point.
const composeRows = 5000

func composeSeed(t testing.TB, major string) string {
	t.Helper()
	makeSeed(t, startSource(t, "postgres:"+major, composeRows), prefix+"compose"+major)
	return prefix + "compose" + major
}

// checkout is a folder with a Compose project.
type checkout struct {
	dir string
	env []string
}

// run runs a program in the checkout, without anything to read.
func (c checkout) run(name string, args ...string) result {
	cmd := exec.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, &out, &errs
	cmd.Env = append(os.Environ(), c.env...)
	err := cmd.Run()
	r := result{strings.TrimSpace(out.String()), strings.TrimSpace(errs.String()), cmd.ProcessState.ExitCode()}
	if err != nil && r.code < 0 {
		r.stderr += err.Error()
	}
	return r
}

// compose runs `docker compose`, which must succeed.
func (c checkout) compose(t testing.TB, args ...string) string {
	t.Helper()
	r := c.run("docker", append([]string{"compose"}, args...)...)
	if r.code != 0 {
		t.Fatalf("docker compose %q: exit %d\n%s\n%s", args, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// project makes a folder of that name, which is the project's, with one file.
func project(t testing.TB, name, file string, env ...string) checkout {
	t.Helper()
	c := checkout{filepath.Join(t.TempDir(), name), env}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.write(t, "compose.yaml", file)
	t.Cleanup(func() { c.run("docker", "compose", "down", "-v", "--remove-orphans") })
	return c
}

func (c checkout) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// psql runs a statement in the project's service db.
func (c checkout) psql(t testing.TB, statement string) string {
	t.Helper()
	return c.compose(t, "exec", "-T", "db", "psql", "-qAtX", "-U", "postgres", "-d", "shop", "-c", statement)
}

// await waits until the project's database answers.
func (c checkout) await(t testing.TB) {
	t.Helper()
	waitFor(t, time.Minute, "the database answers", func() bool {
		return c.run("docker", "compose", "exec", "-T", "db", "psql", "-qAtX", "-U", "postgres", "-d", "shop", "-c", "SELECT 1").code == 0
	})
}

// webImage makes the sample's web service.
func webImage(t testing.TB) string {
	t.Helper()
	name, dir := prefix+"web", t.TempDir()
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "web"), "./compose/testdata/provider/web")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	r := command("", "sh", "-c", fmt.Sprintf("tar -C %s -c web | docker import -c 'ENTRYPOINT [\"/web\"]' -c 'LABEL io.github.pgbranch.stand-in=true' - %s", dir, name))
	if r.code != 0 {
		t.Fatalf("docker import: %s", r.stderr)
	}
	t.Cleanup(func() { command("", "docker", "rmi", name) })
	return name
}

// visits asks the project's web service, by the port that the engine has given it.
func (c checkout) visits(t testing.TB) string {
	t.Helper()
	address := c.compose(t, "port", "web", "8080")
	address = strings.Replace(address, "0.0.0.0", "127.0.0.1", 1)
	var answer *http.Response
	waitFor(t, 30*time.Second, "the web service answers at "+address, func() bool {
		var err error
		answer, err = http.Get("http://" + address)
		return err == nil
	})
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("the web service answers %s: %s (%v)", answer.Status, body, err)
	}
	return strings.TrimSpace(string(body))
}

// TestComposeWorktrees runs the sample project in two git worktrees at once.
func TestComposeWorktrees(t *testing.T) {
	seed := composeSeed(t, "17")
	web := webImage(t)
	sealed := filepath.Join(onDisk(t, "seeds", seedRef(seed)), "root")
	before := checksum(t, sealed)
	text, err := os.ReadFile("../../compose/testdata/provider/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := strings.Replace(string(text), "image: shop-web", "image: "+web, 1)
	one := project(t, prefix+"trunk", file, "SEED="+seed)
	two := checkout{filepath.Join(filepath.Dir(one.dir), prefix+"feature"), one.env}
	for _, args := range [][]string{
		{"init", "-q"}, {"add", "."},
		{"-c", "user.name=e2e", "-c", "user.email=e2e@localhost", "commit", "-qm", "the sample"},
		{"worktree", "add", "-q", "-b", "feature", two.dir},
	} {
		if r := one.run("git", args...); r.code != 0 {
			t.Fatalf("git %q: %s", args, r.stderr)
		}
	}
	t.Cleanup(func() { two.run("docker", "compose", "down", "-v") })
	branches := []string{prefix + "trunk_db_main", prefix + "feature_db_main"}
	t.Cleanup(func() { try(append([]string{"rm", "-f"}, branches...)...) })

	ups := make(chan result, 2)
	for _, c := range []checkout{one, two} {
		go func() { ups <- c.run("docker", "compose", "up", "-d") }()
	}
	for range 2 {
		if r := <-ups; r.code != 0 {
			t.Fatalf("up: %s", r.stderr)
		}
	}
	for i, want := range []string{"1", "2", "3"} {
		if got := one.visits(t); got != want {
			t.Errorf("visit %d of the one is number %s", i+1, got)
		}
	}
	if got := two.visits(t); got != "1" {
		t.Errorf("the first visit of the other is number %s", got)
	}
	sql(t, branches[1], "shop", "ALTER TABLE small ADD COLUMN migrated int NOT NULL DEFAULT 1")
	columns := "SELECT count(*) FROM information_schema.columns WHERE table_name = 'small'"
	if a, b := sql(t, branches[0], "shop", columns), sql(t, branches[1], "shop", columns); a != "2" || b != "3" {
		t.Errorf("after the migration of one there are %s columns in the other, and %s in it", a, b)
	}

	id := func(c checkout) string { return c.compose(t, "ps", "-q", "web") }
	was := id(two)
	two.compose(t, "up", "-d")
	if now := id(two); now != was {
		t.Error("up again made another web service: what it gets has changed")
	}
	two.compose(t, "down")
	two.compose(t, "up", "-d")
	if got := two.visits(t); got != "2" {
		t.Errorf("after down and up the next visit is number %s", got)
	}
	if got := sql(t, branches[1], "shop", columns); got != "3" {
		t.Errorf("after down and up there are %s columns", got)
	}
	two.compose(t, "down", "-v")
	if got := one.visits(t); got != "4" {
		t.Errorf("after down -v of the other, the next visit is number %s", got)
	}
	if after := checksum(t, sealed); after != before {
		t.Error("the seed has changed")
	}
}

// TestComposeProviderOptions: what makes a difference for down, and what is refused.
func TestComposeProviderOptions(t *testing.T) {
	seed := composeSeed(t, "17")
	file := `services:
  my-db: {provider: {type: pgbranch, options: {seed: "${SEED}", ephemeral: "${EPHEMERAL:-true}"}}}
  app: {image: "postgres:17", entrypoint: [sleep, infinity], depends_on: [my-db]}
`
	c := project(t, prefix+"gone", file, "SEED="+seed)
	name := prefix + "gone_my-db"
	t.Cleanup(func() { try("rm", "-f", name) })
	environment := func(with ...string) string {
		c := checkout{c.dir, append(slices.Clone(c.env), with...)}
		c.compose(t, "up", "-d")
		return c.compose(t, "exec", "-T", "app", "env")
	}
	if env := environment(); !strings.Contains(env, "MY-DB_URL=postgres://postgres:") || strings.Contains(env, "MY_DB_URL") {
		t.Errorf("environment of Compose 2.40:\n%s", env)
	}
	if r := c.run("docker", "compose", "exec", "-T", "app", "bash", "-c", `psql -qAtX "$(env | sed -n s/^MY-DB_URL=//p)" -c 'SELECT count(*) FROM small'`); r.stdout != "200" {
		t.Errorf("the URL leads to %q: %s", r.stdout, r.stderr)
	}
	// Compose 2.40 cannot do what 5.2 can, and gives up when it is asked to: so the
	// version matters, and the provider has to find it out.
	r := checkout{c.dir, append(slices.Clone(c.env), "PGBRANCH_COMPOSE_VERSION=5.2.0")}.run("docker", "compose", "up", "-d")
	if r.code == 0 || !strings.Contains(r.stderr, "rawsetenv") {
		t.Errorf("Compose 2.40 knows rawsetenv by now: exit %d, %s", r.code, r.stderr)
	}
	r = checkout{c.dir, append(slices.Clone(c.env), "SEED=e2e-nosuch")}.run("docker", "compose", "up", "-d")
	if r.code == 0 || !strings.Contains(r.stderr, "docker pgbranch rm -f "+name) {
		t.Errorf("another seed: exit %d, %s", r.code, r.stderr)
	}
	if stop := try("stop", name); stop.code != 0 {
		t.Error(stop.stderr)
	}
	c.compose(t, "run", "--rm", "-T", "--entrypoint", "true", "app") // brings it up again
	c.compose(t, "down")
	if left := try("inspect", name); left.code != 3 {
		t.Errorf("an ephemeral branch is there after down: %s", left.stdout)
	}
	r = checkout{c.dir, append(slices.Clone(c.env), "SEED=e2e-nosuch")}.run("docker", "compose", "up", "-d")
	if r.code == 0 || !strings.Contains(r.stderr, "seeds here: ") {
		t.Errorf("no such seed: exit %d, %s", r.code, r.stderr)
	}
}

// TestProviderProtocol runs the provider as Compose does, by its own name and with a
// command that only 5.x sends: each byte of its output is JSON.
func TestProviderProtocol(t *testing.T) {
	seed := composeSeed(t, "17")
	name := prefix + "proto_my-db"
	t.Cleanup(func() { try("rm", "-f", name) })
	binary := filepath.Join(os.Getenv("DOCKER_CONFIG"), "cli-plugins", "docker-pgbranch")
	provide := func(env string, args ...string) (r result, messages []string) {
		t.Helper()
		r = checkout{t.TempDir(), []string{env}}.run(binary, append([]string{"compose", "--project-name=" + prefix + "proto"}, args...)...)
		for dec := json.NewDecoder(strings.NewReader(r.stdout)); ; {
			var m struct{ Type, Message string }
			if err := dec.Decode(&m); err == io.EOF {
				return r, messages
			} else if err != nil {
				t.Fatalf("%q is no JSON: %v", r.stdout, err)
			}
			messages = append(messages, m.Type+" "+m.Message)
		}
	}
	state := func() string {
		return strings.TrimSpace(try("ls", "--format", "{{.State}}", "--filter", "name="+name).stdout)
	}
	r, messages := provide("PGBRANCH_COMPOSE_VERSION=5.2.0", "up", "--seed="+seed, "my-db")
	if r.code != 0 || !slices.Contains(messages, "rawsetenv MY_DB_HOST=my-db") || state() != "running" {
		t.Fatalf("up: exit %d, %q", r.code, messages)
	}
	if _, again := provide("PGBRANCH_COMPOSE_VERSION=5.2.0", "up", "--seed="+seed, "my-db"); !slices.Equal(again, messages) {
		t.Errorf("up again says %q, and the first time %q", again, messages)
	}
	if r, _ := provide("A=b", "stop", "my-db"); r.code != 0 || state() != "stopped" {
		t.Errorf("stop: exit %d, state %s", r.code, state())
	}
	if r, _ := provide("A=b", "down", "--ephemeral=false", "my-db"); r.code != 0 || state() != "volume" {
		t.Errorf("down: exit %d, state %s", r.code, state())
	}
	if r, messages := provide("A=b", "down", "--ephemeral=perhaps", "my-db"); r.code != 2 || !strings.HasPrefix(messages[0], "error option ephemeral") {
		t.Errorf("exit %d, %q", r.code, messages)
	}
	if r, _ := provide("A=b", "down", "--ephemeral=true", "my-db"); r.code != 0 || state() != "" {
		t.Errorf("down: exit %d, state %s", r.code, state())
	}
}
