//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// variant makes an image of postgres:17 that a script, run in it as root, has changed.
func variant(t testing.TB, name, script string, files ...string) string {
	t.Helper()
	ref := makeVariant(t, name, script, files...)
	t.Cleanup(func() { command("", "docker", "rmi", "-f", ref) })
	return ref
}

// makeVariant is variant for an image that outlives the test. files are pairs: what to
// copy, and where to.
func makeVariant(t testing.TB, name, script string, files ...string) string {
	t.Helper()
	return makeVariantOf(t, "postgres:17", name, script, files...)
}

func makeVariantOf(t testing.TB, base, name, script string, files ...string) string {
	t.Helper()
	ready(t)
	ref := prefix + "variant:" + name
	container := prefix + "variant-" + name
	docker(t, "create", "--name", container, "--user", "0:0", "--entrypoint", "sleep", base, "600")
	defer command("", "docker", "rm", "-f", "-v", container)
	for i := 0; i+1 < len(files); i += 2 {
		docker(t, "cp", "-L", files[i], container+":"+files[i+1])
	}
	docker(t, "start", container)
	docker(t, "exec", container, "bash", "-ec", script)
	docker(t, "commit", "--change", `ENTRYPOINT ["docker-entrypoint.sh"]`, "--change", `CMD ["postgres"]`, "--change", "USER root", container, ref)
	return ref
}

