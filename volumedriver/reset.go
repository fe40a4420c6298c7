package volumedriver

import (
	"context"
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// reset puts a branch that nothing uses back to what it was made of. A fresh folder is
// built as a draft and exchanged with the branch's own, so that at every moment the
// branch is whole and what lies among the drafts may be deleted after a crash.
func (d *Driver) reset(ctx context.Context, name string) error {
	v, unlock, err := d.lockVolume(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if v == nil {
		return refuse(named("branch", name), "does not exist", "")
	}
	if v.kind != contract.KindBranch {
		return refuse(v.object(), "is no branch", "only a branch can be reset")
	}
	err = d.resetBranch(ctx, v)
	d.setErr(v, err)
	if err == nil {
		d.usage.forget(v.id)
		d.log.Info("reset", "branch", name)
	}
	return err
}

func (d *Driver) resetBranch(ctx context.Context, v *volume) error {
	if v.damage != nil {
		return v.refuseDamaged()
	}
	if d.inUse(v) {
		return refuse(v.object(), "a container is using it",
			"stop it first; it is listed by: docker ps --filter volume="+v.name)
	}
	d.mu.Lock()
	seed := d.seedByID(v.branch.SeedID)
	meta := *v.branch
	d.mu.Unlock()
	if seed == nil {
		return refuse(v.object(), "its seed is missing from the data root", "")
	}
	meta.Layers = meta.Base
	id, err := d.store.makeDir(draftDir)
	if err != nil {
		return failed(v.object(), "reset it", err)
	}
	top, walHead := ground(&meta, seed)
	if ctx.Err() != nil {
		return failed(v.object(), "reset it in time", errors.Join(ctx.Err(), d.store.discard(path.Join(draftDir, id))))
	}
	if err := d.exchangeBranch(v, &meta, draftDir, id, top, walHead); err != nil {
		return failed(v.object(), "reset it", err)
	}
	if err := d.store.discard(path.Join(draftDir, id)); err != nil {
		d.log.Error("cannot drop what a branch was", "branch", v.name, "error", err)
	}
	d.mu.Lock()
	v.branch = &meta
	d.mu.Unlock()
	d.dropLayers()
	return nil
}

// ground gives the topmost layer that a branch's upper lies on and, where that is the
// seed itself, the WAL head to place. Over a frozen layer there is none to place: the
// seed's is older than the layer's.
func ground(m *branchMeta, seed *volume) (top, walHead string) {
	if len(m.Layers) > 0 {
		return path.Join(layersDir, m.Layers[0], upperDir), ""
	}
	return path.Join(seed.dir(), rootDir), walHeadOf(seed.manifest)
}

// exchangeBranch builds a branch's folder anew, with an empty upper on top, in the
// folder id below where, and exchanges it with the branch's: what the branch was lies
// there afterwards.
func (d *Driver) exchangeBranch(v *volume, meta *branchMeta, where, id, top, walHead string) error {
	root := d.store.root
	draft := path.Join(where, id)
	err := d.store.makeUpper(draft, top, walHead)
	if err == nil {
		err = d.placeSettings(draft, meta)
	}
	if err == nil {
		err = writeMeta(root, path.Join(draft, metaFile), meta)
		d.store.writeName(draft, meta.Name)
	}
	d.step("exchange: built")
	if err == nil {
		err = d.store.exchange(where, id, branchesDir, v.id)
	}
	if err != nil {
		return errors.Join(err, root.RemoveAll(draft))
	}
	d.step("exchange: done")
	// It is done: an error from here on must not undo it.
	if err := errors.Join(syncDir(root, branchesDir), syncDir(root, where)); err != nil {
		d.log.Error("cannot sync an exchange", "branch", v.name, "error", err)
	}
	return nil
}

// exchange swaps two folders in one step.
func (s *store) exchange(dirA, a, dirB, b string) error {
	from, err := s.root.Open(dirA)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := s.root.Open(dirB)
	if err != nil {
		return err
	}
	defer to.Close()
	return unix.Renameat2(int(from.Fd()), a, int(to.Fd()), b, unix.RENAME_EXCHANGE)
}
