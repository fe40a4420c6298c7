//go:build e2e

package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// TestHostileSeedsReachNothing fills staging volumes with trees that point outside. The
// plugin sees the folder that they point at, under the same path, and must never open it,
// or anything in it.
func TestHostileSeedsReachNothing(t *testing.T) {
	r := newRig(t)
	// /data is the plugin's data mount; the data root is /data/pgoverlay.
	const inPlugin = "/data/outside"
	outside := filepath.Join(r.Data, "outside")
	r.ok(os.MkdirAll(filepath.Join(outside, "pg_wal"), 0o755))
	defer os.RemoveAll(outside)
	version := filepath.Join(outside, "PG_VERSION")
	r.ok(os.WriteFile(version, []byte("17\n"), 0o644))
	r.ok(os.WriteFile(filepath.Join(outside, "manifest.json"), []byte(`{"format":1,"major":17,"mountPath":"/x","dataDir":"."}`), 0o644))
	before := sumOf(outside)
	opened := watch(t, outside)

	replace := func(name, target string) func(tree string) error {
		return func(tree string) error {
			if err := os.RemoveAll(filepath.Join(tree, name)); err != nil {
				return err
			}
			return os.Symlink(target, filepath.Join(tree, name))
		}
	}
	fifo := func(name string) func(tree string) error {
		return func(tree string) error {
			if err := os.RemoveAll(filepath.Join(tree, name)); err != nil {
				return err
			}
			return unix.Mkfifo(filepath.Join(tree, name), 0o666)
		}
	}
	for _, c := range []struct {
		name string
		make func(tree string) error
		// refused is in the refusal of the seal; empty where it is sealed.
		refused string
	}{
		{"the root is a link", replace("root", inPlugin), "no folder root"},
		{"the root is a link upwards", replace("root", "../../../../outside"), "no folder root"},
		{"the manifest is a link", replace("manifest.json", inPlugin+"/manifest.json"), "no usable manifest.json"},
		{"the manifest is a FIFO", fifo("manifest.json"), "no usable manifest.json"},
		{"PG_VERSION is a link", replace("root/PG_VERSION", inPlugin+"/PG_VERSION"), "no cluster"},
		{"PG_VERSION is a FIFO", fifo("root/PG_VERSION"), "no cluster"},
		{"pg_control is a link", replace("root/global", inPlugin), "no control file"},
		{"pg_wal is a link", replace("root/pg_wal", inPlugin+"/pg_wal"), "walHead is missing"},
		{"PG_VERSION is a device", func(tree string) error {
			name := filepath.Join(tree, "root/PG_VERSION")
			return firstError(os.Remove(name), unix.Mknod(name, unix.S_IFCHR|0o666, 1<<8|5))
		}, "no cluster"},
		{"dataDir is a link", func(tree string) error {
			return edit(filepath.Join(tree, "manifest.json"), `"dataDir":"."`, `"dataDir":"../outside"`)
		}, "no clean relative path"},
		{".pgoverlay is a link", replace("root/.pgoverlay", inPlugin), ""},
		{"postgresql.conf is a link", replace("root/postgresql.conf", inPlugin+"/PG_VERSION"), ""},
		{"a tablespace is a link", replace("root/pg_tblspc/16999", inPlugin), ""},
		{"a link to itself", replace("root/loop", "loop"), ""},
		{"a link to the root", replace("root/up", ".."), ""},
		{"a hard link within", func(tree string) error {
			return os.Link(filepath.Join(tree, "root/PG_VERSION"), filepath.Join(tree, "root/linked"))
		}, ""},
		{"a FIFO, a socket and a device", func(tree string) error {
			return firstError(fifo("root/base/fifo")(tree),
				unix.Mknod(filepath.Join(tree, "root/base/socket"), unix.S_IFSOCK|0o666, 0),
				unix.Mknod(filepath.Join(tree, "root/base/null"), unix.S_IFCHR|0o666, 1<<8|3))
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			seed, staging := fresh("hostile"), fresh("s")
			r.create(staging, "staging="+seed)
			r.fill(staging)
			r.ok(c.make(r.Store("staging", r.idsByName()[staging], "volume")))
			_, err := r.Try(createArgs(fresh("tk"), "op=seal", "volume="+staging)...)
			if c.refused != "" {
				assert.Check(t, is.ErrorContains(err, c.refused))
				r.docker("volume", "rm", staging)
				return
			}
			r.ok(err)
			branch := fresh("b")
			r.create(branch, "seed="+seed)
			r.status(branch)
			r.docker("run", "--rm", "--network", "none", "-v", branch+":/var/lib/postgresql/data", "--entrypoint", "test", testImage,
				"-f", "/var/lib/postgresql/data/.pgoverlay/lazyrw.so", "-a", "!", "-e", inPlugin)
			r.create(fresh("tk"), "op=reset", "volume="+branch)
			r.docker("volume", "rm", branch)
			r.docker("volume", "rm", seed+"@1")
		})
	}
	assert.Equal(t, opened(), "", "the plugin has opened what a seed points at")
	assert.Equal(t, sumOf(outside), before)
}

// watch gives what has been opened in a folder since, by whatever path and process.
func watch(t *testing.T, dir string) (opened func() string) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	assert.NilError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	for _, name := range []string{dir, filepath.Join(dir, "pg_wal")} {
		_, err = unix.InotifyAddWatch(fd, name, unix.IN_OPEN|unix.IN_ACCESS|unix.IN_MODIFY|unix.IN_CREATE|unix.IN_DELETE)
		assert.NilError(t, err)
	}
	see := func() string {
		buf := make([]byte, 1<<16)
		n, _ := unix.Read(fd, buf)
		if n <= 0 {
			return ""
		}
		return fmt.Sprintf("%d bytes of events: %q", n, buf[:min(n, 200)])
	}
	// The watch must see what it is there for.
	f, err := os.Open(filepath.Join(dir, "PG_VERSION"))
	assert.NilError(t, err)
	f.Close()
	assert.Assert(t, see() != "")
	return see
}

func edit(file, from, to string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !strings.Contains(string(data), from) {
		return fmt.Errorf("%s has no %s: %s", file, from, data)
	}
	return os.WriteFile(file, []byte(strings.Replace(string(data), from, to, 1)), 0o644)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
