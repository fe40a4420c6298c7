//go:build e2e

package shimtest

import (
	"debug/elf"
	_ "embed"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The audit: every function that a server or one of its modules asks of libc is wrapped by the shim, or on one of two lists:
// those that have to do with files or descriptors, each with the reason why it cannot write a data file behind the shim's
// back; and those that have nothing to do with either. A name on no list fails, so that a new release is looked at.

//go:embed harmless.txt
var harmlessText string

const (
	stdio = "a stream never has a lazy descriptor: fdopen is imported by nobody, and fopen opens by libc's own open, for real"
	reads = "reads: a read-only descriptor of overlayfs shows the upper file from the moment of the copy-up on"
	meta  = "changes names or attributes, by path: the kernel copies up what it must by itself"
	sock  = "a descriptor of a socket, a pipe or an event source: it gets a number that close has cleared"
	child = "the table is copied with the descriptors; exec drops both, and what it starts is no server"
	maps  = "not a mapping of a file that the caller opened"
)

var reasons = map[string]string{
	"fopen": stdio, "freopen": stdio, "fwrite": stdio, "fputc": stdio, "fputs": stdio, "putc": stdio, "_IO_putc": stdio, "puts": stdio, "fflush": stdio,
	"fclose": stdio, "setvbuf": stdio, "fread": stdio, "fgetc": stdio, "fgets": stdio, "getc": stdio, "_IO_getc": stdio,
	"fseek": stdio, "fseeko": stdio, "ftell": stdio, "ftello": stdio, "feof": stdio, "ferror": stdio, "clearerr": stdio,
	"fileno": stdio + "; what is written through its number goes to the file that is open for real", "stdin": stdio,
	"stdout": stdio, "stderr": stdio, "fscanf": stdio, "__isoc99_fscanf": stdio, "__isoc23_fscanf": stdio, "perror": stdio,

	"read": reads, "pread": reads, "preadv": reads, "__read_chk": reads, "lseek": reads, "fstat": reads, "__fxstat": reads,
	"stat": reads, "__xstat": reads, "lstat": reads, "__lxstat": reads, "access": reads, "readlink": reads,
	"realpath": reads, "__realpath_chk": reads, "getcwd": reads, "opendir": reads, "readdir": reads, "closedir": reads,
	"posix_fadvise": reads,

	"fsync":     "a no-op while the file is a lower one; reaches the upper file once anybody has copied it up",
	"fdatasync": "as fsync", "syncfs": "the whole file system",

	"rename": meta, "link": meta, "symlink": meta, "unlink": meta, "mkdir": meta, "rmdir": meta, "chmod": meta, "chown": meta,
	"utime": meta, "umask": meta,
	"chdir": "the first write does not go by path, so it does not matter where the process is",

	"socket": sock, "accept": sock, "bind": sock, "listen": sock, "connect": sock, "send": sock, "sendto": sock, "recv": sock,
	"recvfrom": sock, "pipe": sock, "epoll_create1": sock, "epoll_ctl": sock, "epoll_wait": sock, "signalfd": sock, "poll": sock,
	"select": sock, "__fdelt_chk": sock, "getsockname": sock, "getsockopt": sock, "setsockopt": sock, "isatty": sock,

	"fork": child, "system": child, "popen": child, "pclose": child, "waitpid": child,

	"munmap": maps, "shm_open": "opens in /dev/shm", "shm_unlink": "in /dev/shm", "shmget": maps, "shmat": maps, "shmdt": maps,
	"shmctl": maps, "dlopen": "maps libraries, by libc's own open", "dlsym": "finds the shim's functions as any other",
	"dlclose": maps, "dlerror": maps, "backtrace_symbols_fd": "writes to stderr",
	"syslog": sock, "__syslog_chk": sock, "openlog": sock, "closelog": sock,
	"getifaddrs": sock, "freeifaddrs": sock, "getaddrinfo": sock, "freeaddrinfo": sock,
}

// Functions of other libraries that do file I/O for the caller.
var foreignReasons = map[string]string{
	"io_uring": "18 submits reads only (pgaio_io_start_readv); pgaio_io_start_writev has no caller. A write on a lazy descriptor would fail with EBADF",
}

// What is right only in libpq.
var libpqReasons = map[string]string{
	"ioctl": "PQprint asks for the size of the terminal (fe-print.c); no server calls it. Elsewhere it could clone into a file (FICLONE)",
}

var fromLibc = regexp.MustCompile(`^(libc|libpthread|librt|libdl)\.so`)

func wrappedNames(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../src/wrapped.def")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^WRAP_[A-Z]+\((\w+), \w+\)$`).FindAllStringSubmatch(string(text), -1) {
		names[m[1]] = true
	}
	if len(names) < 40 {
		t.Fatalf("only %d names in wrapped.def", len(names))
	}
	return names
}

func harmlessNames() map[string]bool {
	names := map[string]bool{}
	for _, line := range strings.Split(harmlessText, "\n") {
		if !strings.HasPrefix(line, "#") {
			for _, name := range strings.Fields(line) {
				names[name] = true
			}
		}
	}
	return names
}

// An auditor judges imported names.
type auditor struct {
	wrapped, harmless map[string]bool
	libc              map[string]bool // what the server's libc exports
}

// ofLibc: glibc gives its names versions, by which an import says where it is from. musl has none, and there a name is libc's
// when libc has it: libc comes before every module, so that nobody else's function of that name would be called.
func (a auditor) ofLibc(symbol elf.ImportedSymbol) bool {
	return fromLibc.MatchString(symbol.Library) || symbol.Library == "" && a.libc[symbol.Name]
}

