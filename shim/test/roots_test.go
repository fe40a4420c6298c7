//go:build e2e

package shimtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// bring has servers.sh put a build into the cache, and returns its folder.
func bring(t *testing.T, what ...string) string {
	t.Helper()
	cmd := exec.Command("./servers.sh", what...)
	cmd.Env = append(os.Environ(), "LZ_CACHE="+cacheDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("servers.sh %s: %v", strings.Join(what, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// debianRoot is a server of another Debian release, or for another architecture, in a root of its own.
func debianRoot(t *testing.T, major int, arch string) server {
	t.Helper()
	s := server{
		name:    fmt.Sprintf("debian%d", major),
		major:   major,
		root:    bring(t, "debian", fmt.Sprint(major), arch),
		bin:     fmt.Sprintf("/usr/lib/postgresql/%d/bin", major),
		modules: fmt.Sprintf("/usr/lib/postgresql/%d/lib", major),
		libpq:   debianLibpq,
		arch:    arch,
	}
	if arch != runtime.GOARCH {
		s.name += "-" + arch
		s.emulator = "/usr/bin/qemu-aarch64-static"
	}
	enterRoot(t, s.root)
	return s
}

// muslServer is Debian's source linked with musl.
func muslServer(t *testing.T, major int) server {
	t.Helper()
	prefix := bring(t, "musl", fmt.Sprint(major))
	return server{
		name:    fmt.Sprintf("musl%d", major),
		major:   major,
		bin:     filepath.Join(prefix, "bin"),
		modules: filepath.Join(prefix, "lib", "postgresql"),
		arch:    runtime.GOARCH,
	}
}

var (
	entering sync.Mutex
	entered  = map[string]bool{}
)

// enterRoot makes what the tests make visible in that root, under the same paths: below the folder for temporary files,
// which is a peer of the one outside, so that what is mounted there later is seen too.
func enterRoot(t *testing.T, root string) {
	t.Helper()
	entering.Lock()
	defer entering.Unlock()
	if entered[root] {
		return
	}
	temp := os.TempDir()
	if len(entered) == 0 {
		run(t, "mount", "--bind", temp, temp)
		run(t, "mount", "--make-shared", temp)
	}
	run(t, "mkdir", "-p", root+temp)
	run(t, "mount", "--bind", temp, root+temp)
	run(t, "mount", "--rbind", "--make-rslave", "/dev", root+"/dev")
	run(t, "mount", "-t", "proc", "proc", root+"/proc")
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		run(t, "cp", file, root+file)
	}
	entered[root] = true
}

// file is the path by which this machine reaches a path of the server's.
func (s server) file(path string) string { return filepath.Join(s.root, path) }

// prepare makes ready to run a program of the server's build: where it is, and what runs it.
func (s server) prepare(name string, args ...string) *exec.Cmd {
	argv := append([]string{filepath.Join(s.bin, name)}, args...)
	if s.emulator != "" {
		argv = append([]string{s.emulator}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: s.root}
	return cmd
}
