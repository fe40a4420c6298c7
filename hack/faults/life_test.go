//go:build e2e

package faults

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// mountsOf gives the lines of a process's mount table that match.
func mountsOf(t *testing.T, pid string, pattern string) []string {
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

func TestRefusalsLeaveNothing(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		name string
		opts []string
		want string
	}{
		{"vx", nil, "never an empty volume"},
		{"vx", []string{"seed=shp"}, "seeds here: " + seedName},
		{"vx", []string{"sed=shop"}, "valid options:"},
		{"vx", []string{"seed=" + seedName, "branch=by"}, "exclude each other"},
		{"..", []string{"seed=" + seedName}, "is not allowed"},
		{"a/b", []string{"seed=" + seedName}, "is not allowed"},
		{"a b", []string{"seed=" + seedName}, "is not allowed"},
		{"naïve", []string{"seed=" + seedName}, "is not allowed"},
		{"x:y", []string{"seed=" + seedName}, "is not allowed"},
		{"new\nline", []string{"seed=" + seedName}, "is not allowed"},
		{strings.Repeat("a", 200), []string{"seed=" + seedName}, "is not allowed"},
		{"vx", []string{"staging=" + seedName}, "exists already"},
		{"vx", []string{"op=seal", "volume=shop"}, "does not exist"},
	} {
		assert.Check(t, is.Contains(r.fails(createArgs(c.name, c.opts...)...), c.want))
	}
	assert.DeepEqual(t, r.Volumes(), []string{sealed})
	assert.Check(t, is.Contains(r.fails("run", "--rm", "--network", "none", "-v", sealed+":/x", "--entrypoint", "true", testImage), "make a branch of it"))
	assert.Check(t, is.Contains(r.fails("run", "--rm", "--network", "none", "--volume-driver", "pgoverlay", "-v", "unknown:/x", "--entrypoint", "true", testImage), "never an empty volume"))
}