// judge returns "" for a name that is accounted for, else what is wrong with it.
func (a auditor) judge(symbol elf.ImportedSymbol) string {
	for prefix := range foreignReasons {
		if strings.HasPrefix(symbol.Name, prefix) {
			return ""
		}
	}
	if a.ofLibc(symbol) && !a.known(symbol.Name) {
		return "neither wrapped nor on a list"
	}
	return "" // another library's, which is audited where it calls libc itself, or none of ours
}

func (a auditor) known(name string) bool {
	return a.wrapped[name] || a.harmless[name] || reasons[name] != ""
}

// auditFile returns what is wrong with one ELF file's imports, and how many of libc's there were.
func (a auditor) auditFile(t *testing.T, path string) (wrong []string, checked int) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(path, err)
	}
	for _, symbol := range symbols {
		if a.ofLibc(symbol) {
			checked++
		}
		if strings.HasPrefix(filepath.Base(path), "libpq.so") && libpqReasons[symbol.Name] != "" {
			continue
		}
		if verdict := a.judge(symbol); verdict != "" {
			wrong = append(wrong, symbol.Name+": "+verdict)
		}
	}
	return wrong, checked
}

// exports are the names that a shared object defines.
func exports(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(path, err)
	}
	names := map[string]bool{}
	for _, symbol := range symbols {
		if symbol.Section != elf.SHN_UNDEF {
			names[symbol.Name] = true
		}
	}
	if !names["open"] || !names["pwrite"] {
		t.Fatalf("%s is no libc", path)
	}
	return names
}

// libcOf is the libc that the server's binary asks for, by the loader that it names.
func libcOf(t *testing.T, s server) string {
	t.Helper()
	f, err := elf.Open(s.file(filepath.Join(s.bin, "postgres")))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	section := f.Section(".interp")
	if section == nil {
		t.Fatalf("%s has no interpreter: it is linked statically, and nothing can stand before its libc", s.name)
	}
	interpreter, err := section.Data()
	if err != nil {
		t.Fatal(err)
	}
	loader := strings.TrimRight(string(interpreter), "\x00")
	if strings.Contains(loader, "musl") {
		return s.file(loader) // the loader is the libc
	}
	return firstFile(t, s.file("/lib/*-linux-gnu/libc.so.6"))
}

func firstFile(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("no %s: %v", pattern, err)
	}
	return found[0]
}

// auditedFiles are the server, all its modules, and libpq where modules of it load that.
func auditedFiles(t *testing.T, s server) []string {
	t.Helper()
	files, err := filepath.Glob(s.file(filepath.Join(s.modules, "*.so")))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 3 {
		t.Errorf("%s: only %d modules in %s", s.name, len(files), s.modules)
	}
	if s.libpq != "" {
		files = append(files, firstFile(t, s.file(s.libpq)))
	}
	return append(files, s.file(filepath.Join(s.bin, "postgres")))
}

func TestEveryImportIsAccountedFor(t *testing.T) {
	for _, s := range allServers(t) {
		a := auditor{wrappedNames(t), harmlessNames(), exports(t, libcOf(t, s))}
		files := auditedFiles(t, s)
		total := 0
		for _, file := range files {
			wrong, checked := a.auditFile(t, file)
			total += checked
			for _, w := range wrong {
				t.Errorf("%s: %s: %s", s.name, filepath.Base(file), w)
			}
		}
		if total < 200 {
			t.Errorf("%s: only %d imports of libc seen in %d files: the audit is blind", s.name, total, len(files))
		}
		t.Logf("%-15s %3d files, %5d imports of libc", s.name, len(files), total)
	}
}

// The audit must notice what it is there for, by versioned imports and by musl's, which have no version.
func TestAuditNoticesWhatIsNotWrapped(t *testing.T) {
	musl := firstFile(t, "/lib/ld-musl-*.so.1")
	a := auditor{wrappedNames(t), harmlessNames(), exports(t, musl)}
	both := func(name string) []elf.ImportedSymbol {
		return []elf.ImportedSymbol{{Name: name, Library: "libc.so.6"}, {Name: name}}
	}
	for _, name := range []string{"fdopen", "aio_write", "vmsplice", "syscall", "lockf", "process_vm_writev", "ioctl", "mremap", "vfork"} {
		for _, symbol := range both(name) {
			if a.judge(symbol) == "" {
				t.Errorf("%s passes", name)
			}
		}
	}
	if a.judge(elf.ImportedSymbol{Name: "openat2", Library: "libc.so.6"}) == "" { // newer than the libcs here
		t.Error("openat2 passes")
	}
	if a.judge(elf.ImportedSymbol{Name: "palloc"}) != "" {
		t.Error("the server's own functions do not pass")
	}
	for name := range a.wrapped {
		if a.harmless[name] || reasons[name] != "" {
			t.Errorf("%s is wrapped and on a list, too", name)
		}
	}
	for name := range a.harmless {
		if reasons[name] != "" {
			t.Errorf("%s is on both lists", name)
		}
	}
	for _, name := range []string{"open", "pwrite", "pwritev", "ftruncate", "posix_fallocate", "copy_file_range", "mmap", "dup", "fcntl", "close"} {
		delete(a.wrapped, name)
		for _, symbol := range both(name) {
			if a.judge(symbol) == "" {
				t.Errorf("%s passes without a wrapper", name)
			}
		}
	}
}
