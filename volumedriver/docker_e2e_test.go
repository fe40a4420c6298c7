//go:build e2e

package volumedriver

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// The test of this file runs the plugin inside the Engine that docker talks to, under
// a name and with a data root of its own. It needs root, and the image below.

const testImage = "postgres:17"

// pluginRig is one installed plugin.
type pluginRig struct {
	t    *testing.T
	name string
	// data is the source of the plugin's data mount.
	data string
}

// docker runs docker and gives its output without the final newline.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tryDocker(args...)
	assert.NilError(t, err)
	return out
}

func tryDocker(args ...string) (string, error) {
	out, err := exec.Command("docker", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSuffix(string(out), "\n"), err
}

// dockerFails runs docker and gives the text of its failure.
func dockerFails(t *testing.T, args ...string) string {
	t.Helper()
	_, err := tryDocker(args...)
	assert.Assert(t, err != nil, "docker %v succeeds", args)
	return err.Error()
}

// installPlugin builds the plugin and installs it, and removes at the end all that
// the test made with it.
func installPlugin(t *testing.T) *pluginRig {
	t.Helper()
	assert.Equal(t, os.Geteuid(), 0, "this test signals the plugin: run it as root")
	docker(t, "image", "inspect", testImage)
	dir := t.TempDir()
	assert.NilError(t, os.Mkdir(filepath.Join(dir, "rootfs"), 0o755))
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "rootfs", "pgoverlay"), "../cmd/pgoverlay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	assert.NilError(t, err, "%s", out)
	config, err := os.ReadFile("../config.json")
	assert.NilError(t, err)
	assert.NilError(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644))

	r := &pluginRig{t: t, name: "pgoverlay-e2e-" + newID(), data: t.TempDir()}
	docker(t, "plugin", "create", r.name, dir)
	t.Cleanup(r.uninstall)
	docker(t, "plugin", "set", r.name, "data.source="+r.data)
	docker(t, "plugin", "enable", r.name)
	return r
}

func (r *pluginRig) uninstall() {
	out, _ := tryDocker("ps", "-aq", "--filter", "label="+r.name)
	for _, id := range strings.Fields(out) {
		_, _ = tryDocker("rm", "-f", "-v", id)
	}
	_, _ = tryDocker("plugin", "enable", r.name)
	for range 2 { // branches first, then seeds
		out, _ = tryDocker("volume", "ls", "-q", "--filter", "driver="+r.name+":latest")
		for _, name := range strings.Fields(out) {
			_, _ = tryDocker("volume", "rm", name)
		}
	}
	_, _ = tryDocker("plugin", "disable", "-f", r.name)
	if _, err := tryDocker("plugin", "rm", "-f", r.name); err != nil {
		r.t.Error(err)
	}
}

// propagated is where the host has the plugin's mounts.
func (r *pluginRig) propagated() string {
	r.t.Helper()
	return regexp.QuoteMeta(docker(r.t, "plugin", "inspect", "-f", "{{.ID}}", r.name) + "/propagated-mount")
}

// pid is the plugin's process.
func (r *pluginRig) pid() int {
	r.t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	assert.NilError(r.t, err)
	for _, dir := range dirs {
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if string(cmdline) != "/pgoverlay\x00serve\x00" {
			continue
		}
		if mounts, _ := os.ReadFile(filepath.Join(dir, "mountinfo")); strings.Contains(string(mounts), r.data) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			assert.NilError(r.t, err)
			return pid
		}
	}
	return 0
}

// mounts gives the lines of a process's mount table that match.
func mounts(t *testing.T, pid string, pattern string) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	assert.NilError(t, err)
	var found []string
	re := regexp.MustCompile(pattern)
	for line := range strings.Lines(string(data)) {
		if re.MatchString(line) {
			found = append(found, line)
		}
	}
	return found
}

func (r *pluginRig) create(name string, opts ...string) {
	r.t.Helper()
	docker(r.t, append([]string{"volume", "create", "-d", r.name, name}, flags(opts)...)...)
}

func flags(opts []string) []string {
	var args []string
	for _, o := range opts {
		args = append(args, "-o", o)
	}
	return args
}

