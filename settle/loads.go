package settle

import (
	"debug/elf"
	"fmt"
	"runtime"
	"slices"
)

// machines are the ELF machines that the shim is built for, by GOARCH.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// cannotLoad says why the image's server cannot load a library of this agent's
// architecture, empty where it can, as far as its file tells. A server that cannot load
// what shared_preload_libraries names does not start (load_libraries in miscinit.c).
func cannotLoad() string {
	path, err := tool("postgres")
	if err != nil {
		return "" // whoever needs it next says so
	}
	return cannotLoadInto(path)
}

func cannotLoadInto(path string) string {
	f, err := elf.Open(path)
	if err != nil {
		return "" // a script around it, say
	}
	defer f.Close()
	if want := machines[runtime.GOARCH]; f.Machine != want {
		return fmt.Sprintf("it is built for %v and the engine is %s", f.Machine, runtime.GOARCH)
	}
	if !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return "it is linked statically"
	}
	return ""
}
