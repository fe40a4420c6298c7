package volumedriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

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
	entries, err := os.ReadDir(d.cfg.MountRoot)
	if err != nil {
		return failed("mounts below "+d.cfg.MountRoot, "list them", err)
	}
	for _, v := range d.volumes {
		d.reconcile(v, mounted[v.id])
		delete(mounted, v.id)
	}
	// rmdir spares what is mounted.
	for _, e := range entries {
		if isID(e.Name()) {
			_ = unix.Rmdir(filepath.Join(d.cfg.MountRoot, e.Name()))
		}
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
		v.damage = fmt.Errorf("another volume, in %s, has its name, %s", other.dir(), v.name)
		v.name = damagedName(v.id)
	}
	if v.damage != nil {
		d.log.Error("cannot use a volume; it is kept and can be removed", "volume", v.name, "path", v.dir(), "error", v.damage)
	}
	v.phase = ready
	d.volumes[v.name] = v
}

// loadSeed reads a seed generation, which exists once meta.json and root do.
func (d *Driver) loadSeed(id string) {
	dir := path.Join(seedsDir, id)
	var m seedMeta
	name, damage, half := d.readIdentity(dir, &m, &m.Format)
	whole := isDir(d.store.root, path.Join(dir, rootDir))
	if half || (!whole && d.store.readName(dir) == "") {
		d.dropHalf(dir)
		return
	}
	if !whole {
		damage = errors.Join(damage, errors.New(rootDir+" is missing"))
	}
	var manifest *contract.Manifest
	if err := readMeta(d.store.root, path.Join(dir, manifestFile), &manifest); err != nil {
		damage, manifest = errors.Join(damage, err), nil
	}
	if damage != nil && (m.Name == "" || m.Generation < 1) {
		m.Name, m.Generation = splitSeedVolume(name)
	}
	m.ID = id
	v := newSeed(&m, manifest)
	v.damage = damage
	if m.Generation < 1 {
		v.name = damagedName(id)
	}
	d.admit(v)
}

func (d *Driver) loadBranch(id string) {
	dir := path.Join(branchesDir, id)
	var m branchMeta
	name, damage, half := d.readIdentity(dir, &m, &m.Format)
	if half {
		d.dropHalf(dir)
		return
	}
	// The folder is the identity: a layer that was exchanged for a branch carries it.
	m.ID, m.Name = id, firstName(m.Name, name, id)
	v := newBranch(&m)
	v.damage = damage
	d.admit(v)
}

// loadStaging reads a staging volume. Without its root it is what a seal left behind,
// if a seed says so.
func (d *Driver) loadStaging(id string) {
	dir := path.Join(stagingDir, id)
	var m stagingMeta
	name, damage, half := d.readIdentity(dir, &m, &m.Format)
	if half || (d.sealedFrom(id) != nil && !isDir(d.store.root, path.Join(dir, stagingVolume, rootDir))) {
		d.dropHalf(dir)
		return
	}
	m.ID, m.Name = id, firstName(m.Name, name, id)
	v := newStaging(&m)
	v.damage = damage
	if info, err := d.store.root.Lstat(dir); damage != nil && err == nil {
		v.created = info.ModTime() // for the sweep of what is stale
	}
	d.admit(v)
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
			if v.damage != nil && v.branch.SeedID == "" {
				// Nobody knows which layers it stands on.
				d.mu.Unlock()
				return
			}
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
	v.mounts = m
	if !mounted {
		d.dropRefs(v)
		return
	}
	// Without any count it may still be in use, if a full disk kept the count from being
	// saved. It stays for the next Mount to use and the next Unmount to end.
	left := m.settled()
	if !m.Ending && (len(m.Open) == 0 || left.held()) {
		if len(m.Open) > 0 {
			d.editMounts(v, func(m *mountsMeta) { *m = left })
		}
		return
	}
	d.log.Info("ending what a request left that the plugin died in", "volume", v.name)
	if v.kind == contract.KindBranch && d.stillHeld(v) {
		// The answer to a Mount was sent after all.
		d.editMounts(v, func(m *mountsMeta) { m.Open = nil })
		return
	}
	d.unmountTarget(v.id, true)
	d.dropRefs(v)
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
		if v.kind == contract.KindStaging && v.phase == ready && !v.mounts.held() && now.Sub(v.created) > stagingLife {
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