func (r *pluginRig) status(name string) contract.Status {
	r.t.Helper()
	var s contract.Status
	assert.NilError(r.t, json.Unmarshal([]byte(docker(r.t, "volume", "inspect", "-f", "{{json .Status}}", name)), &s))
	return s
}

// settleScript makes a settled cluster in a staging volume, with a table of 50,000 rows.
const settleScript = `set -e
D=/stage/root; bin=$(echo /usr/lib/postgresql/*/bin); export PATH=$bin:$PATH
chown postgres:postgres $D; chmod 700 $D
su postgres -s /bin/sh -c "set -e; export PATH=$PATH
initdb -D $D -A trust >/dev/null
pg_ctl -D $D -w -o '-c listen_addresses= -k /tmp' start >/dev/null
psql -q -h /tmp -c 'create table t as select g id, repeat(chr(65+g%26),100) v from generate_series(1,50000) g' -c 'vacuum freeze' -c checkpoint -c 'select pg_switch_wal()' >/dev/null
pg_ctl -D $D -w -m fast stop >/dev/null"
cd $D
head=$(pg_controldata . | sed -n 's/.*REDO WAL file: *//p')
for f in pg_wal/0*; do [ $f = pg_wal/$head ] || rm $f; done
truncate -s 64K pg_wal/$head; truncate -s 16M pg_wal/$head
cat >/stage/manifest.json <<EOF
{"format":1,"major":17,"mountPath":"/var/lib/postgresql/data","dataDir":".","uid":$(id -u postgres),"gid":$(id -g postgres),
 "user":"postgres","database":"postgres","walHead":"pg_wal/$head",
 "systemIdentifier":"$(pg_controldata . | sed -n 's/Database system identifier: *//p')"}
EOF`

// seed makes a seed generation from a cluster made on the spot, through the engine alone.
func (r *pluginRig) seed(name string) string {
	r.t.Helper()
	staging, ticket := "staging-"+newID(), "ticket-"+newID()
	r.create(staging, "staging="+name, "generation=next")
	docker(r.t, "run", "--rm", "--label", r.name, "--network", "none", "--entrypoint", "bash",
		"-v", staging+":/stage", testImage, "-c", settleScript)
	r.create(ticket, "op=seal", "volume="+staging)
	sealed := r.status(ticket).SealedAs
	docker(r.t, "volume", "rm", ticket)
	return sealed
}

// start runs a branch's server, stock and unprivileged, and waits for its first answer.
func (r *pluginRig) start(container, branch string) {
	r.t.Helper()
	docker(r.t, "run", "-d", "--label", r.name, "--name", container, "-v", branch+":/var/lib/postgresql/data", testImage)
	r.t.Cleanup(func() { _, _ = tryDocker("rm", "-f", "-v", container) })
	r.wait(container)
}

func (r *pluginRig) wait(container string) {
	r.t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, err = tryDocker("exec", container, "psql", "-U", "postgres", "-Atc", "select 1"); err == nil {
			return
		}
	}
	r.t.Fatal(err)
}

func (r *pluginRig) query(container, sql string) string {
	r.t.Helper()
	return docker(r.t, "exec", container, "psql", "-U", "postgres", "-Atc", sql)
}

// refs gives how many mounts are counted, on disk, for the one branch that exists.
func (r *pluginRig) refs() int {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.data, "pgoverlay/branches/*/mounts.json"))
	assert.NilError(r.t, err)
	assert.Equal(r.t, len(files), 1)
	var m mountsMeta
	data, err := os.ReadFile(files[0])
	assert.NilError(r.t, err)
	assert.NilError(r.t, json.Unmarshal(data, &m))
	sum := 0
	for _, n := range m.Refs {
		sum += n
	}
	return sum
}

