//go:build e2e

package e2e

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
)

// serveRegistry runs a registry on loopback, which dockerd speaks plain HTTP to, and
// gives a repository in it.
func serveRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/pgoverlay"
}

// The plugin is installed and upgraded as any plugin is, from a registry. The upgrade
// puts the data folder back to the default, where the store is not: the plugin refuses to
// start, whether it was pinned to its store or not, and setup mends it. Nothing is lost.
func TestFromARegistry(t *testing.T) {
	seed := anySeed(t)
	repository := serveRegistry(t)
	if r := command("", "make", "-C", "../..", "--no-print-directory", "plugin-push", "REGISTRY="+repository, "TAG=v1"); r.code != 0 {
		t.Fatalf("make plugin-push: %s\n%s", r.stdout, r.stderr)
	}
	pushOlder(t, repository)
	settings := moveStore(t)
	name := prefix + "pulled"
	branch(t, name, seed)
	sql(t, name, "shop", "CREATE TABLE mine AS SELECT 42 AS n")
	current := pluginVersion(t)
	mine := func(version string) {
		t.Helper()
		pgbranch(t, "start", name)
		if got := sql(t, name, "shop", "SELECT n FROM mine"); got != "42" {
			t.Errorf("the branch's own data reads %q", got)
		}
		if got := pluginVersion(t); got != version {
			t.Errorf("the plugin is %s, want %s", got, version)
		}
		if label := docker(t, "volume", "inspect", "-f", `{{index .Labels "io.github.pgbranch.kept"}}`, prefix+"labelled"); label != "yes" {
			t.Errorf("the volume's label is %q: docker has forgotten it", label)
		}
		stopAll(t)
	}
	docker(t, "volume", "create", "-d", "pgoverlay", "--label", "io.github.pgbranch.kept=yes", "-o", "seed="+seed, prefix+"labelled")
	t.Cleanup(func() { command("", "docker", "volume", "rm", prefix+"labelled") })
	stopAll(t)
	docker(t, "plugin", "disable", "-f", "pgoverlay")
	docker(t, "plugin", "rm", "-f", "pgoverlay")

	docker(t, "plugin", "install", "--alias", "pgoverlay", "--grant-all-permissions", repository+":v1-"+runtime.GOARCH, "data.source="+settings.data)
	mine(current)
	// Not pinned yet: only what the plugin itself remembers keeps it off an empty folder.
	upgrade := func(tag string) {
		t.Helper()
		docker(t, "plugin", "disable", "-f", "pgoverlay")
		docker(t, "plugin", "upgrade", "--grant-all-permissions", "--skip-remote-check", "pgoverlay", repository+":"+tag)
		empty := filepath.Join(docker(t, "plugin", "inspect", "pgoverlay", "-f", `{{range .Config.Mounts}}{{.Source}}{{end}}`), "pgoverlay")
		if filepath.Dir(empty) == settings.data {
			t.Errorf("docker plugin upgrade keeps the data folder by now: say so in docs/recovery.md")
		}
		if r := command("", "docker", "plugin", "enable", "pgoverlay"); r.code == 0 {
			t.Errorf("the plugin starts on %s, which is not its store", empty)
		}
		if _, err := os.Lstat(empty); err == nil {
			t.Errorf("it has made a store in %s", empty)
		}
		r := try("ls")
		if r.code != 5 || !strings.Contains(r.stderr, "docker pgbranch setup") {
			t.Errorf("ls with it: exit %d, %s", r.code, r.stderr)
		}
	}
	upgrade("v0-" + runtime.GOARCH)
	r := try("setup", "--yes")
	if r.code != 0 || !strings.Contains(r.stderr, "to "+settings.data+", where its store is") || !strings.Contains(r.stderr, "replaced it by "+current) {
		t.Fatalf("setup after an upgrade: exit %d, %s", r.code, r.stderr)
	}
	t.Log(r.stderr)
	mine(current)

	// This one is pinned, and of the CLI's own version.
	upgrade("v1-" + runtime.GOARCH)
	if r := try("doctor"); r.code != 1 || !strings.Contains(r.stderr+r.stdout, "docker pgbranch setup") {
		t.Errorf("doctor: exit %d, %s%s", r.code, r.stdout, r.stderr)
	}
	r = try("setup")
	if r.code != 0 || !strings.Contains(r.stderr, "to "+settings.data+", where its store is") || strings.Contains(r.stderr, "replaced") {
		t.Fatalf("setup after an upgrade to its own version: exit %d, %s", r.code, r.stderr)
	}
	mine(current)
	if r := try("setup"); !strings.Contains(r.stderr, "nothing to do") {
		t.Errorf("setup is not done: %s", r.stderr)
	}
}

// pushOlder pushes another version of the plugin as v0.
func pushOlder(t *testing.T, repository string) {
	t.Helper()
	dir := buildPlugin(t, "v0-e2e", 1)
	plugins := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		// The tests run on one of them: what the other's holds matters to nobody.
		if err := os.CopyFS(filepath.Join(plugins, "plugin-"+arch), os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if r := command("", "go", "run", "../pluginpush", "-plugins", plugins, "-repository", repository, "-tag", "v0"); r.code != 0 {
		t.Fatalf("pluginpush: %s", r.stderr)
	}
}
