package shim

import (
	"bytes"
	"debug/elf"
	"errors"
	"strings"
	"testing"
)

// A checkout without the built objects must say how to get them; one with them must carry the right machine's code.
func TestObjectIsOfItsArchitectureOrSaysHowToBuild(t *testing.T) {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, arch := range Architectures {
		object, err := Object(arch)
		if errors.Is(err, ErrNotBuilt) {
			if !strings.Contains(err.Error(), "make shim") || !strings.Contains(err.Error(), arch) {
				t.Errorf("%s: error %q does not say what to do", arch, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", arch, err)
			continue
		}
		f, err := elf.NewFile(bytes.NewReader(object))
		if err != nil {
			t.Errorf("%s: %v", arch, err)
			continue
		}
		if f.Machine != machines[arch] || f.Type != elf.ET_DYN {
			t.Errorf("%s: a %v of %v", arch, f.Type, f.Machine)
		}
	}
}

func TestObjectRefusesOtherArchitectures(t *testing.T) {
	for _, arch := range []string{"", "386", "riscv64", "../lib/README", "x86_64"} {
		if object, err := Object(arch); err == nil {
			t.Errorf("%q: %d bytes, want an error", arch, len(object))
		} else if !strings.Contains(err.Error(), "amd64, arm64") {
			t.Errorf("%q: error %q does not name the architectures there are", arch, err)
		}
	}
}
