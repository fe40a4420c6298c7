package settle

import (
	"context"
	"debug/elf"
	"errors"
	"io"
	"os/exec"
	"strings"
)

var (
	muslVersion  = pattern(`(?m)^Version (\S+)`)
	glibcVersion = pattern(`version (\d+\.\d+)`)
	getconfGlibc = pattern(`glibc (\d+\.\d+)`)
)

// libc names the C library of the image's server and its version, "glibc 2.41" or
// "musl 1.2.5": it sorted the text indexes. The server's dynamic loader tells both;
// it is empty for a static server, and for a script that starts one.
func libc(ctx context.Context) (string, error) {
	server, err := tool("postgres")
	if err != nil {
		return "", err
	}
	loader, err := interpreter(server)
	if err != nil || loader == "" {
		return "", err
	}
	// musl's loader prints this on standard error and exits with 1.
	out, _ := exec.CommandContext(ctx, loader, "--version").CombinedOutput()
	if strings.Contains(loader, "musl") {
		if m := muslVersion().FindSubmatch(out); m != nil {
			return "musl " + string(m[1]), nil
		}
		return "musl", nil
	}
	if m := glibcVersion().FindSubmatch(out); m != nil {
		return "glibc " + string(m[1]), nil
	}
	// Before 2.33 the loader has no --version.
	out, _ = exec.CommandContext(ctx, "getconf", "GNU_LIBC_VERSION").Output()
	if m := getconfGlibc().FindSubmatch(out); m != nil {
		return "glibc " + string(m[1]), nil
	}
	return "glibc", nil
}

// interpreter is the dynamic loader that an ELF program asks for, "" for a static one, and for a script that stands before it.
func interpreter(path string) (string, error) {
	f, err := elf.Open(path)
	if errors.As(err, new(*elf.FormatError)) || errors.Is(err, io.EOF) { // a few bytes are none, either
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err != nil {
			return "", err
		}
		return strings.TrimRight(string(name), "\x00"), nil
	}
	return "", nil
}
