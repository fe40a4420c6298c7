//go:build e2e

package e2e

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// proxyEngine lets the engine be reached over TCP on loopback, and gives the address.
func proxyEngine(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			engine, err := net.Dial("unix", "/var/run/docker.sock")
			if err != nil {
				_ = client.Close()
				continue
			}
			// Each direction ends by itself: attach closes its input and reads on.
			go func() { _, _ = io.Copy(engine, client); _ = engine.(*net.UnixConn).CloseWrite() }()
			go func() { _, _ = io.Copy(client, engine); _ = client.(*net.TCPConn).CloseWrite() }()
		}
	}()
	return "tcp://" + listener.Addr().String()
}

// The CLI needs nothing of the engine's machine: it runs as a user who may read neither
// the engine's files nor its socket, over DOCKER_HOST, a context and --context.
func TestOverAContext(t *testing.T) {
	seed := anySeed(t)
	address := proxyEngine(t)
	home := filepath.Join("/tmp", prefix+"context")
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	program, err := os.ReadFile("../../build/docker-pgbranch")
	if err == nil {
		err = os.MkdirAll(filepath.Join(home, "cli-plugins"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(home, "cli-plugins/docker-pgbranch"), program, 0o755)
	}
	if err == nil {
		err = os.Chown(home, 65534, 65534)
	}
	if err != nil {
		t.Fatal(err)
	}
	nobody := func(env string, args ...string) result {
		setpriv := []string{"--reuid", "65534", "--regid", "65534", "--clear-groups", "env", "-u", "DOCKER_HOST", "HOME=" + home, "DOCKER_CONFIG=" + home}
		if env != "" {
			setpriv = append(setpriv, env)
		}
		return command("", "setpriv", append(setpriv, args...)...)
	}
	if r := nobody("", "docker", "ps"); r.code == 0 {
		t.Fatal("the user may use the engine's socket")
	}
	if r := nobody("", "ls", docker(t, "info", "-f", "{{.DockerRootDir}}")); r.code == 0 {
		t.Fatal("the user may read the engine's files")
	}
	const name = prefix + "afar"
	t.Cleanup(func() { try("rm", "-f", name) })
	must := func(r result, want string) {
		t.Helper()
		if r.code != 0 || !strings.Contains(r.stdout, want) {
			t.Errorf("exit %d, %s\n%s", r.code, r.stdout, r.stderr)
		}
	}
	must(nobody("DOCKER_HOST="+address, "docker", "pgbranch", "create", name, "--from", seed), name)
	must(nobody("", "docker", "context", "create", "afar", "--docker", "host="+address), "afar")
	must(nobody("DOCKER_CONTEXT=afar", "docker", "pgbranch", "psql", "-d", "shop", name, "--", "-qAtXc", "SELECT 42"), "42")
	must(nobody("", "docker", "--context", "afar", "pgbranch", "ls", "-q"), name)
	must(nobody("DOCKER_HOST="+address, "docker", "pgbranch", "setup"), "is ready")
	must(nobody("DOCKER_CONTEXT=afar", "docker", "pgbranch", "rm", "-f", name), name)
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Error(err)
	}
}
