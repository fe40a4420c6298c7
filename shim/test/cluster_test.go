//go:build e2e

package shimtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A cluster is a data directory and, while it runs, its server.
type cluster struct {
	server  server
	data    string // PGDATA
	sockets string
	preload string // LD_PRELOAD, or nothing
	library string // shared_preload_libraries, or nothing
	cmd     *exec.Cmd
	log     *bytes.Buffer
}

// dataDir is PGDATA in a volume, as the stock image of that major has it.
func dataDir(volume string, major int) string {
	if major < 18 {
		return volume
	}
	return filepath.Join(volume, strconv.Itoa(major), "docker")
}

// command is a program of the server's build, run as the unprivileged user.
func (c *cluster) command(t *testing.T, name string, args ...string) *exec.Cmd {
	cmd := c.server.prepare(name, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr.Credential, cmd.SysProcAttr.Setpgid = serverUser(t), true
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	if c.preload != "" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+c.preload)
	}
	return cmd
}

func (c *cluster) settings(extra ...string) []string {
	args := []string{"-D", c.data}
	if c.library != "" {
		args = append(args, "-c", "shared_preload_libraries="+c.library)
	}
	for _, s := range append([]string{"listen_addresses=", "unix_socket_directories=" + c.sockets, "autovacuum=off",
		"shared_buffers=128kB", "max_connections=20", "fsync=on", "wal_recycle=off"}, extra...) {
		args = append(args, "-c", s)
	}
	return args
}

func (c *cluster) start(t *testing.T, extra ...string) {
	t.Helper()
	c.log = &bytes.Buffer{}
	c.cmd = c.command(t, "postgres", c.settings(extra...)...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	c.cmd.WaitDelay = 10 * time.Second
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := c.cmd
	t.Cleanup(func() { killTree(cmd.Process.Pid) })
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		conn, err := c.dial("postgres")
		if err == nil {
			_ = conn.Close(context.Background())
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not answer: %v\n%s", c.server.name, err, c.log)
		}
	}
}

func (c *cluster) stop(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", c.server.name, err, c.log)
	}
}

// kill ends every process of the server at once, as the end of its container would.
func (c *cluster) kill(t *testing.T) {
	t.Helper()
	killTree(c.cmd.Process.Pid)
	_ = c.cmd.Wait() // "signal: killed"
	for end := time.Now().Add(10 * time.Second); len(descendants(c.cmd.Process.Pid)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("backends do not die")
		}
	}
}

// descendants are the children of pid, which of a postmaster are all its processes.
func descendants(pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var pids []int
	for _, field := range strings.Fields(string(text)) {
		child, err := strconv.Atoi(field)
		if err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// killTree stops the postmaster first, so that it starts nothing new, and then kills all.
func killTree(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	children := descendants(pid)
	for _, child := range children {
		_ = syscall.Kill(child, syscall.SIGKILL)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

func (c *cluster) dial(database string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return pgx.Connect(ctx, fmt.Sprintf("host=%s port=5432 user=postgres dbname=%s", c.sockets, database))
}

func (c *cluster) connect(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	conn, err := c.dial(database)
	if err != nil {
		t.Fatalf("%v\n%s", err, c.log)
	}
	return conn
}

func closeConn(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if err := conn.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func exe(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := conn.Exec(context.Background(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(context.Background(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// in runs statements in a session of their own.
func (c *cluster) in(t *testing.T, database string, statements ...string) {
	t.Helper()
	conn := c.connect(t, database)
	defer closeConn(t, conn)
	exe(t, conn, statements...)
}
