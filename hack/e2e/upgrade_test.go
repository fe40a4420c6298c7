//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// buildPlugin builds the volume plugin as another version of itself would be, one that
// knows the store format, and gives the folder for `docker plugin create`.
func buildPlugin(t testing.TB, version string, format int) string {
	t.Helper()
	dir := t.TempDir()
	const constant = "const storeFormat = 1\n"
	meta, err := os.ReadFile("../../volumedriver/meta.go")
	if err != nil || strings.Count(string(meta), constant) != 1 {
		t.Fatalf("volumedriver/meta.go has not one %q: %v", constant, err)
	}
	changed := strings.Replace(string(meta), constant, fmt.Sprintf("const storeFormat = %d\n", format), 1)
	original, err := filepath.Abs("../../volumedriver/meta.go")
	if err != nil {
		t.Fatal(err)
	}
	overlay, _ := json.Marshal(map[string]any{"Replace": map[string]string{original: filepath.Join(dir, "meta.go")}})
	for name, content := range map[string]string{"meta.go": changed, "overlay.json": string(overlay)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-C", "../..", "-overlay", filepath.Join(dir, "overlay.json"), "-trimpath",
		"-ldflags", "-s -w -X main.version="+version, "-o", filepath.Join(dir, "plugin/rootfs/pgoverlay"), "./cmd/pgoverlay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+runtime.GOARCH)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	config, err := os.ReadFile("../../config.json")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "plugin/config.json"), config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "plugin")
}

// plugSettings are the settings of a plugin by hand.
type plugSettings struct{ data, store string }

func (s plugSettings) args() []string {
	return []string{"data.source=" + s.data, "PGOVERLAY_STORE_ID=" + s.store, "PGOVERLAY_LOG=debug"}
}

// putPlugin replaces the plugin by hand, as somebody else's version would stand there.
func putPlugin(t testing.TB, dir string, s plugSettings) {
	t.Helper()
	command("", "docker", "plugin", "disable", "-f", "pgoverlay")
	command("", "docker", "plugin", "rm", "-f", "pgoverlay")
	docker(t, "plugin", "create", "pgoverlay", dir)
	docker(t, append([]string{"plugin", "set", "pgoverlay"}, s.args()...)...)
	docker(t, "plugin", "enable", "pgoverlay")
}

// pluginVersion asks the plugin itself.
func pluginVersion(t testing.TB) string {
	t.Helper()
	const name = prefix + "ticket"
	docker(t, "volume", "create", "-d", "pgoverlay", "-o", "op=status", name)
	defer docker(t, "volume", "rm", name)
	return docker(t, "volume", "inspect", "-f", "{{.Status.plugin.version}}", name)
}

// setFormat changes the store's format, as a plugin that migrates it would.
func setFormat(t testing.TB, root string, format int) {
	t.Helper()
	name := filepath.Join(root, "store.json")
	raw, err := os.ReadFile(name)
	var store map[string]any
	if err == nil {
		err = json.Unmarshal(raw, &store)
	}
	if err != nil {
		t.Fatal(err)
	}
	store["format"] = format
	raw, _ = json.Marshal(store)
	if err := os.WriteFile(name, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// moveStore moves the data root to a folder of its own for this test, by way of setup.
func moveStore(t testing.TB) plugSettings {
	t.Helper()
	first := dataRoot(t)
	elsewhere := filepath.Join(docker(t, "info", "-f", "{{.DockerRootDir}}"), prefix+"data")
	if err := os.MkdirAll(elsewhere, 0o700); err != nil {
		t.Fatal(err)
	}
	move := func(to string) {
		stopAll(t)
		from := dataRoot(t)
		docker(t, "plugin", "disable", "-f", "pgoverlay")
		if err := os.Rename(from, filepath.Join(to, "pgoverlay")); err != nil {
			t.Fatal(err)
		}
		if r := try("setup", "--data", to); r.code != 0 {
			t.Fatalf("setup --data %s: exit %d, %s", to, r.code, r.stderr)
		}
	}
	move(elsewhere)
	t.Cleanup(func() {
		setFormat(t, dataRoot(t), 1)
		move(filepath.Dir(first))
		if err := os.Remove(elsewhere); err != nil {
			t.Error(err)
		}
	})
	store, err := os.ReadFile(filepath.Join(elsewhere, "pgoverlay/store.json"))
	var meta struct{ ID string }
	if err == nil {
		err = json.Unmarshal(store, &meta)
	}
	if err != nil {
		t.Fatal(err)
	}
	return plugSettings{elsewhere, meta.ID}
}

// stopAll stops what runs on the plugin.
func stopAll(t testing.TB) {
	t.Helper()
	for _, id := range strings.Fields(docker(t, "ps", "-q")) {
		if strings.Contains(docker(t, "inspect", "-f", "{{range .Mounts}}{{.Driver}} {{end}}", id), "pgoverlay:latest") {
			docker(t, "stop", id)
		}
	}
}

func startedAt(t testing.TB, container string) string {
	t.Helper()
	return docker(t, "inspect", "-f", "{{.State.Running}} {{.State.StartedAt}}", container)
}

// An installed plugin of another version is replaced in place, from and to a data root
// that is not in the default folder.
func TestSetupUpgradesInPlace(t *testing.T) {
	seed := anySeed(t)
	current := pluginVersion(t)
	name, hand := prefix+"up", prefix+"up-hand"
	branch(t, name, seed)
	sql(t, name, "shop", "CREATE TABLE mine AS SELECT 42 AS n")
	settings := moveStore(t)
	older := buildPlugin(t, "v0-e2e", 1)
	putPlugin(t, older, settings)
	pgbranch(t, "start", name)
	docker(t, "volume", "create", "-d", "pgoverlay", "-o", "seed="+seed, hand)
	docker(t, "run", "-d", "--name", hand, "-v", hand+":/var/lib/postgresql/data", "postgres:17")
	before := startedAt(t, "pgbranch-"+name)

	r := try("setup")
	if r.code != 4 || !strings.Contains(r.stderr, "branch "+name) || !strings.Contains(r.stderr, hand) ||
		!strings.Contains(r.stderr, "docker pgbranch setup --yes") {
		t.Errorf("without consent: exit %d, %s", r.code, r.stderr)
	}
	interruptUpgrade(t)
	check := func(version string) {
		t.Helper()
		if got := pluginVersion(t); got != version {
			t.Errorf("the plugin is %s, want %s", got, version)
		}
		if got := sql(t, name, "shop", "SELECT n FROM mine"); got != "42" {
			t.Errorf("the branch's own data reads %q", got)
		}
		if state := startedAt(t, hand); !strings.HasPrefix(state, "true") {
			t.Errorf("the container that is not ours: %s", state)
		}
		env := docker(t, "plugin", "inspect", "pgoverlay", "-f", "{{.Settings.Env}}")
		if filepath.Dir(dataRoot(t)) != settings.data || !strings.Contains(env, settings.store) || !strings.Contains(env, "PGOVERLAY_LOG=debug") {
			t.Errorf("settings are now %s and %s", dataRoot(t), env)
		}
		if out := docker(t, "plugin", "ls", "--format", "{{.Name}}"); strings.Contains(out, "upgrade") {
			t.Errorf("plugins: %s", out)
		}
	}
	check("v0-e2e")
	if after := startedAt(t, "pgbranch-"+name); after == before {
		t.Error("an interrupt that came when it was stopped already did not restart it")
	}
	r = try("setup", "--yes")
	if r.code != 0 {
		t.Fatalf("setup --yes: exit %d, %s", r.code, r.stderr)
	}
	t.Log(r.stderr)
	check(current)

	newerStore(t, name, settings, check)
	afterKill(t, older, settings, check, current)
}

// interruptUpgrade presses Ctrl-C when the first container has been stopped: the old
// plugin stays, and all runs again.
func interruptUpgrade(t *testing.T) {
	t.Helper()
	cmd := exec.Command("docker", "pgbranch", "setup", "--yes")
	errs, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	lines := bufio.NewScanner(errs)
	for lines.Scan() {
		fmt.Fprintln(&all, lines.Text())
		if strings.HasPrefix(lines.Text(), "stopped ") {
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(all.String(), "started branch") {
		t.Errorf("interrupted: exit %d\n%s", code, all.String())
	}
}

// newerStore: a plugin from the future has migrated the store. This version says so,
// stops nothing and leaves the other in place.
func newerStore(t *testing.T, name string, settings plugSettings, check func(version string)) {
	t.Helper()
	newer := buildPlugin(t, "v99-e2e", 2)
	pgbranch(t, "stop", name)
	docker(t, "stop", prefix+"up-hand")
	putPlugin(t, newer, settings)
	setFormat(t, filepath.Join(settings.data, "pgoverlay"), 2)
	pgbranch(t, "start", name)
	docker(t, "start", prefix+"up-hand")
	before := startedAt(t, "pgbranch-"+name)
	r := try("setup", "--yes")
	if r.code != 5 || !strings.Contains(r.stderr, "has format 2, and this plugin knows up to 1") || !strings.Contains(r.stderr, "stays as it is") {
		t.Errorf("downgrade: exit %d, %s", r.code, r.stderr)
	}
	t.Log(r.stderr)
	if after := startedAt(t, "pgbranch-"+name); after != before {
		t.Errorf("a refused downgrade stopped the branch: %s, then %s", before, after)
	}
	check("v99-e2e")
	setFormat(t, filepath.Join(settings.data, "pgoverlay"), 1)
}

// afterKill: an upgrade that was killed when the old plugin was gone goes on with the
// old one's settings.
func afterKill(t *testing.T, older string, settings plugSettings, check func(version string), current string) {
	t.Helper()
	stopAll(t)
	docker(t, "plugin", "disable", "-f", "pgoverlay")
	docker(t, "plugin", "rm", "-f", "pgoverlay")
	docker(t, "plugin", "create", "pgoverlay-upgrade", older)
	docker(t, append([]string{"plugin", "set", "pgoverlay-upgrade"}, settings.args()...)...)
	begin := time.Now()
	r := try("setup")
	if r.code != 0 || !strings.Contains(r.stderr, "going on with an upgrade that was killed") {
		t.Errorf("after a kill: exit %d, %s", r.code, r.stderr)
	}
	t.Logf("setup after a kill took %s", time.Since(begin))
	pgbranch(t, "start", prefix+"up")
	docker(t, "start", prefix+"up-hand")
	check(current)
}
