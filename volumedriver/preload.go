package volumedriver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path"
	"strconv"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// A branch's server finds the shim by LD_PRELOAD, where its container sets that, and
// else by shared_preload_libraries: the branch profile in the seed includes
// contract.PreloadConf, which a layer of its own brings into the mount, below the
// seed and beside the runtime layer. So one seed serves branches that are lazy and
// others that are not, and a copy of PGDATA elsewhere names no library that it lacks.

// preloads are the entries of a branch's shared_preload_libraries: the shim first, so
// that it has the branch to itself before another library can end the server, whose
// exit would take postmaster.pid away from the branch's first server
// (src/backend/utils/init/miscinit.c, UnlinkLockFiles). What a branch keeps of its
// source's libraries follows here.
func preloads(m *contract.Manifest) []string {
	return []string{contract.FromDataDir(m.DataDir, path.Join(contract.RuntimeDir, contract.ShimFile))}
}

// preloadConf is contract.PreloadConf for a branch that is lazy, or for one that is not.
func preloadConf(m *contract.Manifest, lazy bool) string {
	if !lazy {
		return "# This branch copies a file when Postgres opens it: no library of ours is loaded.\n"
	}
	quoted := strings.ReplaceAll(strings.Join(preloads(m), ","), "'", "''")
	return "# With this library Postgres copies a table's file when it first writes to it, and not when it reads.\n" +
		"shared_preload_libraries = '" + quoted + "'\n"
}

// preloadPrefix begins the names of contract.PreloadConf's versions: the file itself
// is a link, for the reason that install gives.
const preloadPrefix = "preload-"

// preloadID identifies a content.
func preloadID(conf string) string {
	sum := sha256.Sum256([]byte(conf))
	return hex.EncodeToString(sum[:])[:12]
}

// preloadLayer gives the path, below the data root, of the layer that says whether
// branches of such a seed load the shim, and makes it where it is missing.
func (r *runtimeLayers) preloadLayer(m *contract.Manifest, lazy bool) (string, error) {
	conf := preloadConf(m, lazy)
	dir := path.Join(runtimeDir, preloadPrefix+preloadID(conf)+"-"+strconv.Itoa(m.UID))
	return dir, r.make(dir, func(draft string) error { return r.installPreload(draft, conf, lazy, m.UID) })
}

// layersOf gives the lower layers of a branch that are ours, topmost first.
func (r *runtimeLayers) layersOf(m *contract.Manifest, lazy bool) ([]string, error) {
	preload, err := r.preloadLayer(m, lazy)
	if err != nil {
		return nil, err
	}
	runtime, err := r.layer(m.UID)
	return []string{preload, runtime}, err
}

func (r *runtimeLayers) installPreload(dir, conf string, lazy bool, uid int) error {
	root := r.store.root
	base := path.Join(dir, contract.RuntimeDir)
	if err := root.Mkdir(base, 0o755); err != nil {
		return err
	}
	name := preloadPrefix + preloadID(conf) + ".conf"
	link := path.Join(base, contract.PreloadConf)
	err := errors.Join(
		writeOwned(root, path.Join(base, name), strings.NewReader(conf), uid, uid),
		root.Symlink(name, link),
		root.Lchown(link, uid, uid),
	)
	if !lazy {
		err = errors.Join(err, writeOwned(root, path.Join(base, contract.EagerMark), strings.NewReader(""), uid, uid))
	}
	return errors.Join(err, root.Lchown(base, uid, uid), syncDir(root, base))
}
