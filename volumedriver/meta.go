package volumedriver

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// storeFormat is the version of everything below the data root. A newer one is
// refused before the plugin listens.
const storeFormat = 1

// maxMetaBytes bounds what is read of one metadata file, in bytes. A manifest of a
// cluster with thousands of databases stays well below.
const maxMetaBytes = 16 << 20

// storeMeta is store.json.
type storeMeta struct {
	Format  int       `json:"format"`
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
}

// seedMeta is the meta.json of a seed generation; what the agent wrote stays as it
// is in manifest.json. A seed exists once its meta.json and its root do.
type seedMeta struct {
	Format     int       `json:"format"`
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	Generation int       `json:"generation"`
	Created    time.Time `json:"created"`
	// StagingID and StagingName are of the staging volume that became this seed: they
	// tell a restart that a staging volume without root is sealed and not damaged, and
	// make a repeated seal answer as the first one did.
	StagingID   string `json:"stagingId"`
	StagingName string `json:"stagingName"`
}

// branchMeta is the meta.json of a branch. A branch exists once its meta.json does.
type branchMeta struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
	Name   string `json:"name"`
	// SeedID is the seed generation that the branch stands on; Seed and Generation
	// are its name.
	SeedID     string `json:"seedId"`
	Seed       string `json:"seed"`
	Generation int    `json:"generation"`
	// Parent is the branch that this one was made of, if it was, and ParentID its id,
	// since another branch may have its name by now.
	Parent   string `json:"parent,omitempty"`
	ParentID string `json:"parentId,omitempty"`
	// Layers are the frozen layers between the seed and the upper, nearest first.
	Layers []string `json:"layers,omitempty"`
	// Base are the layers that the branch was made on, to which a reset returns.
	Base []string `json:"base,omitempty"`
	// Asked is the option that chose the parent as it was given, for idempotency.
	Asked   string        `json:"asked"`
	Cow     string        `json:"cow"`
	TTL     time.Duration `json:"ttl,omitempty"`
	Created time.Time     `json:"created"`
	// Boot and Up are when it was created by the clock that nobody can set.
	Boot string        `json:"boot,omitempty"`
	Up   time.Duration `json:"up,omitempty"`
	// Conf are the settings that were asked for, as sorted lines NAME=VALUE; Settings
	// are those with the parent's below them, which the branch's file holds.
	Conf     string            `json:"conf,omitempty"`
	Settings map[string]string `json:"settings,omitempty"`
}

// stagingMeta is the meta.json of a staging volume. It lies beside the folder that
// the container sees, since what is in there may be anything.
type stagingMeta struct {
	Format  int       `json:"format"`
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Seed    string    `json:"seed"`
	Next    bool      `json:"next"`
	Created time.Time `json:"created"`
}

// newID gives a fresh opaque id: 16 hex digits, short since every overlay mount
// carries several in its one page of options.
func newID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
	return hex.EncodeToString(b[:])
}

// isID reports whether s looks like an id of newID, which keeps files of other
// origin below the data root out of every sweep.
func isID(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 8
}

// writeMeta writes v as JSON to the file name so that after a power cut either the
// old or the new content is there: write, fsync, rename, fsync of the folder.
func writeMeta(root *os.Root, name string, v any) error {
	if err := replaceFile(root, name, v, true); err != nil {
		return err
	}
	return syncDir(root, path.Dir(name))
}

// replaceFile writes v as JSON to name in one step as other processes see it.
func replaceFile(root *os.Root, name string, v any, durable bool) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	tmp := name + ".tmp"
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, root.Remove(tmp))
	}
	return root.Rename(tmp, name)
}

// readMeta reads JSON of ours into v.
func readMeta(root *os.Root, name string, v any) error {
	data, err := readRegular(root, name, maxMetaBytes)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s is damaged: %w", name, err)
	}
	return nil
}

// syncDir makes the names in a folder durable.
func syncDir(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// openBeneath opens a path whose content is untrusted: no component may be a
// symbolic link, nothing outside of root is reached, and a FIFO does not block.
func openBeneath(root *os.Root, name string, flags int) (*os.File, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openRegular opens a regular file for reading as openBeneath does.
func openRegular(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	f, err := openBeneath(root, name, unix.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("is no regular file")}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// readRegular reads a regular file of at most limit bytes.
func readRegular(root *os.Root, name string, limit int64) ([]byte, error) {
	f, info, err := openRegular(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > limit {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("has more than %d bytes", limit)}
	}
	data := make([]byte, info.Size())
	n, err := f.ReadAt(data, 0)
	if err != nil && n < len(data) {
		return nil, err
	}
	return data, nil
}

// isDir reports whether name is a real folder.
func isDir(root *os.Root, name string) bool {
	info, err := root.Lstat(name)
	return err == nil && info.IsDir()
}
