//go:build e2e

package settle

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Everything that these tests make in the engine bears this prefix.
const prefix = "settletest-"

// password has what a password file escapes, and is found nowhere by chance.
const password = `p:w\d "é'xK7zQneedle`

// passwordCore is the part of it that no escaping changes.
const passwordCore = "xK7zQneedle"

// major is one Postgres version under test.
type major struct {
	number  int
	image   string
	dataDir string // as Manifest.DataDir
	volume  string // where the volume is mounted
}

var majors = []major{
	{15, "postgres:15", ".", "/var/lib/postgresql/data"},
	{17, "postgres:17", ".", "/var/lib/postgresql/data"},
	{18, "postgres:18", "18/docker", "/var/lib/postgresql"},
}

var pg17 = majors[1]

func (m major) pgdata() string { return filepath.Join(m.volume, m.dataDir) }

// agentBinary is the built agent, static as it is in a volume.
var agentBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "settletest")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "pgoverlay")
	cmd := exec.Command("go", "build", "-o", path, "../cmd/pgoverlay")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	clear := func() {
		list := exec.Command("sh", "-c", "docker ps -aq --filter name=^"+prefix+" | xargs -r docker rm -fv; "+
			"docker network ls -q --filter name=^"+prefix+" | xargs -r docker network rm")
		_ = list.Run()
	}
	clear()
	code := m.Run()
	dropShared()
	clear()
	if path, err := agentBinary(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// docker runs docker, which must succeed, and gives its output.
func docker(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %s\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimRight(string(out), "\n")
}

// network is the bridge that source and agents share.
var network = sync.OnceValues(func() (string, error) {
	name := prefix + "net"
	out, err := exec.Command("docker", "network", "create", name).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "already exists") {
		return "", fmt.Errorf("docker network create: %s", out)
	}
	return name, nil
})

// source is a server to copy.
type sourceServer struct {
	major major
	name  string
}

// startSource starts a server that runs init as SQL when it is new, and has these
// arguments.
func startSource(t *testing.T, m major, name, init string, args ...string) *sourceServer {
	t.Helper()
	s := runSource(t, m, name, init, nil, args...)
	t.Cleanup(func() { docker(t, "rm", "-fv", s.name) })
	return s
}

// runSource is startSource for a server that outlives the test. Its WAL lies outside
// of its data directory.
func runSource(t testing.TB, m major, name, init string, env []string, args ...string) *sourceServer {
	t.Helper()
	net, err := network()
	assert.NilError(t, err)
	s := &sourceServer{m, prefix + name + "-" + fmt.Sprint(m.number)}
	run := []string{"run", "-d", "--name", s.name, "--network", net}
	for _, e := range append(env, "POSTGRES_PASSWORD=x", "POSTGRES_INITDB_WALDIR=/wal") {
		run = append(run, "-e", e)
	}
	docker(t, slices.Concat(run, []string{m.image}, args)...)
	s.await(t)
	docker(t, "exec", s.name, "bash", "-c", `mkdir -p /ts && chown postgres: /ts && echo 'host replication all all scram-sha-256' >>"$PGDATA/pg_hba.conf"`)
	s.sql(t, "postgres", init)
	s.sql(t, "postgres", "SELECT pg_reload_conf()")
	return s
}

// await waits until the server answers over TCP: the one that runs during initdb
// does not listen there.
func (s *sourceServer) await(t testing.TB) {
	t.Helper()
	for range 300 {
		if exec.Command("docker", "exec", s.name, "pg_isready", "-q", "-h", "127.0.0.1").Run() == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("%s does not start:\n%s", s.name, docker(t, "logs", s.name))
}

// restart restarts the server, so that settings of its files hold.
func (s *sourceServer) restart(t testing.TB) {
	t.Helper()
	docker(t, "restart", s.name)
	s.await(t)
}

// sql runs statements as the superuser and gives the rows, unaligned.
func (s *sourceServer) sql(t testing.TB, database, statements string) string {
	t.Helper()
	return psql(t, s.name, database, statements)
}

func psql(t testing.TB, container, database, statements string) string {
	t.Helper()
	cmd := exec.Command("docker", "exec", "-i", container, "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database)
	cmd.Stdin = strings.NewReader(statements)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("psql in %s: %s\n%s", container, err, out)
	}
	return strings.TrimRight(string(out), "\n")
}

func (s *sourceServer) url(user, database string) string {
	return "postgres://" + user + "@" + s.name + "/" + database
}

func (s *sourceServer) asApp() contract.Source {
	return contract.Source{URL: s.url("app", "shop"), Password: password}
}

// call is one run of the agent in a container.
type call struct {
	verb    string
	request any
	image   string
	network string
	stage   string   // host directory
	mounts  []string // more -v options
	// during is called with each event as it arrives, before the next is read.
	during func(c *running, ev contract.AgentEvent)
}

// running is a call that has begun.
type running struct {
	name  string
	stdin io.Closer
}

// outcome is what a call left.
type outcome struct {
	events []contract.AgentEvent
	last   contract.AgentEvent
	raw    string // all that the agent printed
	code   int
	took   time.Duration
}

var calls atomic.Int64

func (c call) run(t testing.TB) outcome {
	t.Helper()
	agent, err := agentBinary()
	assert.NilError(t, err)
	r := &running{name: fmt.Sprintf("%sagent-%d", prefix, calls.Add(1))}
	args := []string{"run", "--rm", "-i", "--name", r.name, "-v", agent + ":/pgoverlay:ro", "--entrypoint", "/pgoverlay"}
	if c.network != "" {
		args = append(args, "--network", c.network)
	}
	if c.stage != "" {
		args = append(args, "-v", c.stage+":/stage")
	}
	for _, m := range c.mounts {
		args = append(args, "-v", m)
	}
	cmd := exec.Command("docker", append(args, c.image, "agent", c.verb)...)
	stdin, err := cmd.StdinPipe()
	assert.NilError(t, err)
	stdout, err := cmd.StdoutPipe()
	assert.NilError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	r.stdin = stdin
	began := time.Now()
	assert.NilError(t, cmd.Start())
	assert.NilError(t, json.NewEncoder(stdin).Encode(c.request))

	var o outcome
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		o.raw += lines.Text() + "\n"
		var ev contract.AgentEvent
		assert.NilError(t, json.Unmarshal(lines.Bytes(), &ev), lines.Text())
		o.events, o.last = append(o.events, ev), ev
		if c.during != nil {
			c.during(r, ev)
		}
	}
	_ = cmd.Wait()
	stdin.Close()
	o.code, o.took = cmd.ProcessState.ExitCode(), time.Since(began)
	o.raw += stderr.String()
	assert.Assert(t, !strings.Contains(o.raw, passwordCore), "the password was printed:\n%s", o.raw)
	return o
}

