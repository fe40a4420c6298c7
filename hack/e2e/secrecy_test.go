//go:build e2e

package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The source's password is in no label, no log, no `docker inspect`, no process
// list, no environment and not in the seed. A watcher looks all the while, and also
// sees that the settle has no network.
func TestThePasswordIsNowhere(t *testing.T) {
	s := startSource(t, "postgres:17", bigRows)
	name := prefix + "secret"
	t.Cleanup(func() { try("seed", "rm", name) })
	stop, found := make(chan struct{}), make(chan string, 1)
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
			devices, settling := settleDevices(name)
			if settling {
				settles++
			}
			if len(devices) > 0 {
				t.Errorf("the settle has the network devices %q", devices)
			}
			if where := leak(t, name); where != "" {
				found <- where
				return
			}
		}
	}()
	// Out of PGPASSWORD here: the CLI's own environment is the user's.
	r := command(password, "docker", "pgbranch", "seed", "create", name, "--from", s.url("shop"), "--network", s.network, "--password-stdin")
	close(stop)
	if where, leaked := <-found; leaked {
		t.Errorf("the password is in %s", where)
	}
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	if looks < 10 {
		t.Fatalf("only %d looks: this shows nothing", looks)
	}
	if settles == 0 {
		t.Error("the settle was never looked at")
	}
	t.Logf("%d looks while the seed was made, %d of them at the settle", looks, settles)
	if strings.Contains(r.stdout+r.stderr, password) {
		t.Error("the password is in the output")
	}
	err := filepath.Walk(onDisk(t, "seeds", r.stdout), func(path string, info fs.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		body, err := os.ReadFile(path)
		if bytes.Contains(body, []byte(password)) {
			t.Errorf("the password is in the seed: %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if inspected := docker(t, "volume", "inspect", r.stdout); strings.Contains(inspected, password) {
		t.Error("the password is in docker volume inspect")
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

// leak says where the password can be seen now by somebody who may look at the
// engine and at this machine's processes.
func leak(t *testing.T, seed string) string {
	for _, id := range strings.Fields(command("", "docker", "ps", "-aq", "--filter", "label=io.github.pgbranch.helper="+seed).stdout) {
		for _, look := range [][]string{{"inspect", id}, {"logs", id}, {"top", id}} {
			r := command("", "docker", look...)
			if strings.Contains(r.stdout+r.stderr, password) {
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
		if bytes.Contains(env, []byte("POSTGRES_PASSWORD=")) {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		if bytes.Contains(cmdline, []byte(password)) || bytes.Contains(env, []byte(password)) {
			return "the process " + strings.TrimSpace(string(name))
		}
	}
	return ""
}