// muslServer builds a program for musl that says it is Postgres 17.
func muslServer(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	source, program := filepath.Join(dir, "postgres.c"), filepath.Join(dir, "postgres")
	if err := os.WriteFile(source, []byte(`#include <stdio.h>
int main(void) { puts("postgres (PostgreSQL) 17.99"); return 0; }
`), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := command("", "musl-gcc", "-o", program, source); r.code != 0 {
		t.Fatalf("musl-gcc: %s", r.stderr)
	}
	return program
}

// A branch whose image lacks what the seed has, or sorts text otherwise, is refused with
// the name of what it is, before Postgres meets it; --force goes on where it can work.
func TestImagesThatDoNotSuit(t *testing.T) {
	s := oddSource(t)
	name := prefix + "needy"
	t.Cleanup(func() { try("seed", "rm", name) })
	// By now the source waits for its synchronous standby, which there is none of.
	if r := command("SET synchronous_commit = local; CREATE EXTENSION pg_trgm; CREATE UNLOGGED TABLE fleeting (a int);", "docker", "exec", "-i", s.container, "psql", "-qX", "-U", "postgres", "-d", "shop"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	r := command(oddPassword+"\n", "docker", "pgbranch", "seed", "create", name, "--from", "postgres://app@"+s.container+"/shop",
		"--network", s.network, "--password-stdin", "--progress", "quiet")
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	manifest := pgbranch(t, "seed", "inspect", name)
	for _, want := range []string{`"systemIdentifier": "`, `"imageId": "sha256:`, `"libc": "glibc 2.`, `"icu": "`, `"collationVersion": "2.`, `"name": "pg_trgm"`,
		`"unloggedTables": 1`, `"sourceLsn": "`, `"sourceTime": "`, `"uid": 999`} {
		if !strings.Contains(manifest, want) {
			t.Errorf("the manifest lacks %s", want)
		}
	}

	lacking := variant(t, "lacking", `rm /usr/share/postgresql/17/extension/pg_trgm.control; localedef --delete-from-archive en_US.utf8; ! locale -a | grep en_US`)
	musl := muslServer(t)
	libc := "/lib/ld-musl-" + command("", "uname", "-m").stdout + ".so.1"
	foreign := variant(t, "musl", `rm -f /usr/local/bin/postgres; mv /tmp/postgres /usr/local/bin/; mv /tmp/libc.so /lib/ld-musl-$(uname -m).so.1; chmod 755 /lib/ld-musl-*; postgres --version`,
		musl, "/tmp/postgres", libc, "/tmp/libc.so")
	for _, c := range []struct {
		what, image string
		force       bool
		want        []string
	}{
		{"other major", "postgres:15", false, []string{"Postgres 15", "Postgres 17"}},
		{"other major, forced", "postgres:18", true, []string{"Postgres 18", "Postgres 17"}},
		{"extension and locale", lacking, false, []string{"extension pg_trgm", "of shop", "locale en_US.utf8", "--force"}},
		{"C library", foreign, false, []string{"musl", "glibc 2.", "lookups would miss rows", "--force"}},
		{"no Postgres", "pgbranch-agent", false, []string{"user postgres"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.image == "pgbranch-agent" {
				c.image = strings.Fields(docker(t, "images", "--format", "{{.Repository}}:{{.Tag}}", "pgbranch-agent"))[0]
			}
			before := state(t)
			args := []string{"create", prefix + "unfit", "--from", name, "--image", c.image}
			if c.force {
				args = append(args, "--force")
			}
			began := time.Now()
			r := try(args...)
			t.Logf("exit %d after %s: %s", r.code, time.Since(began).Round(time.Millisecond), r.stderr)
			if r.code == 0 || c.what != "no Postgres" && r.code != 2 {
				t.Errorf("exit %d", r.code)
			}
			requireRefusal(t, r, before, c.want)
		})
	}
	t.Run("seed create", func(t *testing.T) {
		before := state(t)
		r := command(oddPassword+"\n", "docker", "pgbranch", "seed", "create", prefix+"bad", "--from", "postgres://app@"+s.container+"/shop",
			"--network", s.network, "--password-stdin", "--image", lacking)
		t.Logf("exit %d: %s", r.code, r.stderr)
		if r.code != 2 || !strings.Contains(r.stderr, "locale en_US.utf8") || strings.Contains(r.stderr, "freeze") {
			t.Error("an image without the source's locale is not refused before the copy")
		}
		if after := state(t); after != before {
			t.Errorf("left behind\n%s\nwas\n%s", after, before)
		}
	})
	lenient := variant(t, "lenient", `rm /usr/share/postgresql/17/extension/pg_trgm.control`)
	t.Run("seed create without an extension", func(t *testing.T) {
		before := state(t)
		args := []string{"pgbranch", "seed", "create", prefix + "bad", "--from", "postgres://app@" + s.container + "/postgres",
			"--network", s.network, "--password-stdin", "--image", lenient, "--progress", "plain"}
		r := command(oddPassword+"\n", "docker", args...)
		t.Logf("exit %d: %s", r.code, r.stderr)
		if r.code != 2 || strings.Contains(r.stderr, "freeze") {
			t.Error("an image without an extension of another database is not refused before the copy")
		}
		requireRefusal(t, r, before, []string{"extension pg_trgm", "of shop", "--image", "--force"})
		t.Cleanup(func() { try("seed", "rm", prefix+"bad") })
		r = command(oddPassword+"\n", "docker", append(args, "--force")...)
		if r.code != 0 || !strings.Contains(r.stderr, "warning: extension pg_trgm") {
			t.Errorf("with --force: exit %d: %s", r.code, r.stderr)
		}
	})
	t.Run("forced", func(t *testing.T) {
		branch := prefix + "forced"
		t.Cleanup(func() { try("rm", "-f", branch) })
		r := try("create", branch, "--from", name, "--image", lenient, "--force")
		if r.code != 0 || !strings.Contains(r.stderr, "warning: extension pg_trgm") {
			t.Errorf("exit %d: %s", r.code, r.stderr)
		}
		if got := sql(t, branch, "shop", "SELECT count(*) FROM item"); got != "60000" {
			t.Errorf("there are %s rows", got)
		}
	})
}

// An image whose postgres has another number runs a branch without a copy of any data:
// `create` runs it as the seed's owner, and a container made by hand changes the owner of
// every file, which costs an inode each.
func TestAnotherUserNumber(t *testing.T) {
	seed := oddSeed(t)
	other := variant(t, "uid70", `groupmod -g 70 postgres; usermod -u 70 -g 70 postgres; chown -R postgres:postgres /var/lib/postgresql /var/run/postgresql`)
	name := prefix + "uid"
	branch(t, name, seed, "--image", other)
	if got := sql(t, name, "shop", "SELECT count(*) FROM item"); got != "60000" {
		t.Errorf("there are %s rows", got)
	}
	if r := command("", "docker", "exec", "pgbranch-"+name, "id", "-u"); r.stdout != "999" {
		t.Errorf("create runs it as %s", r.stdout)
	}
	t.Logf("by create it owns %d KiB", allocated(t, upper(t, name))>>10)

	hand := prefix + "uidhand"
	docker(t, "volume", "create", "-d", "pgoverlay", "-o", "seed="+seed, hand)
	t.Cleanup(func() { command("", "docker", "rm", "-f", hand); command("", "docker", "volume", "rm", hand) })
	docker(t, "run", "-d", "--name", hand, "-v", hand+":/var/lib/postgresql/data",
		"-e", "LD_PRELOAD=/var/lib/postgresql/data/.pgoverlay/lazyrw.so", other)
	waitFor(t, 2*time.Minute, "the branch answers", func() bool {
		return command("", "docker", "exec", hand, "psql", "-qAtXU", "postgres", "-d", "shop", "-c", "SELECT count(*) FROM item").stdout == "60000"
	})
	if r := command("", "docker", "exec", hand, "stat", "-c", "%u", "/var/lib/postgresql/data/PG_VERSION"); r.stdout != "70" {
		t.Errorf("the files are owned by %s", r.stdout)
	}
	owned, whole := allocated(t, upper(t, hand)), allocated(t, onDisk(t, "seeds", seed))
	files := len(relationFiles(t, upper(t, hand)))
	t.Logf("by hand it owns %d KiB of a seed of %d KiB, with %d relation files that are metadata only", owned>>10, whole>>10, files)
	if owned > whole/4 {
		t.Error("data was copied")
	}
}
