package volumedriver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// runtimeMode is of the shim and the agent. Nobody may write them: crash recovery
// opens every file below PGDATA for writing and passes over what it may not open
// (src/common/file_utils.c and src/backend/storage/file/fd.c, fsync_fname_ext), so
// that it does not copy the agent up into every branch.
const runtimeMode = 0o555

// runtimeLayers makes the layers that bring the shim and the agent into volumes: one
// per content and owner, since a file of another owner in PGDATA makes the stock
// image's entrypoint chown it.
type runtimeLayers struct {
	store *store
	// shim gives the shim's object; agentPath is the agent's file.
	shim      func() ([]byte, error)
	agentPath string

	// making serialises the making of layers; it is not held to look one up.
	making sync.Mutex

	shimOnce sync.Once
	// What shimOnce fills in.
	shimData []byte
	shimErr  error

	once sync.Once
	// What once fills in.
	agentErr error
	digest   string
}

// loadShim reads the shim once. Get asks for it, so it does not wait for the agent.
func (r *runtimeLayers) loadShim() {
	r.shimOnce.Do(func() { r.shimData, r.shimErr = r.shim() })
}

// load reads the shim and the agent once.
func (r *runtimeLayers) load() {
	r.loadShim()
	r.once.Do(func() {
		sum := sha256.New()
		sum.Write(r.shimData)
		agent, err := os.Open(r.agentPath)
		if err == nil {
			_, err = io.Copy(sum, agent)
			err = errors.Join(err, agent.Close())
		}
		r.agentErr = err
		r.digest = hex.EncodeToString(sum.Sum(nil))[:12]
	})
}

// id identifies the shim and agent that new mounts carry.
func (r *runtimeLayers) id() string {
	r.load()
	return r.digest
}

// shimMissing says why there is no shim, nil where there is one.
func (r *runtimeLayers) shimMissing() error {
	r.loadShim()
	return r.shimErr
}

// layer gives the path, below the data root, of the layer for files of that owner,
// and makes it where it is missing.
func (r *runtimeLayers) layer(uid int) (string, error) {
	r.load()
	dir := path.Join(runtimeDir, r.digest+"-"+strconv.Itoa(uid))
	return dir, r.make(dir, func(draft string) error {
		return errors.Join(r.install(draft, uid, uid), guardPlaces(r.store.root, draft, uid))
	})
}

// make makes a layer as a draft, and then gives it its name, where it is missing.
func (r *runtimeLayers) make(dir string, fill func(draft string) error) error {
	if isDir(r.store.root, dir) {
		return nil
	}
	r.making.Lock()
	defer r.making.Unlock()
	if isDir(r.store.root, dir) {
		return nil
	}
	draft, err := r.store.makeDir(draftDir)
	if err != nil {
		return err
	}
	draft = path.Join(draftDir, draft)
	err = r.store.root.Chmod(draft, 0o755)
	if err == nil {
		err = fill(draft)
	}
	if err == nil {
		err = r.store.root.Rename(draft, dir)
	}
	if err != nil {
		return errors.Join(err, r.store.root.RemoveAll(draft))
	}
	return syncDir(r.store.root, runtimeDir)
}

// install puts contract.RuntimeDir with the shim and the agent into the folder dir.
// The files have names of their version behind stable links: a metadata-only copy of
// a file keeps the size that it had, so one name must not change its content.
func (r *runtimeLayers) install(dir string, uid, gid int) error {
	r.load()
	if r.agentErr != nil {
		return fmt.Errorf("read the agent: %w", r.agentErr)
	}
	root := r.store.root
	base := path.Join(dir, contract.RuntimeDir)
	if err := root.Mkdir(base, 0o755); err != nil {
		return err
	}
	agent := "agent-" + r.digest
	if err := r.installAgent(path.Join(base, agent), uid, gid); err != nil {
		return err
	}
	links := map[string]string{contract.AgentFile: agent}
	if r.shimErr == nil {
		shim := "lazyrw-" + r.digest + ".so"
		if err := writeOwned(root, path.Join(base, shim), strings.NewReader(string(r.shimData)), uid, gid); err != nil {
			return err
		}
		links[contract.ShimFile] = shim
	}
	for link, to := range links {
		name := path.Join(base, link)
		if err := root.Symlink(to, name); err != nil {
			return err
		}
		if err := root.Lchown(name, uid, gid); err != nil {
			return err
		}
	}
	if err := root.Lchown(base, uid, gid); err != nil {
		return err
	}
	return syncDir(root, base)
}

func (r *runtimeLayers) installAgent(name string, uid, gid int) error {
	agent, err := os.Open(r.agentPath)
	if err != nil {
		return err
	}
	defer agent.Close()
	return writeOwned(r.store.root, name, agent, uid, gid)
}

// writeOwned writes a new file of runtimeMode and makes it durable.
func writeOwned(root *os.Root, name string, from io.Reader, uid, gid int) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	if err == nil {
		err = f.Chown(uid, gid)
	}
	if err == nil {
		err = f.Chmod(runtimeMode)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// dropStale removes contract.RuntimeDir from an upper where it holds metadata-only
// copies of another version's files, which an image with another uid makes when it
// chowns PGDATA. The layer with their data is no longer part of the mount, and
// overlayfs answers EIO for a metadata-only file without data (fs/overlayfs/namei.c,
// ovl_lookup). The upper must not be mounted anywhere.
func (r *runtimeLayers) dropStale(upper, preload string) error {
	stale, err := r.isStale(upper, preload)
	if err != nil || !stale {
		return err
	}
	return r.store.root.RemoveAll(path.Join(upper, contract.RuntimeDir))
}

// isStale reports whether dropStale has something to do; preload identifies the
// preload configuration that the branch's next mount carries.
func (r *runtimeLayers) isStale(upper, preload string) (bool, error) {
	dir, err := r.store.root.Open(path.Join(upper, contract.RuntimeDir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return false, err
	}
	id := r.id()
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "agent-"), strings.HasPrefix(name, "lazyrw-"):
			if !strings.Contains(name, id) {
				return true, nil
			}
		case strings.HasPrefix(name, preloadPrefix) && !strings.Contains(name, preload):
			return true, nil
		}
	}
	return false, nil
}
