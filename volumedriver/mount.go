package volumedriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Mount mounts a volume for Docker's mount id and gives the mountpoint. It counts: the
// volume stays mounted until every Mount of every id has had its Unmount. If the
// context has ended when the mount is done, dockerd has given up and will not send an
// Unmount, so the mount is undone.
func (d *Driver) Mount(ctx context.Context, name, id string) (string, error) {
	v, unlock, err := d.lockVolume(ctx, name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if v == nil {
		if d.isTicket(name) {
			return "", refuse(named("ticket", name), "cannot be mounted", "remove it: docker volume rm "+name)
		}
		return "", notFound(name)
	}
	if v.kind == contract.KindSeed {
		return "", refuse(v.object(), "a sealed seed is never mounted itself",
			"make a branch of it: docker volume create -d "+contract.DriverName+" -o seed="+v.name+" NAME")
	}
	if err := d.ensureMounted(v); err != nil {
		d.setErr(v, err)
		return "", err
	}
	d.step("mount: mounted")
	d.addRef(v, id, 1)
	d.step("mount: counted")
	if ctx.Err() != nil {
		d.release(v, id)
		return "", failed(v.object(), "mount it in time", ctx.Err())
	}
	d.setErr(v, nil)
	return d.target(v), nil
}

// Unmount takes back one Mount of that id, and unmounts after the last. It never
// fails: dockerd only logs the error, keeps the id active, and would count wrong from
// then on (daemon/volumes_unix.go).
func (d *Driver) Unmount(ctx context.Context, name, id string) {
	v, unlock, err := d.lockVolume(ctx, name)
	if err != nil || v == nil || v.kind == contract.KindSeed {
		d.log.Debug("unmount of nothing", "volume", name, "id", id, "error", err)
		if unlock != nil {
			unlock()
		}
		return
	}
	defer unlock()
	d.release(v, id)
}

// release takes back one mount of an id, and unmounts what nobody holds any more. The
// volume's lock must be held.
func (d *Driver) release(v *volume, id string) {
	if d.addRef(v, id, -1) {
		return
	}
	d.step("unmount: counted")
	if err := d.unmount(v); err != nil {
		d.log.Error("cannot unmount", "volume", v.name, "error", err)
		d.setErr(v, err)
	}
}

// addRef changes the count of an id, saves the counts, and reports whether any id
// holds the volume now. The volume's lock must be held.
func (d *Driver) addRef(v *volume, id string, by int) (held bool) {
	d.mu.Lock()
	refs := maps.Clone(v.refs)
	if refs == nil {
		refs = map[string]int{}
	}
	if refs[id] += by; refs[id] <= 0 {
		delete(refs, id)
	}
	v.refs = refs
	held = v.held()
	d.mu.Unlock()
	d.saveRefs(v, refs)
	return held
}

// saveRefs writes the counts, as well as that can be done: on a full disk they are lost
// with this process, and a restart takes the truth from the kernel.
func (d *Driver) saveRefs(v *volume, refs map[string]int) {
	if err := replaceFile(d.store.root, path.Join(v.dir(), mountsFile), mountsMeta{Refs: refs}, false); err != nil {
		d.log.Warn("cannot save the mount counts", "volume", v.name, "error", err)
	}
}

// dropRefs forgets every count. The volume's lock must be held.
func (d *Driver) dropRefs(v *volume) {
	d.mu.Lock()
	had := len(v.refs) > 0
	v.refs = nil
	d.mu.Unlock()
	if had {
		d.saveRefs(v, nil)
	}
}

// isHeld reports whether any id holds the volume.
func (d *Driver) isHeld(v *volume) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return v.held()
}

// ensureMounted mounts a volume where it is not mounted already. The volume's lock
// must be held.
func (d *Driver) ensureMounted(v *volume) error {
	target := d.target(v)
	mounted, err := d.mounter.Mounted(target)
	if err != nil {
		return failed(v.object(), "look at its mountpoint", err)
	}
	if mounted {
		return nil
	}
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return failed(v.object(), "make its mountpoint", err)
	}
	if v.kind == contract.KindStaging {
		err = d.mountStaging(v, target)
	} else {
		err = d.mountBranch(v, target)
	}
	if err != nil {
		removeMountpoint(target, d.log)
		return err
	}
	// The mount is new, so whoever was counted has lost theirs.
	d.dropRefs(v)
	return nil
}

