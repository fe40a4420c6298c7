//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// onLoopback serves each connection to a port of loopback until the test's end, and gives
// the address, HOST:PORT.
func onLoopback(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return listener.Addr().String()
}

// proxyEngine lets the engine be reached over TCP on loopback, and gives the address.
func proxyEngine(t *testing.T) string {
	t.Helper()
	return "tcp://" + onLoopback(t, func(client net.Conn) {
		engine, err := net.Dial("unix", "/var/run/docker.sock")
		if err != nil {
			_ = client.Close()
			return
		}
		// Each direction ends by itself: attach closes its input and reads on.
		go func() { _, _ = io.Copy(engine, client); _ = engine.(*net.UnixConn).CloseWrite() }()
		_, _ = io.Copy(client, engine)
		_ = client.(*net.TCPConn).CloseWrite()
	})
}

// stranger is a user of this machine who may read neither the engine's files nor its
// socket, and has the CLI in a home of its own.
type stranger struct{ home string }

const strangerID = 65534

func newStranger(t *testing.T) stranger {
	t.Helper()
	s := stranger{filepath.Join("/tmp", fmt.Sprintf("%scontext-%d", prefix, os.Getpid()))}
	t.Cleanup(func() { _ = os.RemoveAll(s.home) })
	program, err := os.ReadFile("../../build/docker-pgbranch")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(s.home, "cli-plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.write(t, "cli-plugins/docker-pgbranch", program, 0o755)
	if err := os.Chown(s.home, strangerID, strangerID); err != nil {
		t.Fatal(err)
	}
	if r := s.run("", "docker", "ps"); r.code == 0 {
		t.Fatal("the user may use the engine's socket")
	}
	if r := s.run("", "ls", docker(t, "info", "-f", "{{.DockerRootDir}}")); r.code == 0 {
		t.Fatal("the user may read the engine's files")
	}
	return s
}

// write puts a file of the user's into the home.
func (s stranger) write(t *testing.T, name string, content []byte, mode os.FileMode) {
	t.Helper()
	err := os.WriteFile(filepath.Join(s.home, name), content, mode)
	if err == nil {
		err = os.Chown(filepath.Join(s.home, name), strangerID, strangerID)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a command as the user, with one variable more in the environment.
func (s stranger) run(env string, args ...string) result {
	id := fmt.Sprint(strangerID)
	setpriv := []string{"--reuid", id, "--regid", id, "--clear-groups", "env", "-u", "DOCKER_HOST", "HOME=" + s.home, "DOCKER_CONFIG=" + s.home,
		"PATH=" + s.home + ":" + os.Getenv("PATH")}
	if env != "" {
		setpriv = append(setpriv, env)
	}
	return command("", "setpriv", append(setpriv, args...)...)
}

// The CLI needs nothing of the engine's machine, over TCP as over ssh, by DOCKER_HOST,
// by DOCKER_CONTEXT and by --context.
func TestOverAContext(t *testing.T) {
	seed := anySeed(t)
	nobody := newStranger(t)
	must := func(r result, want string) {
		t.Helper()
		if r.code != 0 || !strings.Contains(r.stdout, want) {
			t.Errorf("exit %d, %s\n%s", r.code, r.stdout, r.stderr)
		}
	}
	for scheme, address := range map[string]string{"tcp": proxyEngine(t), "ssh": serveSSH(t, nobody)} {
		name, afar := prefix+"afar-"+scheme, "afar-"+scheme
		t.Cleanup(func() { try("rm", "-f", name) })
		must(nobody.run("DOCKER_HOST="+address, "docker", "pgbranch", "create", name, "--from", seed), name)
		must(nobody.run("", "docker", "context", "create", afar, "--docker", "host="+address), afar)
		must(nobody.run("DOCKER_CONTEXT="+afar, "docker", "pgbranch", "psql", "-d", "shop", name, "--", "-qAtXc", "SELECT 42"), "42")
		must(nobody.run("", "docker", "--context", afar, "pgbranch", "ls", "-q"), name)
		must(nobody.run("DOCKER_HOST="+address, "docker", "pgbranch", "setup"), "is ready")
		must(nobody.run("DOCKER_CONTEXT="+afar, "docker", "pgbranch", "rm", "-f", name), name)
	}
}
