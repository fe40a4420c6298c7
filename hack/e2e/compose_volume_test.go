//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// volumeProject is a project with nothing but the volume.
func volumeProject(image, target, options string) string {
	return fmt.Sprintf(`services:
  db: {image: "%s", environment: {POSTGRES_PASSWORD: x, A: "${A:-}"}, volumes: ["data:%s"]}
volumes:
  data: {name: "${COMPOSE_PROJECT_NAME}_data_${BRANCH:-main}", driver: pgoverlay, driver_opts: {%s}}
`, image, target, options)
}

// TestComposeVolume drives a branch by plain Compose, for both layouts of the image.
func TestComposeVolume(t *testing.T) {
	for major, target := range map[string]string{"17": "/var/lib/postgresql/data", "18": "/var/lib/postgresql"} {
		t.Run(major, func(t *testing.T) {
			seed := composeSeed(t, major)
			name := prefix + "vol" + major
			c := project(t, name, volumeProject("postgres:"+major, target, "seed: "+seed))
			t.Cleanup(func() { command("", "docker", "volume", "rm", "-f", name+"_data_x1") })
			c.compose(t, "up", "-d")
			c.await(t)
			if cow := try("ls", "--format", "{{.Cow}}", "--filter", "name="+name+"_data_main").stdout; cow != "lazyrw" {
				t.Errorf("with nothing but the volume the branch is %q", cow)
			}
			c.psql(t, "CREATE TABLE mine AS SELECT 1 AS v")
			c.compose(t, "restart", "-t", "20", "db")
			c.await(t)
			if got := c.psql(t, "SELECT v FROM mine"); got != "1" {
				t.Errorf("after restart: %q", got)
			}
			container := c.compose(t, "ps", "-q", "db")
			running := startedAt(t, container)
			c.compose(t, "up", "-d")
			if now := c.compose(t, "ps", "-q", "db"); now != container || startedAt(t, container) != running {
				t.Errorf("up again over what runs: container %s, then %s", container, now)
			}
			if got := c.psql(t, "SELECT v FROM mine"); got != "1" {
				t.Errorf("after up again: %q", got)
			}
			if got := c.compose(t, "run", "--rm", "-T", "db", "cat", filepath.Join(target, map[string]string{"17": "", "18": "18/docker"}[major], "PG_VERSION")); !strings.HasSuffix(got, major) {
				t.Errorf("run: %q", got)
			}
			c.compose(t, "down")
			c.compose(t, "up", "-d")
			c.await(t)
			if got := c.psql(t, "SELECT v FROM mine"); got != "1" {
				t.Errorf("after down and up: %q", got)
			}
			// Another branch, by another name; the old one stays.
			other := checkout{c.dir, []string{"BRANCH=x1"}}
			other.compose(t, "up", "-d")
			other.await(t)
			if got := other.psql(t, "SELECT count(*) FROM pg_tables WHERE tablename IN ('mine', 'small')"); got != "1" {
				t.Errorf("the other branch has %s of the two tables", got)
			}
			other.compose(t, "down", "-v")
			c.compose(t, "up", "-d")
			c.await(t)
			if got := c.psql(t, "SELECT v FROM mine"); got != "1" {
				t.Errorf("after down -v of the other branch: %q", got)
			}
			c.compose(t, "down", "-v")
			if left := command("", "docker", "volume", "ls", "-q", "--filter", "name="+name).stdout; left != "" {
				t.Errorf("down -v left %s", left)
			}
			if seedRef(seed) == "" {
				t.Error("down -v took the seed")
			}
		})
	}
}

// TestComposeRefusals: what Compose shows of a file that is wrong, and that no image makes
// a database of its own.
func TestComposeRefusals(t *testing.T) {
	seed17, seed18 := composeSeed(t, "17"), composeSeed(t, "18")
	for name, tc := range map[string]struct {
		file, words, note string
	}{
		"17 too high":        {volumeProject("postgres:17", "/var/lib/postgresql", "seed: "+seed17), "not a directory", "belongs at /var/lib/postgresql/data"},
		"18 with 17's image": {volumeProject("postgres:17", "/var/lib/postgresql", "seed: "+seed18), "not a directory", ""},
		"18 too low":         {volumeProject("postgres:18", "/var/lib/postgresql/data", "seed: "+seed18), "/var/lib/postgresql", "belongs at /var/lib/postgresql\n"},
		"pgdata below":       {strings.Replace(volumeProject("postgres:17", "/var/lib/postgresql/data", "seed: "+seed17), "A:", "PGDATA: /var/lib/postgresql/data/pgdata, A:", 1), "File exists", "belongs at"},
		"no such seed":       {volumeProject("postgres:17", "/var/lib/postgresql/data", "seed: e2e-nosuch"), "seeds here: ", ""},
		"no option":          {volumeProject("postgres:17", "/var/lib/postgresql/data", ""), "seed=NAME", ""},
		"a boolean":          {volumeProject("postgres:17", "/var/lib/postgresql/data", "seed: "+seed17+", cow: true"), "must be a", ""},
		"an unknown option":  {volumeProject("postgres:17", "/var/lib/postgresql/data", "sead: "+seed17), "unknown option", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := project(t, prefix+"refused", tc.file)
			r := c.run("docker", "compose", "up", "-d")
			said := r.stdout + r.stderr
			if r.code == 0 {
				waitFor(t, time.Minute, "the container stops", func() bool { return c.compose(t, "ps", "-q", "--status", "running") == "" })
				said += c.compose(t, "logs")
			}
			if !strings.Contains(said, tc.words) {
				t.Errorf("exit %d, without %q:\n%s", r.code, tc.words, said)
			}
			if strings.Contains(said, "initialized; starting") {
				t.Errorf("the image has made a database:\n%s", said)
			}
			if notes := try("ls").stderr; !strings.Contains(notes, tc.note) {
				t.Errorf("ls does not say %q: %s", tc.note, notes)
			}
		})
	}
}

// TestComposeOptionsThatChanged: Compose keeps the old volume and exits with 0, and we say so.
func TestComposeOptionsThatChanged(t *testing.T) {
	seed, other := composeSeed(t, "17"), composeSeed(t, "18")
	c := project(t, prefix+"changed", volumeProject("postgres:17", "/var/lib/postgresql/data", "seed: "+seed))
	name := prefix + "changed_data_main"
	c.compose(t, "up", "-d")
	c.await(t)
	c.write(t, "compose.yaml", volumeProject("postgres:17", "/var/lib/postgresql/data", "seed: "+other))
	if r := c.run("docker", "compose", "up", "-d"); r.code != 0 {
		t.Fatalf("Compose refuses by itself now: %s", r.stderr)
	}
	mend := "docker volume rm " + name
	if notes := try("ls").stderr; !strings.Contains(notes, mend) || !strings.Contains(notes, other) {
		t.Errorf("ls says only %q", notes)
	}
	r := c.run("docker", "pgbranch", "compose", "up", "-d")
	if r.code != 4 || !strings.Contains(r.stderr, mend) {
		t.Errorf("our up: exit %d, %s", r.code, r.stderr)
	}
}
