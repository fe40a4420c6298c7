package settle

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// An image whose server is of another architecture, or static, must not be told to load
// the library: it would not start.
func TestWhatCannotLoadTheShim(t *testing.T) {
	write := func(name string, data []byte) string {
		path := filepath.Join(t.TempDir(), name)
		assert.NilError(t, os.WriteFile(path, data, 0o755))
		return path
	}
	dynamic := "/bin/sh"
	assert.Equal(t, cannotLoadInto(dynamic), "")
	assert.Equal(t, cannotLoadInto(write("script", []byte("#!/bin/sh\n"))), "")
	loader, err := interpreter(write("script", []byte("#!/bin/sh\n")))
	assert.NilError(t, err)
	assert.Equal(t, loader, "")
	assert.Equal(t, cannotLoadInto(filepath.Join(t.TempDir(), "missing")), "")

	raw, err := os.ReadFile(dynamic)
	assert.NilError(t, err)
	const machineAt = 18 // e_machine of Elf64_Ehdr
	foreign := append([]byte(nil), raw...)
	binary.LittleEndian.PutUint16(foreign[machineAt:], 22) // EM_S390
	assert.Assert(t, strings.Contains(cannotLoadInto(write("foreign", foreign)), runtime.GOARCH))

	// The header alone, with no program header and so no interpreter.
	const phnumAt, shoffAt, shnumAt = 56, 40, 60
	static := append([]byte(nil), raw[:64]...)
	binary.LittleEndian.PutUint16(static[phnumAt:], 0)
	binary.LittleEndian.PutUint64(static[shoffAt:], 0)
	binary.LittleEndian.PutUint32(static[shnumAt:], 0)
	assert.Equal(t, cannotLoadInto(write("static", static)), "it is linked statically")
	text := profileText(nil, ".", "it is linked statically")
	assert.Assert(t, strings.HasSuffix(text, "it is linked statically\n") && !strings.Contains(text, "\ninclude"), text)
}

// A server that does not run here is the image's fault, and another failure of it is not.
func TestAServerThatDoesNotRunHere(t *testing.T) {
	failed := func() error { return fail(contract.AgentErrFailed, "", "postgres failed: exec format error") }
	for why, code := range map[string]string{"": contract.AgentErrFailed, "it is built for EM_AARCH64": contract.AgentErrImage} {
		var got *contract.AgentError
		assert.Assert(t, errors.As(notRun(failed(), why), &got))
		assert.Equal(t, got.Code, code)
		assert.Assert(t, strings.HasSuffix(got.Message, why))
	}
}
