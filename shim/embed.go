// Package shim carries lazyrw, the LD_PRELOAD library that makes a branch's reads cost nothing, as built objects: one
// freestanding file per CPU architecture, for glibc and musl alike.
//
// The C source and its tests are in this folder; `make shim` (or `make -C shim`) builds the objects into lib/, from where
// they are embedded. A checkout without them compiles, and Object says what is missing.
package shim

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed all:lib
var lib embed.FS

// Architectures are the CPU architectures that lazyrw is written for, by their GOARCH names.
var Architectures = []string{"amd64", "arm64"}

// ErrNotBuilt is returned (wrapped) by Object when this binary was compiled before the objects were built.
var ErrNotBuilt = errors.New("not built into this binary; run `make shim` and build again")

// Object returns the shared object of the given architecture (a GOARCH name): an ELF file of some 20 to 70 KiB, to be placed
// in a volume as .pgoverlay/lazyrw.so with mode 0644 or wider.
//
// It fails for an architecture that lazyrw is not written for, and with ErrNotBuilt when the object is absent.
func Object(arch string) ([]byte, error) {
	if !slices.Contains(Architectures, arch) {
		return nil, fmt.Errorf("lazyrw: no object for architecture %q (there are: %s)", arch, strings.Join(Architectures, ", "))
	}
	object, err := lib.ReadFile("lib/lazyrw-" + arch + ".so")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lazyrw: object for %s: %w", arch, ErrNotBuilt)
	}
	if err != nil {
		return nil, fmt.Errorf("lazyrw: object for %s: %w", arch, err)
	}
	return object, nil
}