func (o outcome) ok(t testing.TB) contract.AgentEvent {
	t.Helper()
	if o.code != 0 || o.last.Error != nil {
		t.Fatalf("the agent failed with %d:\n%s", o.code, o.raw)
	}
	return o.last
}

// failed gives the error of a call that must fail.
func (o outcome) failed(t testing.TB) *contract.AgentError {
	t.Helper()
	if o.code == 0 || o.last.Error == nil {
		t.Fatalf("the agent did not fail:\n%s", o.raw)
	}
	return o.last.Error
}

func (s *sourceServer) probe(t testing.TB, src contract.Source) outcome {
	t.Helper()
	net, err := network()
	assert.NilError(t, err)
	return call{verb: contract.AgentProbe, request: contract.ProbeRequest{Source: src}, image: s.major.image, network: net}.run(t)
}

func (s *sourceServer) baseBackup(stage string, src contract.Source, probe *contract.Probe) call {
	net, _ := network()
	return call{
		verb: contract.AgentBaseBackup, image: s.major.image, network: net, stage: stage,
		request: contract.BaseBackupRequest{
			Source: src, Stage: "/stage", DataDir: s.major.dataDir, Major: s.major.number, Tablespaces: probe.Tablespaces,
		},
	}
}

func (s *sourceServer) settle(stage string, probe *contract.Probe, backup *contract.BaseBackupResult) call {
	return call{
		verb: contract.AgentSettle, image: s.major.image, network: "none", stage: stage,
		request: contract.SettleRequest{
			Stage: "/stage", DataDir: s.major.dataDir, Settings: probe.Settings, Given: probe.Given, Skipped: backup.Skipped,
			Manifest: contract.Manifest{
				Image: s.major.image, MountPath: s.major.volume, User: "app", Database: "shop", Superuser: probe.Superuser,
				Source: "db/shop", SourceTime: probe.Time, SourceLSN: backup.StartLSN,
			},
		},
	}
}

// staged makes a copy of the source, ready to be settled.
func (s *sourceServer) staged(t testing.TB) (stage string, probe *contract.Probe, backup *contract.BaseBackupResult) {
	t.Helper()
	stage = t.TempDir()
	probe = s.probe(t, s.asApp()).ok(t).Probe
	backup = s.baseBackup(stage, s.asApp(), probe).run(t).ok(t).BaseBackup
	return stage, probe, backup
}

// startBranch starts the image's own server on a copy of the seed's root.
func startBranch(t testing.TB, m major, stage, name string, options ...string) (container, volume string) {
	t.Helper()
	agent, err := agentBinary()
	assert.NilError(t, err)
	volume = filepath.Join(t.TempDir(), "volume")
	out, err := exec.Command("cp", "-a", "--sparse=always", filepath.Join(stage, contract.StagingRoot), volume).CombinedOutput()
	assert.NilError(t, err, string(out))
	container = prefix + name + "-" + fmt.Sprint(m.number)
	args := append([]string{"run", "-d", "--name", container, "-v", volume + ":" + m.volume, "-v", agent + ":/pgoverlay:ro"}, options...)
	docker(t, append(args, m.image)...)
	t.Cleanup(func() { _ = exec.Command("docker", "rm", "-fv", container).Run() })
	return container, volume
}

// ready runs `agent ready` in a branch.
func ready(container string, args ...string) (contract.AgentEvent, error) {
	var ev contract.AgentEvent
	out, err := exec.Command("docker", append([]string{"exec", container, "/pgoverlay", "agent", "ready"}, args...)...).Output()
	_ = json.Unmarshal(out, &ev)
	return ev, err
}
