//go:build e2e

package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The source's password and the key for TLS are in no label, no log, no `docker inspect`,
// no event, no process list, no environment and not in the seed.
func TestSecretsAreNowhere(t *testing.T) {
	guardedSeed(t)
}

// watch looks for secrets while a seed is made, wherever somebody else could see them, and
// sees that the settle has no network. What it returns is to be called when the seed is
// there, with when it began and all that was printed.
func watch(t testing.TB, seed string, secrets ...string) (watched func(since time.Time, printed string)) {
	stop, found := make(chan struct{}), make(chan string, 1)
	end := sync.OnceFunc(func() { close(stop) })
	t.Cleanup(func() { end(); <-found })
	looks, settles := 0, 0
	go func() {
		defer close(found)
		for {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
			}
			looks++
			devices, settling := settleDevices(seed)
			if settling {
				settles++
			}
			if len(devices) > 0 {
				t.Errorf("the settle has the network devices %q", devices)
			}
			if where := leak(t, seed, secrets); where != "" {
				found <- where
				return
			}
		}
	}()
	return func(since time.Time, printed string) {
		t.Helper()
		end()
		if where, leaked := <-found; leaked {
			t.Errorf("a secret is in %s", where)
		}
		if looks < 10 || settles == 0 {
			t.Errorf("%d looks, %d of them at the settle: this shows nothing", looks, settles)
		}
		t.Logf("%d looks while the seed was made, %d of them at the settle", looks, settles)
		left(t, seed, since, printed, secrets)
	}
}

// left looks for secrets in all that is left of the making of a seed.
func left(t testing.TB, seed string, since time.Time, printed string, secrets []string) {
	t.Helper()
	places := map[string]string{
		"the output":            printed,
		"docker volume inspect": docker(t, "volume", "inspect", seedRef(seed)),
		"docker events": docker(t, "events", "--format", "{{json .}}", "--since", since.Format(time.RFC3339Nano),
			"--until", time.Now().Format(time.RFC3339Nano)),
		"pgbranch seed inspect": pgbranch(t, "seed", "inspect", seed),
	}
	if !strings.Contains(places["docker events"], "io.github.pgbranch.helper") {
		t.Error("docker events tell of no helper: this shows nothing")
	}
	// hack/engine.sh writes the engine's log there; another engine's is in the journal.
	logs, _ := filepath.Glob("/var/log/pgbranch-engine/*.log")
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Error(err)
		}
		places[log] = string(text)
	}
	if len(logs) == 0 {
		places["the journal"] = command("", "journalctl", "--no-pager", "-u", "docker", "--since", since.Format("2006-01-02 15:04:05")).stdout
	}
	root := onDisk(t, "seeds", seedRef(seed))
	walk(t, root, func(path string, info fs.FileInfo) {
		if !info.Mode().IsRegular() {
			return
		}
		body, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Error(err)
		}
		places["the seed's "+path] = string(body)
	})
	for where, text := range places {
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("a secret is in %s", where)
			}
		}
	}
}

// settleDevices gives the network devices but lo that the settle of a seed sees, and
// whether there is one at this moment.
func settleDevices(seed string) (devices []string, settling bool) {
	id := command("", "docker", "ps", "-q", "--filter", "label=io.github.pgbranch.helper="+seed, "--filter", "name=pgbranch-settle-").stdout
	if id == "" {
		return nil, false
	}
	pid := command("", "docker", "inspect", "-f", "{{.State.Pid}}", id).stdout
	text, err := os.ReadFile("/proc/" + pid + "/net/dev")
	if err != nil {
		return nil, false // it has just ended
	}
	for line := range strings.Lines(string(text)) {
		device, _, ok := strings.Cut(line, ":")
		if device = strings.TrimSpace(device); ok && device != "lo" {
			devices = append(devices, device)
		}
	}
	return devices, true
}

// leak says where a secret can be seen now by somebody who may look at the engine and at
// this machine's processes.
func leak(t testing.TB, seed string, secrets []string) string {
	holds := func(text string) bool {
		return slices.ContainsFunc(secrets, func(secret string) bool { return strings.Contains(text, secret) })
	}
	for _, id := range strings.Fields(command("", "docker", "ps", "-aq", "--filter", "label=io.github.pgbranch.helper="+seed).stdout) {
		for _, look := range [][]string{{"inspect", id}, {"logs", id}, {"top", id}} {
			r := command("", "docker", look...)
			if holds(r.stdout + r.stderr) {
				return "docker " + look[0]
			}
		}
	}
	proc, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Error(err)
	}
	for _, p := range proc {
		name, _ := os.ReadFile(filepath.Join(p, "comm"))
		// The source's own server and shell have it in their environment.
		env, _ := os.ReadFile(filepath.Join(p, "environ"))
		if strings.Contains(string(env), "POSTGRES_PASSWORD=") {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		if holds(string(cmdline)) || holds(string(env)) {
			return "the process " + strings.TrimSpace(string(name))
		}
	}
	return ""
}
