//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// npmImage makes an image of a major that Debian has no release with. npm has the server
// and initdb; the clients are those of Debian's 17, which speak to older servers, and its
// pg_controldata and pg_checksums, which read pg_control of 13 to 17 (PG_CONTROL_VERSION
// in pg_control.h).
func npmImage(t testing.TB, base, major string) string {
	t.Helper()
	r := command("", "../../shim/test/servers.sh", "npm", major)
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	ref := makeVariantOf(t, base, "pg"+major, fmt.Sprintf(`cd /usr/local/bin
ln -s /opt/pg/bin/postgres /opt/pg/bin/pg_ctl .
# initdb writes the build's own socket directory, /tmp, into the file.
printf '#!/bin/sh\n/opt/pg/bin/initdb "$@" && echo "unix_socket_directories = '"'/var/run/postgresql'"'" >>"$PGDATA/postgresql.conf"\n' >initdb
printf '#!/bin/sh\n[ "$*" != --version ] || exec echo "pg_basebackup (PostgreSQL) %[1]s.0"\nexec /usr/lib/postgresql/*/bin/pg_basebackup "$@"\n' >pg_basebackup
chmod -R a+rX,u+w /opt/pg; chmod 755 initdb pg_basebackup /opt/pg/bin/*
sed -i -E "s/^#?listen_addresses = .*/listen_addresses = '*'/" /opt/pg/share/postgresql/postgresql.conf.sample
`, major), r.stdout+"/.", "/opt/pg")
	docker(t, "create", "--name", prefix+"relabel", ref)
	defer command("", "docker", "rm", "-v", prefix+"relabel")
	docker(t, "commit", "--change", "ENV PG_MAJOR="+major, prefix+"relabel", ref)
	return ref
}

// The majors between those of Debian's releases.
func TestLongOtherMajors(t *testing.T) {
	for _, major := range []string{"14", "16"} {
		t.Run(major, func(t *testing.T) { checkMajor(t, npmImage(t, "postgres:17", major), major) })
	}
}

// A source that is older than what seeds are made of is refused with what they are made of,
// before an image is looked for or anything is copied.
func TestLongTooOldASource(t *testing.T) {
	s := startSource(t, npmImage(t, "postgres:17", "13"), 1000)
	for _, flags := range [][]string{nil, {"--image", "postgres:17"}} {
		before := state(t)
		r := command(password+"\n", "docker", append([]string{"pgbranch", "seed", "create", prefix + "old", "--from", s.url("shop"),
			"--network", s.network, "--password-stdin", "--progress", "quiet"}, flags...)...)
		t.Logf("exit %d: %s", r.code, r.stderr)
		if r.code != 2 {
			t.Errorf("exit %d", r.code)
		}
		requireRefusal(t, r, before, []string{"runs Postgres 13.23", "seeds are made of 14 to 18", "--logical --image postgres:14"})
	}
	// The hint helps.
	name := prefix + "of13"
	if r := seedOfDump(t, password+"\n", name, "--from", s.url("shop"), "--network", s.network, "--password-stdin", "--logical", "--image", "postgres:17"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	branch(t, name+"-b", name)
	if got := sql(t, name+"-b", "shop", "SELECT count(*) FROM big"); got != "1000" {
		t.Errorf("there are %s rows", got)
	}
}

// An image of the same major whose C library has another version of its collations may
// run a branch, and it is said what that means.
func TestLongCollationsOfAnotherVersion(t *testing.T) {
	seed := oddSeed(t)
	image := npmImage(t, "postgres:15", "17")
	name := prefix + "older"
	t.Cleanup(func() { try("rm", "-f", name) })
	r := try("create", name, "--from", seed, "--image", image)
	t.Logf("exit %d: %s", r.code, r.stderr)
	if r.code != 0 || !strings.Contains(r.stderr, "collation version 2.") || !strings.Contains(r.stderr, "REFRESH COLLATION VERSION") {
		t.Error("the other version is not warned of")
	}
	if got := sql(t, name, "shop", "SELECT count(*) FROM item"); got != "60000" {
		t.Errorf("there are %s rows", got)
	}
}

// A server of musl's userland does not get a seed whose text glibc has sorted, unless
// somebody insists; then it runs, lazily.
func TestLongMuslImage(t *testing.T) {
	seed := makeSeed(t, startSource(t, "postgres:18", 100_000), prefix+"pg18")
	r := command("", "../../shim/test/servers.sh", "musl", "18")
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	// The build knows its place by name.
	built := r.stdout
	loader := "/lib/ld-musl-" + command("", "uname", "-m").stdout + ".so.1"
	image := makeVariantOf(t, "postgres:18", "musl18", fmt.Sprintf(`mkdir -p $(dirname %[1]s); mv /tmp/built %[1]s
mv /tmp/libc.so %[2]s; chmod 755 %[2]s; chmod -R a+rX %[1]s
ln -sf %[1]s/bin/postgres %[1]s/bin/initdb /usr/local/bin/
postgres --version; ! ldd %[1]s/bin/postgres | grep glibc`, built, loader), built+"/.", "/tmp/built", loader, "/tmp/libc.so")
	name := prefix + "onmusl"
	t.Cleanup(func() { try("rm", "-f", name) })
	before := state(t)
	refused := try("create", name, "--from", seed, "--image", image)
	t.Logf("exit %d: %s", refused.code, refused.stderr)
	if refused.code != 2 || !strings.Contains(refused.stderr, "musl 1.") || !strings.Contains(refused.stderr, "--force") {
		t.Errorf("exit %d", refused.code)
	}
	if after := state(t); after != before {
		t.Errorf("left behind\n%s\nwas\n%s", after, before)
	}
	forced := try("create", name, "--from", seed, "--image", image, "--force")
	t.Logf("exit %d: %s", forced.code, forced.stderr)
	if forced.code != 0 || !strings.Contains(forced.stderr, "warning: musl") {
		t.Fatalf("exit %d", forced.code)
	}
	if got := sql(t, name, "shop", "SELECT count(*) FROM big", "SELECT version()"); !strings.HasPrefix(got, "100000\nPostgreSQL 18") || !strings.Contains(got, "musl") {
		t.Errorf("it answers %q", got)
	}
	sql(t, name, "shop", "CHECKPOINT")
	if files := relationFiles(t, upper(t, name)); len(files) > 0 {
		t.Errorf("reading copied relation files: %v", files)
	}
}
