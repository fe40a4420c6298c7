//go:build e2e

package shimtest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestMain runs the tests in a mount namespace of their own: whatever happens, nothing stays mounted.
func TestMain(m *testing.M) {
	const marker = "LZ_IN_NAMESPACE"
	if os.Getenv(marker) == "" {
		if os.Getuid() != 0 {
			fmt.Fprintln(os.Stderr, "these tests mount file systems: run them as root")
			os.Exit(1)
		}
		self, err := os.Executable()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		cmd := exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "--", self}, os.Args[1:]...)...)
		cmd.Env = append(os.Environ(), marker+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A rig is a file system on a loop device, with a seed and a branch of it, mounted as the volume plugin mounts them.
type rig struct {
	disk   string // the file system
	volume string // where the branch is mounted
}

func newRig(t *testing.T, fstype string) *rig {
	t.Helper()
	root, err := os.MkdirTemp("", "lazyrw-pg")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{disk: filepath.Join(root, "disk"), volume: filepath.Join(root, "volume")}
	t.Cleanup(func() {
		for _, at := range []string{r.volume, r.disk} {
			_ = syscall.Unmount(at, syscall.MNT_DETACH) // not mounted if the test failed early
		}
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(root, "image")
	run(t, "truncate", "-s", "2G", image)
	run(t, "mkfs."+fstype, "-q", image)
	for _, dir := range []string{r.disk, r.volume} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "mount", "-o", "loop", image, r.disk)
	run(t, "mkdir", r.path("seed"), r.path("runtime"))
	r.layShim(t, runtime.GOARCH)
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.disk, name) }

func (r *rig) preload() string { return filepath.Join(r.volume, ".pgoverlay", "lazyrw.so") }

// layShim makes the runtime layer, for branches that are not mounted yet: the object under a versioned name behind the stable one.
func (r *rig) layShim(t *testing.T, arch string) {
	t.Helper()
	object, err := os.ReadFile("../lib/lazyrw-" + arch + ".so")
	if err != nil {
		t.Fatalf("%v; run make -C shim first", err)
	}
	dir := filepath.Join(r.path("runtime"), ".pgoverlay")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lazyrw-test.so", "lazyrw-copy.so"} {
		if err := os.WriteFile(filepath.Join(dir, name), object, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("lazyrw-test.so", filepath.Join(dir, "lazyrw.so")); err != nil {
		t.Fatal(err)
	}
}

// unmount takes the branch away, if there is one.
func (r *rig) unmount(t *testing.T) {
	t.Helper()
	if err := syscall.Unmount(r.volume, 0); err != nil && err != syscall.EINVAL {
		t.Fatalf("unmount %s: %v", r.volume, err)
	}
}

// branch mounts a fresh branch of the seed; the one before is gone.
func (r *rig) branch(t *testing.T) {
	t.Helper()
	r.unmount(t)
	run(t, "rm", "-rf", r.path("upper"), r.path("work"))
	run(t, "mkdir", r.path("upper"), r.path("work"))
	run(t, "chown", "--reference="+r.path("seed"), r.path("upper"))
	run(t, "chmod", "--reference="+r.path("seed"), r.path("upper"))
	r.mountBranch(t)
}

// mountBranch mounts the branch as it is on disk.
func (r *rig) mountBranch(t *testing.T) {
	t.Helper()
	options := fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s,index=on,metacopy=on,redirect_dir=on",
		r.path("seed"), r.path("runtime"), r.path("upper"), r.path("work"))
	run(t, "mount", "-t", "overlay", "-o", options, "overlay", r.volume)
}

var relationFile = regexp.MustCompile(`(^|/)(base/\d+|global|pg_tblspc/\d+/[^/]+/\d+)/\d+(_(fsm|vm|init))?(\.\d+)?$`)

// relationsInUpper are the relation files that the branch owns, with the bytes that they have allocated.
func (r *rig) relationsInUpper(t *testing.T) map[string]int64 {
	t.Helper()
	owned := map[string]int64{}
	upper := r.path("upper")
	err := filepath.WalkDir(upper, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(upper, path)
		if err != nil {
			return err
		}
		if relationFile.MatchString(name) {
			var st syscall.Stat_t
			if err := syscall.Lstat(path, &st); err != nil {
				return err
			}
			owned[name] = st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return owned
}

func (r *rig) seedSum(t *testing.T) string {
	t.Helper()
	return run(t, "sh", "-c", "cd "+r.path("seed")+" && find . -type f -exec sha256sum {} + | sort | sha256sum")
}

// serverUser is the unprivileged user that the servers run as: Debian's package made it.
func serverUser(t *testing.T) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatalf("%v; Debian's postgresql package makes that user", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
