package settle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// lastLines is how many lines of a failed program an AgentError carries.
const lastLines = 20

// tool returns the path of one of the image's Postgres programs.
func tool(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fail(contract.AgentErrFailed, "use an image of Postgres, such as postgres:17",
			"the image has no %s in its PATH", name)
	}
	return path, nil
}

// environment is that of every child. The container's own is not passed on: PG*
// variables would change what a program connects to, and LD_PRELOAD what it does.
func environment(home string, extra ...string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + home}
	if path, ok := os.LookupEnv("LD_LIBRARY_PATH"); ok {
		env = append(env, "LD_LIBRARY_PATH="+path)
	}
	return append(env, extra...)
}

// output runs a short-lived Postgres program as the account and returns what it
// prints. A failure is an AgentError with the program's last lines.
func (a account) output(ctx context.Context, name string, args ...string) (string, error) {
	path, err := tool(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = environment("/")
	cmd.Dir = "/"
	cmd.SysProcAttr = a.attributes(syscall.SIGKILL)
	cmd.WaitDelay = 5 * time.Second
	log := newTail(lastLines)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, log
	if err := cmd.Run(); err != nil {
		e := fail(contract.AgentErrFailed, "", "%s failed: %s", name, exitText(err))
		e.Log = log.lines()
		return "", e
	}
	return out.String(), nil
}

var versionNumber = pattern(`\(PostgreSQL\) (\d+)`)

// imageMajor is the major version of a Postgres program of the image.
func imageMajor(ctx context.Context, a account, name string) (int, error) {
	out, err := a.output(ctx, name, "--version")
	if err != nil {
		return 0, err
	}
	m := versionNumber().FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%s --version says %q", name, strings.TrimSpace(out))
	}
	return strconv.Atoi(m[1])
}

// exitText says how a program ended.
func exitText(err error) string {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err.Error()
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return "killed by signal " + strconv.Itoa(int(status.Signal())) + " (" + status.Signal().String() + ")"
	}
	return "exit status " + strconv.Itoa(exit.ExitCode())
}

// tail is a writer that keeps the last complete lines, and the unfinished one.
type tail struct {
	mu   sync.Mutex
	max  int
	kept []string
	part []byte
}

func newTail(limit int) *tail { return &tail{max: limit} }

// maxLine bounds a line that is kept: a server logs whole statements.
const maxLine = 2000

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.part = append(t.part, p...)
	for {
		end := bytes.IndexByte(t.part, '\n')
		if end < 0 {
			break
		}
		t.add(string(t.part[:end]))
		t.part = t.part[end+1:]
	}
	if len(t.part) > maxLine {
		t.part = t.part[:maxLine]
	}
	return len(p), nil
}

func (t *tail) add(line string) {
	line = strings.TrimRight(line, "\r ")
	if line == "" {
		return
	}
	if len(line) > maxLine {
		line = line[:maxLine]
	}
	t.kept = append(t.kept, line)
	if len(t.kept) > t.max {
		t.kept = t.kept[len(t.kept)-t.max:]
	}
}

func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := append([]string(nil), t.kept...)
	if len(t.part) > 0 {
		lines = append(lines, string(t.part))
	}
	return lines
}
