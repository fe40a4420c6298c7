package volumedriver

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// mountsMeta is mounts.json: who holds a volume. It only matters while the kernel that
// holds the mounts is up, so it is written without fsync.
type mountsMeta struct {
	// Refs counts mounts by Docker's mount id.
	Refs map[string]int `json:"refs"`
	// Open counts those Mounts, by id, whose answer is not known to be sent. If the
	// plugin ends now, dockerd sends the request again with an empty body, gets an error,
	// and sends no Unmount.
	Open map[string]int `json:"open,omitempty"`
	// Ending says that nobody holds the volume and it is being unmounted.
	Ending bool `json:"ending,omitempty"`
	// Runtime are the folders below the data root of the runtime layers of the last mount.
	Runtime []string `json:"runtime,omitempty"`
}

// count gives counts with one changed; what is not positive is left out.
func count(counts map[string]int, id string, by int) map[string]int {
	counts = maps.Clone(counts)
	if counts == nil {
		counts = map[string]int{}
	}
	if counts[id] += by; counts[id] <= 0 {
		delete(counts, id)
	}
	return counts
}

// settled takes back the Mounts that were never answered.
func (m mountsMeta) settled() mountsMeta {
	for id, n := range m.Open {
		m.Refs = count(m.Refs, id, -n)
	}
	m.Open = nil
	return m
}

func (m mountsMeta) held() bool { return len(m.Refs) > 0 }

// editMounts changes who holds a volume, in memory and on disk. The volume's lock must
// be held.
func (d *Driver) editMounts(v *volume, edit func(*mountsMeta)) mountsMeta {
	d.mu.Lock()
	m := v.mounts
	edit(&m)
	v.mounts = m
	d.mu.Unlock()
	// On a full disk the counts are lost with this process, and a restart takes the truth
	// from the kernel.
	if err := replaceFile(d.store.root, path.Join(v.dir(), mountsFile), m, false); err != nil {
		d.log.Warn("cannot save the mount counts", "volume", v.name, "error", err)
	}
	return m
}

// addRef counts a Mount. The volume's lock must be held.
func (d *Driver) addRef(v *volume, id string) {
	d.editMounts(v, func(m *mountsMeta) {
		m.Refs, m.Open, m.Ending = count(m.Refs, id, 1), count(m.Open, id, 1), false
	})
}

// takeRef takes one Mount of an id back and reports whether any id holds the volume
// now. The volume's lock must be held.
func (d *Driver) takeRef(v *volume, id string) (held bool) {
	return d.editMounts(v, func(m *mountsMeta) {
		m.Refs = count(m.Refs, id, -1)
		m.Ending = !m.held()
	}).held()
}

// Answered is told once the answer to a Mount is on its way to dockerd.
func (d *Driver) Answered(name, id string) {
	// It waits for the volume, never for long, and with nobody waiting for it.
	v, unlock, err := d.lockVolume(context.Background(), name)
	if err != nil {
		return
	}
	defer unlock()
	if v != nil && v.kind != contract.KindSeed {
		d.editMounts(v, func(m *mountsMeta) { m.Open = count(m.Open, id, -1) })
	}
}

// dropRefs forgets every count. The volume's lock must be held.
func (d *Driver) dropRefs(v *volume) {
	d.mu.Lock()
	had := len(v.mounts.Refs)+len(v.mounts.Open) > 0
	d.mu.Unlock()
	if had {
		d.editMounts(v, func(m *mountsMeta) { m.Refs, m.Open, m.Ending = nil, nil, false })
	}
}

// isHeld reports whether any id holds the volume.
func (d *Driver) isHeld(v *volume) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return v.mounts.held()
}

// inUse reports whether a container has a branch mounted. Counts alone do not tell: a
// dockerd that was killed, a container that ended while dockerd was down, and a plugin
// that died lose Unmounts. The volume's lock must be held.
func (d *Driver) inUse(v *volume) bool {
	// The answer that costs nothing comes first. What follows unmounts the branch in the
	// plugin, and it cannot be mounted there again before the container has ended:
	// `docker cp` would fail until then.
	if d.isHeld(v) && d.serverRuns(v) {
		return true
	}
	if d.stillHeld(v) {
		return true
	}
	d.dropRefs(v)
	return false
}

// serverRuns reports whether a server with the shim runs on a mounted branch: it holds
// a flock on its PGDATA (shim/src/lock.c), which waits out the moment that this takes.
func (d *Driver) serverRuns(v *volume) bool {
	d.mu.Lock()
	seed, dataDir := d.seedByID(v.branch.SeedID), "."
	if seed != nil && seed.manifest != nil {
		dataDir = seed.manifest.DataDir
	}
	d.mu.Unlock()
	return isLocked(d.target(v), dataDir)
}

// isLocked reports whether anybody has a flock on the folder name below dir.
func isLocked(dir, name string) bool {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false
	}
	defer root.Close()
	f, err := openBeneath(root, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// stillHeld reports whether anything outside the plugin's own mounts uses a branch: it
// unmounts the branch and mounts it again, which with index=on fails with EBUSY as
// long as any mount namespace holds the upper (fs/overlayfs/super.c, ovl_get_upper).
// That tells a lost Unmount from a container that runs. Any other error says nothing
// and counts as not held. The volume's lock must be held.
func (d *Driver) stillHeld(v *volume) bool {
	if err := d.unmount(v); err != nil {
		d.log.Error("cannot unmount", "volume", v.name, "error", err)
		return true
	}
	plan, err := d.branchPlan(v)
	if err != nil {
		// The kernel looks at the upper before it looks at what is below.
		plan, err = d.barePlan(v)
	}
	if err != nil {
		d.log.Debug("no probe", "volume", v.name, "error", err)
		return false
	}
	target := d.target(v)
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		d.log.Warn("no probe", "volume", v.name, "error", err)
		return false
	}
	err = d.mounter.Overlay(plan.probe(), target)
	if err == nil {
		err = d.mounter.Unmount(target)
	}
	removeMountpoint(target, d.log)
	return errors.Is(err, unix.EBUSY)
}

// barePlan gives a plan for stillHeld where the layers of a branch are not known.
func (d *Driver) barePlan(v *volume) (overlayPlan, error) {
	upper, work := path.Join(v.dir(), upperDir), path.Join(v.dir(), workDir)
	for _, dir := range []string{upper, work} {
		if !isDir(d.store.root, dir) {
			return overlayPlan{}, &fs.PathError{Op: "mount", Path: dir, Err: fs.ErrNotExist}
		}
	}
	return overlayPlan{Lower: []string{d.store.host(draftDir)}, Upper: d.store.host(upper), Work: d.store.host(work)}, nil
}