// TestLifeOfABranch takes one branch, with one stock server, through what Docker does.
func TestLifeOfABranch(t *testing.T) {
	r := newRig(t)
	assert.Equal(t, r.docker("plugin", "inspect", "-f", "{{json .Config.Linux.Capabilities}} {{.Config.Network.Type}}", r.Name), `["CAP_SYS_ADMIN"] `)
	assert.Equal(t, r.status(sealed).Kind, contract.KindSeed)
	branch := fresh("b")
	r.create(branch, "seed="+seedName, "ttl=24h")
	assert.Check(t, r.status(branch).OwnedBytes <= 256<<10, "%d", r.status(branch).OwnedBytes)
	container := r.serve(branch)
	assert.Equal(t, r.query(container, "select count(*) from t"), "50000")
	s := r.status(branch)
	assert.Check(t, s.Mounted && s.Seed == seedName && s.Generation == 1 && s.ExpiresAt != nil)
	assert.Equal(t, r.Refs()[branch], 1)
	assert.Equal(t, r.docker("inspect", "-f", "{{.HostConfig.Privileged}} {{.HostConfig.CapAdd}}", container), "false []")

	pid := strconv.Itoa(r.PID())
	assert.Equal(t, len(mountsOf(t, pid, ` - overlay pgoverlay `)), 1)
	assert.Equal(t, len(mountsOf(t, pid, ` /data/`)), 0)
	assert.Equal(t, len(mountsOf(t, pid, ` /data [^-]*shared:`)), 0, "the data mount propagates nowhere")

	t.Run("docker cp does not unmount under the server", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "hello")
		assert.NilError(t, os.WriteFile(file, []byte("hello"), 0o600))
		r.docker("cp", file, container+":/var/lib/postgresql/data/hello")
		r.docker("cp", container+":/var/lib/postgresql/data/hello", file+"2")
		data, err := os.ReadFile(file + "2")
		assert.NilError(t, err)
		assert.Equal(t, string(data), "hello")
		assert.Equal(t, r.Refs()[branch], 1)
		assert.Equal(t, r.query(container, "select count(*) from t"), "50000")
	})

	t.Run("a reset of a running branch harms nothing", func(t *testing.T) {
		assert.Check(t, is.Contains(r.fails(createArgs(fresh("tk"), "op=reset", "volume="+branch)...), "a container is using it"))
		assert.Check(t, is.Contains(r.fails(createArgs(fresh("b"), "branch="+branch)...), "only of one at rest"))
		r.docker("cp", container+":/var/lib/postgresql/data/PG_VERSION", filepath.Join(t.TempDir(), "x"))
		r.check()
	})

	t.Run("restarted", func(t *testing.T) {
		r.query(container, "update t set v = 'x' where id = 7")
		r.docker("restart", container)
		r.ready(container)
		assert.Equal(t, r.Refs()[branch], 1)
		assert.Equal(t, r.query(container, "select v from t where id = 7"), "x")
	})

	t.Run("two containers, ending in either order", func(t *testing.T) {
		second := r.hold(branch)
		r.docker("exec", second, "test", "-f", "/v/PG_VERSION")
		assert.Equal(t, r.Refs()[branch], 2)
		r.docker("stop", container)
		assert.Check(t, is.Contains(r.fails(createArgs(fresh("tk"), "op=reset", "volume="+branch)...), "a container is using it"))
		r.docker("exec", second, "test", "-f", "/v/PG_VERSION")
		r.docker("rm", "-f", second)
		r.check()
		second = r.hold(branch)
		r.docker("start", container)
		r.ready(container)
		r.docker("rm", "-f", second)
		assert.Equal(t, r.Refs()[branch], 1)
		assert.Equal(t, r.query(container, "select v from t where id = 7"), "x")
		r.check()
	})

	t.Run("a seed with a branch stays", func(t *testing.T) {
		assert.Check(t, is.Contains(r.fails("volume", "rm", sealed), "a branch stands on it: "+branch))
	})

	t.Run("disabled by force and enabled again", func(t *testing.T) {
		r.docker("plugin", "disable", "-f", r.Name)
		assert.Equal(t, r.query(container, "select count(*) from t"), "50000")
		r.docker("plugin", "enable", r.Name)
		assert.Equal(t, r.Refs()[branch], 0)
		assert.Check(t, is.Contains(r.fails("run", "--rm", "--network", "none", "-v", branch+":/x", "--entrypoint", "true", testImage), "still hold it"))
		assert.Check(t, is.Contains(r.fails(createArgs(fresh("tk"), "op=reset", "volume="+branch)...), "a container is using it"))
		r.docker("restart", container)
		r.ready(container)
		assert.Equal(t, r.Refs()[branch], 1)
		assert.Equal(t, r.query(container, "select v from t where id = 7"), "x")
		r.check()
	})

	t.Run("reset", func(t *testing.T) {
		r.docker("stop", container)
		r.create(fresh("tk"), "op=reset", "volume="+branch)
		r.docker("start", container)
		r.ready(container)
		assert.Equal(t, r.query(container, "select left(v, 1) from t where id = 7"), "H")
	})

	t.Run("a branch of a branch", func(t *testing.T) {
		r.query(container, "update t set v = 'parent' where id = 7")
		r.docker("stop", container)
		child := fresh("b")
		r.create(child, "branch="+branch)
		second := r.serve(child)
		r.docker("start", container)
		r.ready(container)
		for _, c := range []string{container, second} {
			assert.Equal(t, r.query(c, "select v from t where id = 7"), "parent")
		}
		r.docker("rm", "-f", "-v", second)
		r.docker("volume", "rm", child)
	})

	t.Run("the store's id", func(t *testing.T) {
		ticket := fresh("tk")
		r.create(ticket, "op=status")
		id := r.status(ticket).Plugin.StoreID
		r.docker("volume", "rm", ticket)
		r.docker("rm", "-f", "-v", container)
		r.docker("plugin", "disable", "-f", r.Name)
		r.docker("plugin", "set", r.Name, contract.EnvStoreID+"=other")
		r.fails("plugin", "enable", r.Name)
		r.docker("plugin", "set", r.Name, contract.EnvStoreID+"="+id)
		r.docker("plugin", "enable", r.Name)
		assert.Equal(t, r.status(branch).Seed, seedName)
	})
}

// TestAHalfFailedStartLeavesNothing has a container that fails after its volume was
// mounted: at its entrypoint, at another volume, at a port.
func TestAHalfFailedStartLeavesNothing(t *testing.T) {
	r := newRig(t)
	branch := r.branch()
	for _, args := range [][]string{
		{"--entrypoint", "/no/such"},
		{"-v", sealed + ":/other", "--entrypoint", "true"},
		{"--mount", "type=volume,src=" + branch + ",dst=/sub,volume-subpath=no/such", "--entrypoint", "true"},
		{"--device", "/dev/no-such", "--entrypoint", "true"},
	} {
		_, err := r.Try(append(append([]string{"run", "--network", "none", "-v", branch + ":/var/lib/postgresql/data"}, args...), testImage)...)
		assert.Assert(t, err != nil, "%v", args)
		r.check()
		assert.Equal(t, r.Refs()[branch], 0, "%v", args)
	}
	r.docker("rm", "-f", strings.Fields(r.docker("ps", "-aq") + " none")[0])
	for _, id := range strings.Fields(r.docker("ps", "-aq")) {
		r.docker("rm", "-f", id)
	}
	r.docker("volume", "rm", branch)
}

// TestAnAnonymousVolumeIsAThrowAwayBranch needs no verb of ours.
func TestAnAnonymousVolumeIsAThrowAwayBranch(t *testing.T) {
	r := newRig(t)
	out := r.docker("run", "--rm", "--network", "none", "--entrypoint", "cat",
		"--mount", "type=volume,dst=/x,volume-driver="+r.Name+",volume-opt=seed="+seedName, testImage, "/x/PG_VERSION")
	assert.Equal(t, out, "17")
	assert.DeepEqual(t, r.Volumes(), []string{sealed})
}
