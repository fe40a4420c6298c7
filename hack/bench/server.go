package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// server is a running Postgres of one variant.
type server struct {
	rig       *Rig
	variant   string
	branch    string
	container string
	port      string
	conn      *pgx.Conn
	// upper is where a branch's own files lie; of a plain volume the volume.
	upper string
}

// branchName is the one branch that a variant has at a time.
func branchName(variant string) string { return prefix + "branch-" + strings.ToLower(variant) }

// start brings a variant's server up on fresh data and times it to the first query
// answered over the published port.
func (r *Rig) start(variant, data string) (*server, time.Duration, error) {
	if isPlain(variant) {
		if _, err := r.plainVolume(variant, data, false); err != nil {
			return nil, 0, err
		}
	}
	if err := r.use(variant); err != nil {
		return nil, 0, err
	}
	seed, err := r.seed(data)
	if err != nil {
		return nil, 0, err
	}
	s := &server{rig: r, variant: variant, branch: branchName(variant), container: "pgbranch-" + branchName(variant),
		port: strconv.Itoa(20800 + int(variant[0]))}
	begin := time.Now()
	if isPlain(variant) {
		s.container = prefix + "server-" + strings.ToLower(variant)
		err = command("docker", "run", "-d", "--name", s.container, "-v", r.plainName(variant, data)+":/var/lib/postgresql/data",
			"-p", "127.0.0.1:"+s.port+":5432", image)
	} else {
		args := []string{"pgbranch", "create", s.branch, "--from", seed, "-p", s.port}
		if variant == Eager {
			args = append(args, "--cow", "off")
		}
		err = command("docker", args...)
	}
	if err != nil {
		return nil, 0, err
	}
	if err := s.reconnect(); err != nil {
		s.drop()
		return nil, 0, err
	}
	took := time.Since(begin)
	if err := s.locate(); err != nil {
		s.drop()
		return nil, 0, err
	}
	return s, took, nil
}

// locate finds the server's files on this machine.
func (s *server) locate() error {
	if !isPlain(s.variant) {
		dir, err := s.rig.onDisk("branches", s.branch)
		s.upper = filepath.Join(dir, "upper")
		return err
	}
	var err error
	s.upper, err = output("docker", "inspect", "-f", "{{range .Mounts}}{{.Source}}{{end}}", s.container)
	return err
}

// reconnect asks for the first answer every 5 ms.
func (s *server) reconnect() error {
	ctx := context.Background()
	url := "postgres://postgres:" + password + "@127.0.0.1:" + s.port + "/bench"
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			if _, err = conn.Exec(ctx, "SELECT 1"); err == nil {
				s.conn = conn
				return nil
			}
			_ = conn.Close(ctx)
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not answer: %w", s.container, err)
		}
	}
}

// exec runs statements, each by itself, and gives how long they took.
func (s *server) exec(statements ...string) (time.Duration, error) {
	begin := time.Now()
	for _, sql := range statements {
		if _, err := s.conn.Exec(context.Background(), sql); err != nil {
			return 0, fmt.Errorf("%s: %s: %w", s.container, sql, err)
		}
	}
	return time.Since(begin), nil
}

// drop removes the server; a plain volume's is stopped clean, so that the next start
// has nothing to recover.
func (s *server) drop() {
	if s.conn != nil {
		_ = s.conn.Close(context.Background())
	}
	if isPlain(s.variant) {
		_ = exec.Command("docker", "stop", s.container).Run()
		_ = exec.Command("docker", "rm", "-v", s.container).Run()
		return
	}
	_ = exec.Command("docker", "pgbranch", "rm", "-f", s.branch).Run()
}

// owned is what the server's files have allocated and share with nobody, in bytes, once
// everything dirty is written.
func (s *server) owned() (int64, error) {
	if err := s.flush(); err != nil {
		return 0, err
	}
	if isPlain(s.variant) {
		out, err := output("du", "-s", "--block-size=1", s.upper)
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(strings.Fields(out)[0], 10, 64)
	}
	out, err := output("docker", "pgbranch", "df", "--format", "json", s.branch)
	if err != nil {
		return 0, err
	}
	var sum int64
	for line := range strings.Lines(out) {
		var o struct{ OwnedBytes int64 }
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			return 0, err
		}
		sum += o.OwnedBytes
	}
	return sum, nil
}

// flush has all that is dirty on the server's file system written.
func (s *server) flush() error {
	f, err := os.Open(s.upper)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, errno := unix.Syscall(unix.SYS_SYNCFS, f.Fd(), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// written gives how many bytes the disk below the server's files has written since it
// was made, by its own counter.
func (s *server) written() (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(s.upper, &st); err != nil {
		return 0, err
	}
	major, minor := unix.Major(st.Dev), unix.Minor(st.Dev)
	if major == 0 {
		// btrfs gives each subvolume a number of its own; the mount's source is the disk.
		source, err := output("findmnt", "-n", "-o", "SOURCE", "-T", s.upper)
		if err != nil {
			return 0, err
		}
		if err := unix.Stat(source, &st); err != nil {
			return 0, err
		}
		major, minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", major, minor))
	if err != nil {
		return 0, err
	}
	// Documentation/block/stat.rst: the seventh is sectors of 512 bytes written.
	sectors, err := strconv.ParseInt(strings.Fields(string(raw))[6], 10, 64)
	return sectors * 512, err
}

var tpsRE = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)

// pgbench runs pgbench inside the server's container and gives transactions a second.
func (s *server) pgbench(length time.Duration, args ...string) (float64, error) {
	all := append([]string{"exec", s.container, "pgbench", "-n", "-U", "postgres", "-c", "2", "-j", "1",
		"-T", strconv.Itoa(int(length.Seconds()))}, args...)
	out, err := output("docker", append(all, "bench")...)
	if err != nil {
		return 0, err
	}
	m := tpsRE.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("pgbench says no tps: %s", out)
	}
	return strconv.ParseFloat(m[1], 64)
}

// dropCaches empties the machine's page cache.
func dropCaches() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0)
}