func (d *Driver) mountStaging(v *volume, target string) error {
	if !isDir(d.store.root, v.tree()) {
		return refuse(v.object(), "its folder is missing from the data root", "make it again")
	}
	if err := d.mounter.Bind(d.store.host(v.tree()), target); err != nil {
		return failed(v.object(), "mount it", err)
	}
	return nil
}

// mountBranch mounts the overlay of a branch.
func (d *Driver) mountBranch(v *volume, target string) error {
	if err := d.checkFileSystem(v.object()); err != nil {
		return err
	}
	d.checkKernel()
	plan, err := d.branchPlan(v)
	if err != nil {
		return err
	}
	preload := plan.preload
	stale, err := d.runtime.isStale(v.tree(), preload)
	if err != nil {
		return failed(v.object(), "look for files of another plugin version", err)
	}
	if stale {
		// The upper may be changed only while nobody holds it; a mount is what tells.
		if err := d.mountOverlay(v, plan.probe(), target); err != nil {
			return err
		}
		if err := d.mounter.Unmount(target); err != nil {
			return failed(v.object(), "unmount it", err)
		}
		if err := d.runtime.dropStale(v.tree(), preload); err != nil {
			return failed(v.object(), "drop files of another plugin version", err)
		}
	}
	return d.mountOverlay(v, plan, target)
}

func (d *Driver) mountOverlay(v *volume, plan overlayPlan, target string) error {
	if err := d.mounter.Overlay(plan, target); err != nil {
		cause, hint := mountHint(err, v.name)
		return &Error{Object: v.object(), Cause: cause, Hint: hint, Err: err}
	}
	return nil
}

// branchPlan gives a branch's overlay: the upper, frozen layers, the seed, and the
// runtime layers at the bottom.
func (d *Driver) branchPlan(v *volume) (overlayPlan, error) {
	d.mu.Lock()
	m := v.branch
	seed := d.seedByID(m.SeedID)
	d.mu.Unlock()
	if seed == nil {
		return overlayPlan{}, refuse(v.object(), fmt.Sprintf("its seed %s is missing from the data root", seedVolume(m.Seed, m.Generation)),
			"the plugin's log says why: journalctl -u docker")
	}
	lazy := d.eagerBecause(v) == ""
	layers, err := d.runtime.layersOf(seed.manifest, lazy)
	if err != nil {
		return overlayPlan{}, failed(v.object(), "make the layers with the shim and the agent", err)
	}
	var dirs []string
	for _, id := range m.Layers {
		dirs = append(dirs, path.Join(layersDir, id, upperDir))
	}
	dirs = append(append(dirs, path.Join(seed.dir(), rootDir)), layers...)
	upper, work := path.Join(v.dir(), upperDir), path.Join(v.dir(), workDir)
	// A missing folder, or a link in its place, must never become an empty PGDATA or
	// some other folder's content.
	for _, dir := range append([]string{upper, work}, dirs...) {
		if !isDir(d.store.root, dir) {
			return overlayPlan{}, refuse(v.object(), dir+" is missing from the data root", "make the branch again")
		}
	}
	plan := overlayPlan{Upper: d.store.host(upper), Work: d.store.host(work), preload: preloadID(preloadConf(seed.manifest, lazy))}
	for _, dir := range dirs {
		plan.Lower = append(plan.Lower, d.store.host(dir))
	}
	return plan, nil
}

// unmount removes a volume's mount and mountpoint. The volume's lock must be held.
func (d *Driver) unmount(v *volume) error {
	target := d.target(v)
	if err := d.mounter.Unmount(target); err != nil {
		return failed(v.object(), "unmount it", err)
	}
	removeMountpoint(target, d.log)
	return nil
}

// removeMountpoint removes the empty folder that was mounted on; rmdir spares any other.
func removeMountpoint(target string, log *slog.Logger) {
	if err := unix.Rmdir(target); err != nil && !errors.Is(err, unix.ENOENT) {
		log.Warn("cannot remove a mountpoint", "target", target, "error", err)
	}
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
