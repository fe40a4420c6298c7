//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const (
	shimPath = "/var/lib/postgresql/data/.pgoverlay/lazyrw.so"
	noLibs   = "shared_preload_libraries="
)

// compiled builds a C program or library for the containers.
func compiled(t testing.TB, name, source string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, name+".c"), filepath.Join(dir, name)
	if err := os.WriteFile(in, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := command("", "gcc", append(flags, "-Wall", "-Werror", "-O1", "-o", out, in)...); r.code != 0 {
		t.Fatalf("gcc: %s", r.stderr)
	}
	return out
}

// usersOwn is a preload of a user's: it counts the opens of tables, a byte each.
const usersOwn = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static int counted(const char *name, const char *path, int flags, int mode)
{
	int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
	int fd;

	if (strncmp(path, "base/", 5) == 0 && (fd = next("/tmp/opens", O_WRONLY | O_CREAT | O_APPEND, 0666)) >= 0) {
		if (write(fd, ".", 1) != 1)
			_exit(3);
		close(fd);
	}
	return next(path, flags, mode);
}

int open(const char *path, int flags, ...) { return counted("open", path, flags, 0600); }
int open64(const char *path, int flags, ...) { return counted("open64", path, flags, 0600); }
`

// launcher stands for a static server: no loader takes LD_PRELOAD for it. The server that it becomes is not
// static, since Debian has none, so it takes the variable away.
const launcher = `#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	(void)argc;
	unsetenv("LD_PRELOAD");
	execv("/usr/lib/postgresql/17/bin/postgres.real", argv);
	return 127;
}
`

// foreignShim is the shim for the architecture that the engine is not of.
func foreignShim(t testing.TB) string {
	t.Helper()
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	path := filepath.Join("..", "..", "shim", "lib", "lazyrw-"+other+".so")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run make shim", err)
	}
	return path
}

// preloadsImage is one image for all: it has what is preloaded, and as /opt/foreign/postgres a server of another architecture.
func preloadsImage(t testing.TB) string {
	t.Helper()
	if ref := prefix + "variant:preloads"; command("", "docker", "image", "inspect", ref).code == 0 {
		return ref
	}
	return makeVariant(t, "preloads", `mkdir /opt/foreign; cp /opt/foreign.so /opt/foreign/postgres; chmod 755 /opt/*.so /opt/foreign/postgres`,
		foreignShim(t), "/opt/foreign.so", compiled(t, "own.so", usersOwn, "-shared", "-fPIC"), "/opt/own.so")
}

// recommitted is an image with other words of its configuration.
func recommitted(t testing.TB, image, name string, changes ...string) string {
	t.Helper()
	ref, container := prefix+"variant:"+name, prefix+"recommitted"
	docker(t, "create", "--name", container, image)
	defer command("", "docker", "rm", "-v", container)
	args := []string{"commit"}
	for _, c := range changes {
		args = append(args, "--change", c)
	}
	docker(t, append(args, container, ref)...)
	t.Cleanup(func() { command("", "docker", "rmi", "-f", ref) })
	return ref
}

// requireEager: inspect, ls and the volume's Status all say that a branch is eager, and why.
func requireEager(t testing.TB, branch, via string, reasons ...string) {
	t.Helper()
	var status, listed, inspected cow
	for _, c := range []struct {
		said string
		into *cow
	}{
		{docker(t, "volume", "inspect", "-f", "{{json .Status}}", branch), &status},
		{pgbranch(t, "ls", "--format", "json", "--filter", "name="+branch), &listed},
		{pgbranch(t, "inspect", branch, "--format", "{{json .}}"), &inspected},
	} {
		if err := json.Unmarshal([]byte(c.said), c.into); err != nil {
			t.Fatalf("%v\n%s", err, c.said)
		}
	}
	if table := pgbranch(t, "ls", "--filter", "name="+branch); !strings.Contains(table, "eager") {
		t.Errorf("ls says\n%s", table)
	}
	if status.CowMode != "eager" || status.CowVia != via || status.CowReason == "" || listed != inspected {
		t.Errorf("%s: Status %+v, ls %+v, inspect %+v", branch, status, listed, inspected)
	}
	for _, want := range reasons {
		if inspected.CowMode != "eager" || inspected.CowVia != via || !strings.Contains(inspected.CowReason, want) {
			t.Errorf("%s: %+v, want %q", branch, inspected, want)
		}
	}
}

// A preload that cannot be loaded, or is not there, or takes the shim's place, leaves the other way in; without that the
// branch is eager and says what the container's LD_PRELOAD was. Postgres runs in any case.
func TestPreloadsThatDoNotBringTheShim(t *testing.T) {
	seed := anySeed(t)
	image := preloadsImage(t)
	name := prefix + "preloads"
	byHand(t, name, seed)
	const at = ":/var/lib/postgresql/data"
	inItsPlace := filepath.Join(t.TempDir(), "foreign.so") // a copy: the image's entrypoint gives it to postgres
	if r := command("", "cp", foreignShim(t), inItsPlace); r.code != 0 {
		t.Fatal(r.stderr)
	}
	runBranch(t, name, name+at, "-e", "LD_PRELOAD=/opt/foreign.so", image)
	answers(t, name)
	if got := cowOf(t, name); got != (cow{CowMode: "lazyrw", CowVia: "shared_preload_libraries"}) {
		t.Errorf("with the other way in: %+v", got)
	}
	for _, c := range []struct {
		what, preload, volume string
		reason                string
	}{
		{"another architecture's", "/opt/foreign.so", "", `LD_PRELOAD is "/opt/foreign.so"`},
		{"another layout's path", "/var/lib/postgresql/.pgoverlay/lazyrw.so", "", "the shim is " + shimPath},
		{"replaced", "/opt/own.so", "", `LD_PRELOAD is "/opt/own.so"`},
		{"another architecture's in its place", shimPath, inItsPlace + ":" + shimPath, "of another architecture"},
	} {
		t.Run(c.what, func(t *testing.T) {
			args := []string{"-e", "LD_PRELOAD=" + c.preload, image, "-c", noLibs}
			if c.volume != "" {
				args = append([]string{"-v", c.volume}, args...)
			}
			docker(t, "rm", "-f", name)
			runBranch(t, name, name+at, args...)
			answers(t, name)
			if got := ask(t, name, "shop", "SELECT count(*) FROM small"); got != "200" {
				t.Errorf("there are %s rows", got)
			}
			requireEager(t, name, "none", c.reason, "-c shared_preload_libraries")
		})
	}
}

// A preload that an image has of its own works beside the shim: it sees the calls first and hands them on.
func TestAUsersOwnPreloadWorks(t *testing.T) {
	seed := anySeed(t)
	own := recommitted(t, preloadsImage(t), "own", "ENV LD_PRELOAD=/opt/own.so")
	name := prefix + "own"
	t.Cleanup(func() { try("rm", "-f", name) })
	if r := try("create", name, "--from", seed, "--image", own); r.code != 0 || strings.Contains(r.stderr, "warning: the branch is eager") {
		t.Fatalf("exit %d: %s", r.code, r.stderr)
	}
	container := "pgbranch-" + name
	opens := func() string { return docker(t, "exec", container, "stat", "-c", "%s", "/tmp/opens") }
	before := opens()
	if got := sql(t, name, "shop", "SELECT count(*) > 0 FROM small", "SELECT count(*) > 0 FROM big", "CHECKPOINT"); got != "t\nt" {
		t.Errorf("read %q", got)
	}
	if after := opens(); before == "0" || after == before {
		t.Errorf("the user's preload has seen %s opens before and %s after the reads", before, after)
	}
	if got := cowOf(t, name); got != (cow{CowMode: "lazyrw", CowVia: "LD_PRELOAD"}) {
		t.Errorf("%+v", got)
	}
	if copied := relationFiles(t, upper(t, name)); len(copied) != 0 {
		t.Errorf("reading copied %v", copied)
	}
	sql(t, name, "shop", "UPDATE small SET name = 'own' WHERE id = 7", "CHECKPOINT")
	if copied := relationFiles(t, upper(t, name)); len(copied) == 0 {
		t.Error("a write went elsewhere")
	}
}

// A static server can load nothing. A seed that it settles has branches that name no library, and `create` warns; of a seed
// that names one it would not start, so it is refused before, as a server of another architecture is.
func TestServersThatCannotLoadTheShim(t *testing.T) {
	ordinary, s := anySeed(t), startSource(t, "postgres:17", 60_000)
	static := variant(t, "static", `cd /usr/lib/postgresql/17/bin; mv postgres postgres.real; mv /opt/launcher postgres; chmod 755 postgres; postgres --version`,
		compiled(t, "launcher", launcher, "-static"), "/opt/launcher")
	foreign := recommitted(t, preloadsImage(t), "foreign", "ENV PATH=/opt/foreign:/usr/local/bin:/usr/bin:/bin:/usr/lib/postgresql/17/bin")

	seed, name := prefix+"static", prefix+"static"
	t.Cleanup(func() { try("seed", "rm", seed) })
	if r := command(password+"\n", "docker", "pgbranch", "seed", "create", seed, "--from", s.url("shop"), "--image", static,
		"--network", s.network, "--password-stdin", "--progress", "quiet"); r.code != 0 {
		t.Fatalf("seed create: exit %d\n%s", r.code, r.stderr)
	}
	name += "-branch"
	t.Cleanup(func() { try("rm", "-f", name) })
	r := try("create", name, "--from", seed)
	if r.code != 0 || !strings.Contains(r.stderr, "warning: the branch is eager") || !strings.Contains(r.stderr, "it is linked statically") {
		t.Errorf("create: exit %d\n%s", r.code, r.stderr)
	}
	requireEager(t, name, "none", "the image's server cannot load lazyrw: it is linked statically")

	for _, c := range []struct{ what, image, reason string }{
		{"static", static, "cannot load lazyrw, as the seed's configuration has it do: it is linked statically"},
		{"another architecture", foreign, "and the engine is " + runtime.GOARCH},
	} {
		t.Run(c.what, func(t *testing.T) {
			before := state(t)
			r := try("create", prefix+"unloadable", "--from", ordinary, "--image", c.image)
			t.Logf("exit %d: %s", r.code, r.stderr)
			if r.code != 2 {
				t.Errorf("exit %d", r.code)
			}
			requireRefusal(t, r, before, []string{c.reason})
		})
	}
	off := prefix + "static-off"
	t.Cleanup(func() { try("rm", "-f", off) })
	if r := try("create", off, "--from", ordinary, "--image", static, "--cow", "off"); r.code != 0 || strings.Contains(r.stderr, "eager") {
		t.Errorf("--cow off: exit %d\n%s", r.code, r.stderr)
	}
	if got := sql(t, off, "shop", "SELECT count(*) FROM small"); got != "200" {
		t.Errorf("there are %s rows", got)
	}
}