func TestInsideDocker(t *testing.T) {
	r := installPlugin(t)
	// Docker takes a volume's name for that of one driver only, so no other test may use it.
	seed := "shop-" + newID()
	assert.Equal(t, docker(t, "plugin", "inspect", "-f", "{{json .Config.Linux.Capabilities}} {{.Config.Network.Type}}", r.name), `["CAP_SYS_ADMIN"] `)
	assert.Equal(t, r.seed(seed), seed+"@1")
	seedRoot, err := filepath.Glob(filepath.Join(r.data, "pgoverlay/seeds/*/root"))
	assert.NilError(t, err)
	sum := treeSum(t, seedRoot[0])
	assert.Equal(t, r.status(seed+"@1").Kind, contract.KindSeed)
	container, branch := "c-"+newID(), "b-"+newID()

	t.Run("refusals leave nothing", func(t *testing.T) {
		for _, c := range []struct {
			name string
			opts []string
			want string
		}{
			{"vx", nil, "never an empty volume"},
			{"vx", []string{"seed=shp"}, "seeds here: " + seed},
			{"vx", []string{"sed=shop"}, "valid options:"},
			{"vx", []string{"seed=" + seed, "branch=by"}, "exclude each other"},
			{"..", []string{"seed=" + seed}, "is not allowed"},
			{"a/b", []string{"seed=" + seed}, "is not allowed"},
			{"a b", []string{"seed=" + seed}, "is not allowed"},
			{strings.Repeat("a", 200), []string{"seed=" + seed}, "is not allowed"},
			{"vx", []string{"staging=" + seed}, "exists already"},
			{"vx", []string{"op=seal", "volume=shop"}, "does not exist"},
		} {
			err := dockerFails(t, append([]string{"volume", "create", "-d", r.name, c.name}, flags(c.opts)...)...)
			assert.Check(t, is.Contains(err, c.want))
		}
		assert.Equal(t, docker(t, "volume", "ls", "-q", "--filter", "driver="+r.name+":latest"), seed+"@1")
		assert.Check(t, is.Contains(dockerFails(t, "run", "--rm", "--label", r.name, "-v", seed+"@1:/x", "--entrypoint", "true", testImage), "make a branch of it"))
	})

	t.Run("a stock container runs a branch", func(t *testing.T) {
		r.create(branch, "seed="+seed, "ttl=24h")
		assert.Check(t, r.status(branch).OwnedBytes <= 256<<10, "%d", r.status(branch).OwnedBytes)
		r.start(container, branch)
		assert.Equal(t, r.query(container, "select count(*) from t"), "50000")
		s := r.status(branch)
		assert.Check(t, s.Mounted && s.Seed == seed && s.Generation == 1 && s.ExpiresAt != nil)
		assert.Equal(t, r.refs(), 1)
		assert.Equal(t, docker(t, "inspect", "-f", "{{.HostConfig.Privileged}} {{.HostConfig.CapAdd}}", container), "false []")
	})

	t.Run("nothing is mounted where it should not be", func(t *testing.T) {
		pid := strconv.Itoa(r.pid())
		assert.Equal(t, len(mounts(t, pid, ` - overlay pgoverlay `)), 1)
		assert.Equal(t, len(mounts(t, pid, ` /data/`)), 0)
		assert.Equal(t, len(mounts(t, pid, ` /data [^-]*shared:`)), 0, "the data mount propagates nowhere")
		assert.Check(t, len(mounts(t, "self", r.propagated()+`/[0-9a-f]{16} `)) > 0)
	})

	t.Run("docker cp does not unmount under the server", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "hello")
		writeFile(t, file, "hello")
		docker(t, "cp", file, container+":/var/lib/postgresql/data/hello")
		docker(t, "cp", container+":/var/lib/postgresql/data/hello", file+"2")
		assert.Equal(t, readFile(t, file+"2"), "hello")
		assert.Equal(t, r.refs(), 1)
		assert.Equal(t, r.query(container, "select count(*) from t"), "50000")
	})

	t.Run("the plugin is killed", func(t *testing.T) {
		old := r.pid()
		assert.NilError(t, syscall.Kill(old, syscall.SIGKILL))
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if pid := r.pid(); pid != 0 && pid != old {
				break
			}
			assert.Assert(t, time.Now().Before(deadline), "dockerd does not start it again")
		}
		s := r.status(branch)
		assert.Check(t, s.Mounted, "the count survives")
		assert.Equal(t, r.refs(), 1)
		assert.Equal(t, r.query(container, "update t set v = 'x' where id = 7; select count(*) from t"), "UPDATE 1\n50000")
		docker(t, "restart", container)
		r.wait(container)
		assert.Equal(t, r.refs(), 1)
		assert.Equal(t, r.query(container, "select v from t where id = 7"), "x")
	})

	t.Run("a seed with a branch stays", func(t *testing.T) {
		assert.Check(t, is.Contains(dockerFails(t, "volume", "rm", seed+"@1"), "a branch stands on it: "+branch))
	})

	t.Run("disabled by force and enabled again", func(t *testing.T) {
		docker(t, "plugin", "disable", "-f", r.name)
		assert.Equal(t, r.query(container, "select count(*) from t"), "50000")
		docker(t, "plugin", "enable", r.name)
		assert.Equal(t, r.refs(), 0)
		err := dockerFails(t, "run", "--rm", "--label", r.name, "-v", branch+":/var/lib/postgresql/data", "--entrypoint", "true", testImage)
		assert.Check(t, is.Contains(err, "still hold it"))
		err = dockerFails(t, "volume", "create", "-d", r.name, "-o", "op=reset", "-o", "volume="+branch, "ticket-"+newID())
		assert.Check(t, is.Contains(err, "a container is using it"))
		docker(t, "restart", container)
		r.wait(container)
		assert.Equal(t, r.refs(), 1)
		assert.Equal(t, r.query(container, "select v from t where id = 7"), "x")
	})

	t.Run("a half-failed start leaves nothing", func(t *testing.T) {
		other := "b-" + newID()
		r.create(other, "seed="+seed)
		_, err := tryDocker("run", "--rm", "--label", r.name, "-v", other+":/var/lib/postgresql/data", "--entrypoint", "/no/such", testImage)
		assert.Assert(t, err != nil)
		docker(t, "volume", "rm", other)
	})

	t.Run("reset", func(t *testing.T) {
		docker(t, "stop", container)
		ticket := "ticket-" + newID()
		r.create(ticket, "op=reset", "volume="+branch)
		docker(t, "volume", "rm", ticket)
		docker(t, "start", container)
		r.wait(container)
		assert.Equal(t, r.query(container, "select left(v, 1) from t where id = 7"), "H")
	})

	t.Run("an anonymous volume is a throw-away branch", func(t *testing.T) {
		out := docker(t, "run", "--rm", "--label", r.name, "--entrypoint", "cat",
			"--mount", "type=volume,dst=/x,volume-driver="+r.name+",volume-opt=seed="+seed, testImage, "/x/PG_VERSION")
		assert.Equal(t, out, "17")
		assert.Equal(t, len(strings.Fields(docker(t, "volume", "ls", "-q", "--filter", "driver="+r.name+":latest"))), 2)
	})

	t.Run("a branch of a branch", func(t *testing.T) {
		r.query(container, "update t set v = 'parent' where id = 7")
		child := "b-" + newID()
		err := dockerFails(t, "volume", "create", "-d", r.name, "-o", "branch="+branch, child)
		assert.Check(t, is.Contains(err, "only of one at rest"))
		docker(t, "stop", container)
		r.create(child, "branch="+branch)
		r.start(container+"-child", child)
		docker(t, "start", container)
		r.wait(container)
		for _, c := range []string{container, container + "-child"} {
			assert.Equal(t, r.query(c, "select v from t where id = 7"), "parent")
			assert.Equal(t, r.query(c, "select count(*) from t"), "50000")
		}
		docker(t, "rm", "-f", "-v", container+"-child")
		docker(t, "volume", "rm", child)
	})

	t.Run("the store's id", func(t *testing.T) {
		ticket := "ticket-" + newID()
		r.create(ticket, "op=status")
		id := r.status(ticket).Plugin.StoreID
		docker(t, "volume", "rm", ticket)
		docker(t, "rm", "-f", "-v", container)
		docker(t, "plugin", "disable", "-f", r.name)
		docker(t, "plugin", "set", r.name, contract.EnvStoreID+"=other")
		dockerFails(t, "plugin", "enable", r.name)
		docker(t, "plugin", "set", r.name, contract.EnvStoreID+"="+id)
		docker(t, "plugin", "enable", r.name)
		assert.Equal(t, r.status(branch).Seed, seed)
	})

	docker(t, "volume", "rm", branch)
	assert.Equal(t, treeSum(t, seedRoot[0]), sum, "the sealed tree is what it was")
	docker(t, "volume", "rm", seed+"@1")
	assert.Equal(t, len(mounts(t, "self", r.propagated()+"/")), 0)
}
