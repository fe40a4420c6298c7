package volumedriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Mount mounts a volume for Docker's mount id and gives the mountpoint. It counts: the
// volume stays mounted until every Mount of every id has had its Unmount. If the
// context has ended when the mount is done, dockerd has given up and will not send an
// Unmount, so the mount is undone. The count is open until Answered.
func (d *Driver) Mount(ctx context.Context, name, id string) (string, error) {
	v, unlock, err := d.lockVolume(ctx, name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := d.mountable(v, name); err != nil {
		return "", err
	}
	mounted, err := d.mounter.Mounted(d.target(v))
	if err != nil {
		return "", failed(v.object(), "look at its mountpoint", err)
	}
	if !mounted {
		// Whoever is counted has lost the mount.
		d.dropRefs(v)
	}
	d.addRef(v, id)
	d.step("mount: counted")
	if !mounted {
		if err := d.mountVolume(v); err != nil {
			d.dropRefs(v)
			d.setErr(v, err)
			return "", err
		}
	}
	d.step("mount: mounted")
	if ctx.Err() != nil {
		d.release(v, id)
		return "", failed(v.object(), "mount it in time", ctx.Err())
	}
	d.setErr(v, nil)
	return d.target(v), nil
}

// mountable refuses what cannot be mounted at all.
func (d *Driver) mountable(v *volume, name string) error {
	switch {
	case v == nil && d.isTicket(name):
		return refuse(named("ticket", name), "cannot be mounted", "remove it: docker volume rm "+name)
	case v == nil:
		return notFound(name)
	case v.kind == contract.KindSeed:
		return refuse(v.object(), "a sealed seed is never mounted itself",
			"make a branch of it: docker volume create -d "+contract.DriverName+" -o seed="+v.name+" NAME")
	case v.damage != nil:
		return v.refuseDamaged()
	}
	return nil
}

// Unmount takes back one Mount of that id, and unmounts after the last. It never
// fails: dockerd only logs the error, keeps the id active, and would count wrong from
// then on (daemon/volumes_unix.go). It goes on where dockerd has given up, since that
// sends no other.
func (d *Driver) Unmount(ctx context.Context, name, id string) {
	v, unlock, err := d.lockVolume(context.WithoutCancel(ctx), name)
	if err != nil {
		d.log.Error("cannot unmount", "volume", name, "error", err)
		return
	}
	defer unlock()
	if v == nil || v.kind == contract.KindSeed {
		d.log.Debug("unmount of nothing", "volume", name, "id", id)
		return
	}
	d.release(v, id)
}

// release takes back one mount of an id, and unmounts what nobody holds any more. The
// volume's lock must be held.
func (d *Driver) release(v *volume, id string) {
	if d.takeRef(v, id) {
		return
	}
	d.step("unmount: counted")
	if err := d.unmount(v); err != nil {
		d.log.Error("cannot unmount", "volume", v.name, "error", err)
		d.setErr(v, err)
	}
	d.step("unmount: unmounted")
}

// mountVolume mounts a volume that is not mounted. The volume's lock must be held.
func (d *Driver) mountVolume(v *volume) error {
	// Gone with a mount of the host that was its peer: what is mounted now stays in here.
	if reach, err := d.mounter.Mounted(d.cfg.MountRoot); err != nil || !reach {
		return &Error{Object: v.object(), Cause: "the plugin's mounts no longer reach the engine's host", Err: err,
			Hint: "start the plugin again, which ends no container: docker plugin disable -f pgoverlay && docker plugin enable pgoverlay"}
	}
	target := d.target(v)
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return failed(v.object(), "make its mountpoint", err)
	}
	var err error
	if v.kind == contract.KindStaging {
		err = d.mountStaging(v, target)
	} else {
		err = d.mountBranch(v, target)
	}
	if err != nil {
		removeMountpoint(target, d.log)
	}
	return err
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
	if err := d.mountOverlay(v, plan, target); err != nil {
		return err
	}
	d.mu.Lock()
	// It is saved with the next count, at the latest when the Mount is answered.
	v.mounts.Runtime = plan.runtime
	d.mu.Unlock()
	return nil
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
	manifest, err := d.manifestOf(seed)
	if err != nil {
		return overlayPlan{}, failed(v.object(), "find out about its seed", err)
	}
	lazy := d.eagerBecause(v) == ""
	layers, err := d.runtime.layersOf(manifest, lazy)
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
	plan := overlayPlan{Upper: d.store.host(upper), Work: d.store.host(work), preload: preloadID(preloadConf(manifest, lazy)), runtime: layers}
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
