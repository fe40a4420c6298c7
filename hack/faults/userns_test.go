//go:build e2e

package faults

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// subordinateIDs gives user nobody ids of its own, for this engine alone: by a command that
// runs another in a mount namespace of its own.
func subordinateIDs(t *testing.T, e *Engine) []string {
	t.Helper()
	ids := filepath.Join(e.Dir, "subid")
	assert.NilError(t, os.WriteFile(ids, []byte("nobody:100000:65536\n"), 0o644))
	return []string{"unshare", "--mount", "--propagation", "private", "sh", "-ec",
		`for f in subuid subgid; do [ -e /etc/$f ] || : >/etc/$f; mount --bind "$0" /etc/$f; done; exec "$@"`, ids}
}

// requireUnfit: setup refuses the engine in one line with a hint, and makes nothing in it.
func requireUnfit(t *testing.T, e *Engine, option, cause, hint string) {
	t.Helper()
	program, err := filepath.Abs("../../build/docker-pgbranch")
	assert.NilError(t, err)
	options, err := e.Try("info", "-f", "{{.SecurityOptions}}")
	assert.NilError(t, err)
	assert.Check(t, is.Contains(options, option))

	setup := exec.Command(program, "pgbranch", "setup")
	setup.Env = append(os.Environ(), "DOCKER_HOST="+e.Host(), "DOCKER_CONTEXT=")
	out, err := setup.CombinedOutput()
	var exit *exec.ExitError
	assert.Assert(t, errors.As(err, &exit) && exit.ExitCode() == 5, "%v: %s", err, out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	t.Logf("%q", lines)
	assert.Assert(t, is.Len(lines, 2))
	assert.Check(t, is.Contains(lines[0], cause))
	assert.Check(t, is.Contains(lines[1], hint))
	for _, args := range [][]string{{"plugin", "ls", "-q"}, {"images", "-q"}, {"ps", "-aq"}, {"volume", "ls", "-q"}} {
		left, err := e.Try(args...)
		assert.NilError(t, err)
		assert.Equal(t, left, "", "docker %v", args)
	}
}

func TestAnEngineWithUserNamespaces(t *testing.T) {
	e, err := New()
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, e.Close()) })
	// The remapped root must reach the data root.
	assert.NilError(t, os.Chmod(e.Dir, 0o711))
	e.Wrap = subordinateIDs(t, e)
	e.Args = []string{"--userns-remap=nobody:nogroup"}
	assert.NilError(t, e.Boot())
	requireUnfit(t, e, "name=userns", "docker engine: remaps user namespaces", "without userns-remap")
}

// TestAnEngineWithoutRoot has a rootless one, as dockerd-rootless.sh starts one, but in a network namespace that is
// there already, as it needs no network.
func TestAnEngineWithoutRoot(t *testing.T) {
	e, err := New()
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, e.Close()) })
	nobody, err := user.Lookup("nobody")
	assert.NilError(t, err)
	uid, err := strconv.Atoi(nobody.Uid)
	assert.NilError(t, err)
	for _, dir := range []string{e.Dir, e.run} {
		assert.NilError(t, os.Chown(dir, uid, -1))
	}
	assert.NilError(t, e.serve(append(subordinateIDs(t, e),
		"setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "env", "HOME="+e.Dir, "XDG_RUNTIME_DIR="+e.run,
		"rootlesskit", "--state-dir="+filepath.Join(e.run, "kit"), "--net=host", "--copy-up=/etc", "--copy-up=/run", "--propagation=rslave",
		// The folders of the engine beside it (dockerd-rootless.sh clears them, too).
		"sh", "-ec", `rm -f /run/docker /run/containerd /run/xtables.lock; exec "$@"`, "sh",
		"dockerd", "--rootless", "--storage-driver=vfs", "--host="+e.Host(), "--data-root="+e.Root(), "--exec-root="+filepath.Join(e.run, "exec"),
		"--pidfile=", "--bridge=none", "--iptables=false", "--ip6tables=false")))
	requireUnfit(t, e, "name=rootless", "docker engine: runs rootless", "use an engine that runs as root")
}
