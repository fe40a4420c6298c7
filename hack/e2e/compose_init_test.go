//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestComposeInit takes a project as it is found to branches, and back.
func TestComposeInit(t *testing.T) {
	seed := composeSeed(t, "17")
	text, err := os.ReadFile("../../compose/testdata/volume/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := strings.Replace(string(text), "image: shop-web", "image: postgres:17\n    entrypoint: [sleep, infinity]", 1)
	c := project(t, prefix+"init", file, "POSTGRES_PASSWORD="+password)
	t.Cleanup(func() {
		for _, b := range []string{"main", "x1"} {
			command("", "docker", "volume", "rm", "-f", prefix+"init_db-data_"+b)
		}
		c.run("docker", "compose", "-f", "compose.yaml", "-f", "compose.pgbranch.yaml", "down", "-v")
	})
	ours := func(code int, args ...string) result {
		t.Helper()
		r := c.run("docker", append([]string{"pgbranch", "compose"}, args...)...)
		if r.code != code {
			t.Fatalf("docker pgbranch compose %q: exit %d\n%s\n%s", args, r.code, r.stdout, r.stderr)
		}
		return r
	}
	ours(2, "up", "-d")                        // there is no branch in it yet
	ours(3, "init", "--seed", "e2e-nosuch")    // names the seeds
	ours(1, "init", "--check", "--seed", seed) // out of date
	ours(0, "init", "--seed", seed)
	ours(0, "init", "--check")
	if r := ours(0, "init"); !strings.Contains(r.stderr, "nothing to do") {
		t.Errorf("init again: %s", r.stderr)
	}
	c.compose(t, "-f", "compose.yaml", "-f", "compose.pgbranch.yaml", "config", "-q")
	ours(0, "up", "-d")
	c.psql(t, "CREATE TABLE mine AS SELECT 1 AS v")
	if got := c.compose(t, "exec", "-T", "web", "bash", "-c", `psql -qAtX "$DB_URL" -c 'SELECT count(*) FROM small'`); got != "200" {
		t.Errorf("the web service sees %q", got)
	}
	healthOf(t, c)
	secondReplica(t, c)
	c.env = append(c.env, "BRANCH=x1")
	ours(0, "up", "-d")
	if got := c.psql(t, "SELECT count(*) FROM pg_tables WHERE tablename = 'mine'"); got != "0" {
		t.Error("another BRANCH is the same database")
	}
	ours(0, "down", "-v")
	if got := try("ls", "-q", "--filter", "name="+prefix+"init").stdout; got != prefix+"init_db-data_main" {
		t.Errorf("down -v of one branch leaves %q", got)
	}
	c.env = c.env[:1]
	c.write(t, "compose.yaml", strings.Replace(file, "POSTGRES_PASSWORD: ${", "LD_PRELOAD: /lib/x86_64-linux-gnu/libm.so.6\n      POSTGRES_PASSWORD: ${", 1))
	ours(1, "init", "--check") // the shim must be joined to what is there now
	ours(0, "init")
	ours(0, "init", "--in-place")
	if body, _ := os.ReadFile(filepath.Join(c.dir, "compose.yaml.bak")); !strings.Contains(string(body), "db-data:\n") {
		t.Errorf("the backup is %q", body)
	}
	c.compose(t, "up", "-d", "db") // plain Compose, with no override
	c.await(t)
	if got := c.psql(t, "SELECT v FROM mine"); got != "1" {
		t.Errorf("in place it is another branch: %q", got)
	}
	c.compose(t, "down", "-v")
}

// secondReplica shows that a service's second container is kept off its branch.
func secondReplica(t *testing.T, c checkout) {
	t.Helper()
	files := []string{"compose", "-f", "compose.yaml", "-f", "compose.pgbranch.yaml"}
	if r := c.run("docker", append(slices.Clone(files), "up", "-d", "--wait", "--scale", "db=2")...); r.code == 0 {
		t.Error("two servers run on one branch")
	}
	r := c.run("docker", append(slices.Clone(files), "logs", "db")...)
	if !strings.Contains(r.stdout, "lazyrw: data directory") || !strings.Contains(r.stdout, "in use by another Postgres server") {
		t.Errorf("the second one does not say why it ended: %s", r.stdout)
	}
	c.psql(t, "INSERT INTO mine SELECT 2")
	c.psql(t, "DELETE FROM mine WHERE v = 2")
	c.compose(t, append(files[1:], "up", "-d", "--scale", "db=1")...)
}

// healthOf shows that the check is green for a server that takes writes and red for one
// that recovers, also where that answers queries.
func healthOf(t *testing.T, c checkout) {
	t.Helper()
	id := c.compose(t, "ps", "-q", "db")
	test := strings.Fields(strings.Trim(docker(t, "inspect", "-f", "{{json .Config.Healthcheck.Test}}", id), "[]"))
	var words []string
	if err := json.Unmarshal([]byte(docker(t, "inspect", "-f", "{{json .Config.Healthcheck.Test}}", id)), &words); err != nil {
		t.Fatalf("%v: %q", err, test)
	}
	probe := func() result { return command("", "docker", append([]string{"exec", id}, words[1:]...)...) }
	if r := probe(); r.code != 0 {
		t.Errorf("the check of a healthy branch: exit %d, %s", r.code, r.stdout)
	}
	docker(t, "exec", id, "touch", "/var/lib/postgresql/data/standby.signal")
	c.compose(t, "restart", "-t", "20", "db")
	c.await(t)
	if r := probe(); r.code == 0 || !strings.Contains(r.stdout, "recovery") {
		t.Errorf("the check of a server in recovery: exit %d, %s", r.code, r.stdout)
	}
	if got := docker(t, "inspect", "-f", "{{.State.Health.Status}}", id); got == "healthy" {
		t.Error("a server in recovery is healthy")
	}
	docker(t, "exec", id, "rm", "/var/lib/postgresql/data/standby.signal")
	c.compose(t, "restart", "-t", "20", "db")
	waitFor(t, time.Minute, "the branch is healthy", func() bool {
		return docker(t, "inspect", "-f", "{{.State.Health.Status}}", id) == "healthy"
	})
}

// budgetCompose is the most that a project with a branch may take from `up` to healthy,
// over the same project on a plain volume that holds the same cluster. Beyond
// limitCompose, which leaves room for a machine that is busy otherwise, the test fails.
const (
	budgetCompose = 1.25
	limitCompose  = 1.5
)

// TestComposeUpRatio prints the ratio of medians of alternating runs.
func TestComposeUpRatio(t *testing.T) {
	seed := composeSeed(t, "17")
	ours := project(t, prefix+"ratio", "services: {db: {image: 'postgres:17'}}")
	if r := ours.run("docker", "pgbranch", "compose", "init", "--seed", seed); r.code != 0 {
		t.Fatal(r.stderr)
	}
	text, err := os.ReadFile(filepath.Join(ours.dir, "compose.pgbranch.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ours.write(t, "compose.override.yaml", string(text))
	// The same cluster, copied whole, with the agent that the health check runs.
	plain, full := prefix+"ratio-plain", prefix+"ratio-full"
	docker(t, "volume", "create", plain)
	t.Cleanup(func() { command("", "docker", "volume", "rm", "-f", plain) })
	docker(t, "volume", "create", "-d", "pgoverlay", "-o", "seed="+seed, full)
	docker(t, "run", "--rm", "-u", "0", "--entrypoint", "cp", "-v", full+":/from", "-v", plain+":/to", "postgres:17", "-a", "/from/.", "/to/")
	docker(t, "volume", "rm", full)
	theirs := project(t, prefix+"ratio-vol", "services: {db: {image: 'postgres:17'}}")
	at := strings.Index(string(text), "\nvolumes:")
	theirs.write(t, "compose.override.yaml", string(text[:at])+fmt.Sprintf("\nvolumes: {db-branch: {external: true, name: %s}}\n", plain))

	const rounds = 6
	sides := []checkout{ours, theirs}
	took := make([][]time.Duration, len(sides))
	for round := range rounds {
		for i := range sides {
			side := (i + round) % len(sides)
			took[side] = append(took[side], upToHealthy(t, sides[side]))
		}
	}
	ratio := float64(median(took[0])) / float64(median(took[1]))
	t.Logf("RATIO compose up to healthy, branch over plain volume: %.2f (medians %s and %s of %d, budget %.2f)",
		ratio, ms(median(took[0])), ms(median(took[1])), rounds, budgetCompose)
	for i := range rounds {
		t.Logf("round %d: branch %s, plain volume %s", i+1, ms(took[0][i]), ms(took[1][i]))
	}
	if ratio > limitCompose {
		t.Errorf("ratio %.2f is over the budget of %.2f", ratio, budgetCompose)
	}
}

// upToHealthy times `up` to the end of the first probe that was green, which the engine's
// clock tells: it is this machine's.
func upToHealthy(t *testing.T, c checkout) time.Duration {
	t.Helper()
	defer c.compose(t, "down", "-v", "-t", "20")
	start := time.Now()
	c.compose(t, "up", "-d")
	id := c.compose(t, "ps", "-q", "db")
	var health struct {
		Status string
		Log    []struct {
			End      time.Time
			ExitCode int
		}
	}
	waitFor(t, time.Minute, "the database is healthy", func() bool {
		if err := json.Unmarshal([]byte(docker(t, "inspect", "-f", "{{json .State.Health}}", id)), &health); err != nil {
			t.Fatal(err)
		}
		return health.Status == "healthy"
	})
	at := slices.IndexFunc(health.Log, func(l struct {
		End      time.Time
		ExitCode int
	}) bool {
		return l.ExitCode == 0
	})
	return health.Log[at].End.Sub(start)
}
