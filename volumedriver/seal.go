package volumedriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// seal turns a staging volume into the next generation of its seed and gives the
// name of that, NAME@GEN. The one step that counts is the rename of the root out of
// the staging volume: before it there is a staging volume, after it a seed. A seal
// that is repeated after that step answers as the first one did.
func (d *Driver) seal(ctx context.Context, name string) (sealedAs string, err error) {
	v, unlock, err := d.lockVolume(ctx, name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if v == nil {
		if seed := d.sealedAs(name); seed != "" {
			return seed, nil
		}
		return "", refuse(named("staging volume", name), "does not exist", "")
	}
	if v.kind != contract.KindStaging {
		return "", refuse(v.object(), "is no staging volume", "only a staging volume can be sealed")
	}
	seed, err := d.sealVolume(ctx, v)
	if err != nil {
		d.setErr(v, err)
		return "", err
	}
	d.step("seal: done")
	d.mu.Lock()
	delete(d.volumes, v.name)
	d.mu.Unlock()
	if err := d.store.discard(v.dir()); err != nil {
		d.log.Error("cannot drop a sealed staging volume", "volume", name, "error", err)
	}
	d.step("seal: staging volume dropped")
	d.usage.forget(v.id)
	go d.measureSeeds()
	d.log.Info("sealed", "volume", name, "seed", seed.name)
	return seed.name, nil
}

// sealedAs gives the newest seed that was a staging volume of that name.
func (d *Driver) sealedAs(stagingName string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var best *volume
	for _, v := range d.volumes {
		if v.kind == contract.KindSeed && v.phase == ready && v.seed.StagingName == stagingName &&
			(best == nil || v.created.After(best.created)) {
			best = v
		}
	}
	if best == nil {
		return ""
	}
	return best.name
}

func (d *Driver) sealVolume(ctx context.Context, v *volume) (*volume, error) {
	if v.damage != nil {
		return nil, v.refuseDamaged()
	}
	if d.isHeld(v) {
		return nil, refuse(v.object(), "a container is still using it", "stop it, then seal again")
	}
	if err := d.unmount(v); err != nil {
		return nil, err
	}
	manifest, data, err := d.checkStaging(v)
	if err != nil {
		return nil, &Error{Object: v.object(), Cause: "cannot be sealed", Err: err,
			Hint: "it has to be settled first; nothing was changed"}
	}
	if err := d.finishRoot(v, manifest); err != nil {
		return nil, failed(v.object(), "prepare its files", err)
	}
	d.step("seal: root prepared")
	if ctx.Err() != nil {
		return nil, failed(v.object(), "seal it in time", ctx.Err())
	}
	seed, err := d.reserveSeed(v, manifest)
	if err != nil {
		return nil, err
	}
	err = d.commitSeed(v, seed, data)
	d.settle(seed, err)
	if err != nil {
		return nil, failed(v.object(), "seal it", err)
	}
	return seed, nil
}

// checkStaging checks what the container left and gives its manifest. Everything in
// there is untrusted.
func (d *Driver) checkStaging(v *volume) (*contract.Manifest, []byte, error) {
	tree, err := d.store.root.OpenRoot(v.tree())
	if err != nil {
		return nil, nil, err
	}
	defer tree.Close()
	data, err := readRegular(tree, contract.StagingManifest, maxMetaBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("it has no usable %s: %w", contract.StagingManifest, err)
	}
	m, err := parseManifest(data)
	if err != nil {
		return nil, nil, err
	}
	if !isDir(tree, contract.StagingRoot) {
		return nil, nil, fmt.Errorf("it has no folder %s", contract.StagingRoot)
	}
	root, err := tree.OpenRoot(contract.StagingRoot)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	return m, data, checkCluster(root, m)
}

// finishRoot makes the root fit to be a lower layer and its content durable.
func (d *Driver) finishRoot(v *volume, m *contract.Manifest) error {
	root, err := d.store.root.OpenRoot(path.Join(v.tree(), contract.StagingRoot))
	if err != nil {
		return err
	}
	defer root.Close()
	// The runtime layer lies below the seed, so whatever has its name would hide it.
	if err := root.RemoveAll(contract.RuntimeDir); err != nil {
		return err
	}
	if m.DataDir != "." {
		// The root is then the folder that the image's PGDATA lies in. It was made before
		// anybody knew whose it would be.
		if err := root.Lchown(".", m.UID, m.GID); err != nil {
			return err
		}
		if err := root.Chmod(".", 0o755); err != nil {
			return err
		}
	}
	return syncFileSystem(root)
}

// syncFileSystem makes everything on the file system of root durable, which costs less
// than an fsync of each of a cluster's files.
func syncFileSystem(root *os.Root) error {
	f, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd()))), f.Close())
}

// reserveSeed takes the seed's next generation.
func (d *Driver) reserveSeed(v *volume, m *contract.Manifest) (*volume, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := 0
	for _, other := range d.volumes {
		if other.kind == contract.KindSeed && other.seed.Name == v.staging.Seed {
			last = max(last, other.seed.Generation)
		}
	}
	if last > 0 && !v.staging.Next {
		return nil, refuse(v.object(), fmt.Sprintf("seed %q exists already: %s", v.staging.Seed, seedVolume(v.staging.Seed, last)),
			"it was sealed while this one was being made; choose another name, or add a generation")
	}
	seed := newSeed(&seedMeta{
		Format: storeFormat, Name: v.staging.Seed, Generation: last + 1, Created: time.Now().UTC(),
		StagingID: v.id, StagingName: v.name,
	}, m)
	d.volumes[seed.name] = seed
	return seed, nil
}

// commitSeed makes the seed's folder and, as its last step, moves the root there. A
// container that still has the staging volume mounted, unknown to us, cannot reach the
// root by any path after that.
func (d *Driver) commitSeed(v, seed *volume, manifest []byte) (err error) {
	root := d.store.root
	id, err := d.store.makeDir(seedsDir)
	if err != nil {
		return err
	}
	d.setID(seed, id)
	d.step("seal: folder made")
	defer func() {
		if err != nil {
			err = errors.Join(err, d.store.discard(seed.dir()))
		}
	}()
	if err := writeDurable(root, path.Join(seed.dir(), manifestFile), manifest); err != nil {
		return err
	}
	d.step("seal: manifest written")
	if err := writeMeta(root, path.Join(seed.dir(), metaFile), seed.seed); err != nil {
		return err
	}
	if err := syncDir(root, seedsDir); err != nil {
		return err
	}
	d.step("seal: metadata written")
	from := path.Join(v.tree(), contract.StagingRoot)
	if !isDir(root, from) {
		return fmt.Errorf("%s is no folder any more", contract.StagingRoot)
	}
	if err := root.Rename(from, path.Join(seed.dir(), rootDir)); err != nil {
		return err
	}
	d.step("seal: root moved")
	d.store.writeName(seed.dir(), seed.name)
	// From here on it is a seed: an error must not undo it.
	if err := errors.Join(syncDir(root, seed.dir()), syncDir(root, v.tree())); err != nil {
		d.log.Error("cannot sync a seal", "seed", seed.name, "error", err)
	}
	return nil
}

// writeDurable writes a new file and makes its content durable.
func writeDurable(root *os.Root, name string, data []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
