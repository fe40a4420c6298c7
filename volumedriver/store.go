package volumedriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Folders and files below the data root.
const (
	storeFile   = "store.json"
	lockFile    = "lock"
	seedsDir    = "seeds"
	branchesDir = "branches"
	layersDir   = "layers"
	stagingDir  = "staging"
	// draftDir holds what is being made and then moved into its place; the sweeper keeps
	// out of it, and a start empties it.
	draftDir = "draft"
	// trashDir holds what the sweeper deletes.
	trashDir   = "trash"
	runtimeDir = "runtime"

	metaFile     = "meta.json"
	mountsFile   = "mounts.json"
	manifestFile = "manifest.json"
	// rootDir is PGDATA or what holds it: of a seed, and of a staging volume below
	// stagingVolume.
	rootDir  = "root"
	upperDir = "upper"
	workDir  = "work"
	// stagingVolume is the folder of a staging volume that its container sees.
	stagingVolume = "volume"
)

// lockPatience is how long a start waits for another instance to let go of the data
// root. dockerd gives a plugin about nine seconds to listen (pkg/plugins/client.go).
const lockPatience = 2 * time.Second

// store is the data root. Its methods know the layout and no volume.
type store struct {
	// path is the data root as overlayfs gets to see it.
	path string
	root *os.Root
	meta storeMeta
	lock *os.File
	log  *slog.Logger
	// trash tells the sweeper that something lies in the trash.
	trash chan struct{}
}

// openStore opens the data root and takes its lock. A wantID pins it to one store;
// an empty one adopts what is there or makes a new store.
func openStore(dir, wantID string, log *slog.Logger) (*store, error) {
	object := "data root " + dir
	if strings.ContainsAny(dir, ":,\\") {
		return nil, refuse(object, "the path contains ':', ',' or '\\', which overlay mount options cannot carry", "")
	}
	if wantID == "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, failed(object, "make it", err)
		}
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missingStore(object, wantID)
	}
	if err != nil {
		return nil, failed(object, "open it", err)
	}
	s := &store{path: filepath.Clean(dir), root: root, log: log, trash: make(chan struct{}, 1)}
	if err := s.open(object, wantID); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *store) open(object, wantID string) error {
	if err := s.identify(object, wantID); err != nil {
		return err
	}
	if err := s.takeLock(object); err != nil {
		return err
	}
	if s.meta.ID == "" {
		s.meta = storeMeta{Format: storeFormat, ID: newID(), Created: time.Now().UTC()}
		if err := writeMeta(s.root, storeFile, s.meta); err != nil {
			return failed(object, "write "+storeFile, err)
		}
	}
	for _, dir := range []string{seedsDir, branchesDir, layersDir, stagingDir, draftDir, trashDir, runtimeDir} {
		if err := s.root.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return failed(object, "make "+dir, err)
		}
	}
	return nil
}

// identify reads store.json and refuses a store of a newer format, a damaged one, and
// any but the one with wantID. A data root without a store leaves meta empty.
func (s *store) identify(object, wantID string) error {
	const pointBack = "mount the disk, or point the plugin back: docker pgbranch setup --data DIR"
	err := readMeta(s.root, storeFile, &s.meta)
	switch {
	case errors.Is(err, fs.ErrNotExist) && wantID != "":
		return refuse(object, fmt.Sprintf("is no store, but the plugin is set up with store %s", wantID), pointBack)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return failed(object, "read "+storeFile, err)
	case s.meta.Format > storeFormat:
		return refuse(object, fmt.Sprintf("has format %d, and this plugin knows up to %d", s.meta.Format, storeFormat),
			"install a plugin that knows it: run `docker pgbranch setup` of the newer version")
	case s.meta.Format < 1 || s.meta.ID == "":
		return refuse(object, storeFile+" is damaged: it has no format or no id", "")
	case wantID != "" && s.meta.ID != wantID:
		return refuse(object, fmt.Sprintf("is store %s, but the plugin is set up with store %s", s.meta.ID, wantID), pointBack)
	}
	return nil
}

// CheckStore tells, without changing anything, whether a plugin of this build would
// take the data root dir, and gives the id of the store in it; it is empty where there
// is none yet. A wantID is the store that the plugin is pinned to.
func CheckStore(dir, wantID string) (id string, err error) {
	object := "data root " + dir
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if wantID == "" {
			return "", nil
		}
		return "", missingStore(object, wantID)
	}
	if err != nil {
		return "", failed(object, "open it", err)
	}
	defer root.Close()
	s := &store{root: root}
	err = s.identify(object, wantID)
	return s.meta.ID, err
}

