//go:build e2e

package faults

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// TestAnEngineWithUserNamespaces is refused in one line by setup, which makes nothing in
// it.
func TestAnEngineWithUserNamespaces(t *testing.T) {
	program, err := filepath.Abs("../../build/docker-pgbranch")
	assert.NilError(t, err)
	e, err := New()
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, e.Close()) })
	// The remapped root must reach the data root.
	assert.NilError(t, os.Chmod(e.Dir, 0o711))
	// The user's subordinate ids are this engine's alone: in a mount namespace of its own.
	ids := filepath.Join(e.Dir, "subid")
	assert.NilError(t, os.WriteFile(ids, []byte("nobody:100000:65536\n"), 0o644))
	e.Wrap = []string{"unshare", "--mount", "--propagation", "private", "sh", "-ec",
		`for f in subuid subgid; do [ -e /etc/$f ] || : >/etc/$f; mount --bind "$0" /etc/$f; done; exec "$@"`, ids}
	e.Args = []string{"--userns-remap=nobody:nogroup"}
	assert.NilError(t, e.Boot())
	options, err := e.Try("info", "-f", "{{.SecurityOptions}}")
	assert.NilError(t, err)
	assert.Check(t, is.Contains(options, "name=userns"))

	setup := exec.Command(program, "pgbranch", "setup")
	setup.Env = append(os.Environ(), "DOCKER_HOST="+e.Host(), "DOCKER_CONTEXT=")
	out, err := setup.CombinedOutput()
	var exit *exec.ExitError
	assert.Assert(t, errors.As(err, &exit) && exit.ExitCode() == 5, "%v: %s", err, out)
	line, hint, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	t.Logf("%s\n%s", line, hint)
	assert.Check(t, is.Contains(line, "docker engine: remaps user namespaces"))
	assert.Check(t, is.Contains(hint, "without userns-remap"))
	for _, args := range [][]string{{"plugin", "ls", "-q"}, {"images", "-q"}, {"ps", "-aq"}, {"volume", "ls", "-q"}} {
		left, err := e.Try(args...)
		assert.NilError(t, err)
		assert.Equal(t, left, "", "docker %v", args)
	}
}
