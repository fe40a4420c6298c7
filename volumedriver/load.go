package volumedriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

const (
	// stagingLife is how long a staging volume that nothing mounts is kept.
	stagingLife = 24 * time.Hour
	// stagingRound is the time between two looks for stale staging volumes.
	stagingRound = time.Hour
)

// load reads the store, moves to the trash what a crash left half made, and
// reconciles the mounts. Nothing listens yet, so it takes no lock.
func (d *Driver) load() error {
	mounted, err := d.mounter.Below(d.cfg.MountRoot)
	if err != nil {
		return failed("mounts below "+d.cfg.MountRoot, "read them", err)
	}
	for _, id := range d.store.list(seedsDir) {
		d.loadSeed(id)
	}
	for _, id := range d.store.list(branchesDir) {
		d.loadBranch(id)
	}
	for _, id := range d.store.list(stagingDir) {
		d.loadStaging(id)
	}
	d.dropLayers()
	for _, id := range d.store.list(draftDir) {
		d.dropHalf(path.Join(draftDir, id))
	}
	for _, v := range d.volumes {
		d.reconcile(v, mounted[v.id])
		delete(mounted, v.id)
	}
	for name := range mounted {
		if isID(name) {
			d.dropOrphan(name)
		}
	}
	return nil
}

// admit adds a volume that was read from the disk.
func (d *Driver) admit(v *volume) {
	if other := d.volumes[v.name]; other != nil {
		d.log.Error("two volumes have one name; only one is served", "name", v.name, "serving", other.dir(), "not", v.dir())
		return
	}
	v.phase = ready
	d.volumes[v.name] = v
}

// isDamaged tells whether metadata exists and cannot be used. What is damaged is
// neither served nor deleted: a person decides.
func (d *Driver) isDamaged(name string, format int, err error) bool {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err == nil && format > storeFormat:
		err = fmt.Errorf("has format %d, and this plugin knows up to %d", format, storeFormat)
	}
	if err != nil {
		d.log.Error("cannot use what is there; it is kept and not served", "path", name, "error", err)
	}
	return err != nil
}

// loadSeed reads a seed generation, which exists once meta.json and root do.
func (d *Driver) loadSeed(id string) {
	dir := path.Join(seedsDir, id)
	var m seedMeta
	err := readMeta(d.store.root, path.Join(dir, metaFile), &m)
	if d.isDamaged(dir, m.Format, err) {
		return
	}
	if err != nil || !isDir(d.store.root, path.Join(dir, rootDir)) {
		d.dropHalf(dir)
		return
	}
	var manifest contract.Manifest
	if err := readMeta(d.store.root, path.Join(dir, manifestFile), &manifest); err != nil {
		d.log.Error("a seed has no usable manifest; it is kept and not served", "path", dir, "error", err)
		return
	}
	d.admit(newSeed(&m, &manifest))
}

func (d *Driver) loadBranch(id string) {
	dir := path.Join(branchesDir, id)
	var m branchMeta
	err := readMeta(d.store.root, path.Join(dir, metaFile), &m)
	if d.isDamaged(dir, m.Format, err) {
		return
	}
	if err != nil {
		d.dropHalf(dir)
		return
	}
	// The folder is the identity: a layer that was exchanged for a branch carries it.
	m.ID = id
	d.admit(newBranch(&m))
}

// loadStaging reads a staging volume. Without its root it is what a seal left behind,
// if a seed says so.
func (d *Driver) loadStaging(id string) {
	dir := path.Join(stagingDir, id)
	var m stagingMeta
	err := readMeta(d.store.root, path.Join(dir, metaFile), &m)
	if d.isDamaged(dir, m.Format, err) {
		return
	}
	if err != nil || (d.sealedFrom(id) != nil && !isDir(d.store.root, path.Join(dir, stagingVolume, rootDir))) {
		d.dropHalf(dir)
		return
	}
	d.admit(newStaging(&m))
}

// sealedFrom gives the seed that a staging volume became, by the id of that. d.mu must
// be held.
func (d *Driver) sealedFrom(stagingID string) *volume {
	for _, v := range d.volumes {
		if v.kind == contract.KindSeed && v.seed.StagingID == stagingID {
			return v
		}
	}
	return nil
}

// dropLayers moves layers that no branch stands on, nor one that is being made, to the
// trash. The layers are listed first: one that is made after that is not among them.
func (d *Driver) dropLayers() {
	there := d.store.list(layersDir)
	used := map[string]bool{}
	d.mu.Lock()
	for _, v := range d.volumes {
		if v.kind == contract.KindBranch {
			for _, id := range v.branch.Layers {
				used[id] = true
			}
		}
	}
	d.mu.Unlock()
	for _, id := range there {
		if !used[id] {
			d.dropHalf(path.Join(layersDir, id))
		}
	}
}

func (d *Driver) dropHalf(dir string) {
	d.log.Info("dropping what is not, or no longer, part of a volume", "path", dir)
	if err := d.store.discard(dir); err != nil {
		d.log.Error("cannot drop it", "path", dir, "error", err)
	}
}

// reconcile takes the counts of mounts from the disk, and the truth from the kernel:
// a plugin that was disabled by force, or a dockerd that was killed, loses Unmounts.
func (d *Driver) reconcile(v *volume, mounted bool) {
	if v.kind == contract.KindSeed {
		return
	}
	var m mountsMeta
	err := readMeta(d.store.root, path.Join(v.dir(), mountsFile), &m)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("cannot read the mount counts", "volume", v.name, "error", err)
	}
	if mounted {
		// Without a count it may still be in use, if a full disk kept the count from being
		// saved. It stays for the next Mount to use and the next Unmount to end.
		v.refs = m.Refs
		return
	}
	if len(m.Refs) > 0 {
		d.saveRefs(v, nil)
	}
	d.unmountTarget(v.id, false)
}

// dropOrphan unmounts what belongs to no volume.
func (d *Driver) dropOrphan(id string) {
	d.log.Info("unmounting what belongs to no volume", "id", id)
	d.unmountTarget(id, true)
}

// unmountTarget unmounts an id and removes its mountpoint; errors are logged.
func (d *Driver) unmountTarget(id string, mounted bool) {
	target := filepath.Join(d.cfg.MountRoot, id)
	if mounted {
		if err := d.mounter.Unmount(target); err != nil {
			d.log.Error("cannot unmount", "target", target, "error", err)
			return
		}
	}
	removeMountpoint(target, d.log)
}

// sweepStaging removes staging volumes that nothing has mounted for stagingLife.
func (d *Driver) sweepStaging(ctx context.Context) {
	tick := time.NewTicker(stagingRound)
	defer tick.Stop()
	for {
		for _, name := range d.staleStaging(time.Now()) {
			d.log.Info("removing a stale staging volume", "volume", name)
			if err := d.Remove(ctx, name); err != nil {
				d.log.Warn("cannot remove it", "volume", name, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// staleStaging names the staging volumes that are older than stagingLife, that nothing
// mounts, and that nothing has mounted for as long. A clock that went backwards makes
// nothing stale.
func (d *Driver) staleStaging(now time.Time) []string {
	d.mu.Lock()
	var idle []*volume
	for _, v := range d.volumes {
		if v.kind == contract.KindStaging && v.phase == ready && !v.held() && now.Sub(v.created) > stagingLife {
			idle = append(idle, v)
		}
	}
	d.mu.Unlock()
	var names []string
	for _, v := range idle {
		info, err := d.store.root.Lstat(path.Join(v.dir(), mountsFile))
		if err != nil || now.Sub(info.ModTime()) > stagingLife {
			names = append(names, v.name)
		}
	}
	return names
}