// WipeStore deletes the data root dir with everything in it, if it is the store of
// that id and no plugin uses it. One that is not there is well.
func WipeStore(dir, id string, log *slog.Logger) error {
	object := "data root " + dir
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failed(object, "open it", err)
	}
	s := &store{root: root, log: log}
	defer s.close()
	if err := s.identify(object, id); err != nil {
		return err
	}
	if s.meta.ID == "" {
		return refuse(object, "is no store", "")
	}
	if err := s.takeLock(object); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return failed(object, "list it", err)
	}
	// store.json goes last: a wipe that broke off is begun again.
	for _, e := range entries {
		if e.Name() == storeFile {
			continue
		}
		if err := s.root.RemoveAll(e.Name()); err != nil {
			return failed(object, "delete "+e.Name(), err)
		}
	}
	if err := s.root.Remove(storeFile); err != nil {
		return failed(object, "delete "+storeFile, err)
	}
	return os.Remove(dir)
}

func missingStore(object, wantID string) error {
	return refuse(object, fmt.Sprintf("does not exist, but the plugin is set up with store %s", wantID),
		"mount the disk, or point the plugin back: docker pgbranch setup --data DIR")
}

// takeLock makes this the one instance on the data root. Docker starts a crashed
// plugin again at once, so the dying instance is given time to let go.
func (s *store) takeLock(object string) error {
	f, err := s.root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		// flock needs no write access: a read-only disk can still be listed.
		f, err = s.root.Open(lockFile)
	}
	if err != nil {
		return failed(object, "open its lock", err)
	}
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(20 * time.Millisecond) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			s.lock = f
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			break
		}
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return refuse(object, "another pgoverlay plugin is using it",
			"disable that one, or give this one another folder; see: docker plugin ls")
	}
	return failed(object, "lock it", err)
}

// close lets go of the data root.
func (s *store) close() {
	if s.lock != nil {
		s.lock.Close()
	}
	s.root.Close()
}

// host gives the path of something below the data root as the kernel is to see it.
func (s *store) host(elem ...string) string {
	return filepath.Join(append([]string{s.path}, elem...)...)
}

// makeDir makes a folder with a fresh id below dir and gives the id.
func (s *store) makeDir(dir string) (id string, err error) {
	for range 10 {
		id = newID()
		if err = s.root.Mkdir(path.Join(dir, id), 0o700); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return id, err
}

// discard takes name out of the store in one step and leaves the deletion to the
// sweeper. Where the disk is too full for another name in the trash, dropping the
// metadata does it: what has none is swept at the next start.
func (s *store) discard(name string) error {
	grave := path.Join(trashDir, newID())
	err := s.root.Rename(name, grave)
	switch {
	case err == nil:
		err = errors.Join(syncDir(s.root, path.Dir(name)), syncDir(s.root, trashDir))
		if err != nil {
			s.log.Warn("cannot sync a removal", "path", name, "error", err)
		}
		s.wakeSweeper()
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT):
		return err
	}
	for _, file := range []string{nameLink, metaFile} {
		if err := s.root.Remove(path.Join(name, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	go func() {
		if err := s.root.RemoveAll(name); err != nil {
			s.log.Warn("cannot delete", "path", name, "error", err)
		}
	}()
	return nil
}

func (s *store) wakeSweeper() {
	select {
	case s.trash <- struct{}{}:
	default:
	}
}

// sweepTrash deletes what lies in the trash, now and whenever something is added,
// until the context ends.
func (s *store) sweepTrash(ctx context.Context) {
	for {
		for _, name := range s.list(trashDir) {
			if ctx.Err() != nil {
				return
			}
			if err := s.root.RemoveAll(path.Join(trashDir, name)); err != nil {
				s.log.Warn("cannot delete", "path", path.Join(trashDir, name), "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.trash:
		}
	}
}

// list gives the ids in a folder of the data root.
func (s *store) list(dir string) []string {
	return slices.DeleteFunc(s.names(dir), func(name string) bool { return !isID(name) })
}

// names gives what is in a folder of the data root. An error is logged and gives what
// could be read.
func (s *store) names(dir string) []string {
	f, err := s.root.Open(dir)
	if err != nil {
		s.log.Error("cannot list", "path", dir, "error", err)
		return nil
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		s.log.Error("cannot list", "path", dir, "error", err)
	}
	return names
}
