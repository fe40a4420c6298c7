package volumedriver

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// createBranchOfBranch makes a branch of a branch that nothing uses. The parent's
// upper is frozen: it becomes a layer that both stand on, and the parent goes on with
// an empty upper above it. The name of the new branch is locked by the caller; the
// parent's lock is taken only once the parent is known to exist, and so cannot be
// waiting for this one.
func (d *Driver) createBranchOfBranch(ctx context.Context, m *branchMeta, o options) error {
	object := named(contract.KindBranch, m.Name)
	missing := refuse(object, fmt.Sprintf("branch %q does not exist", o.parent), "the branches are listed by: docker pgbranch ls")
	if d.find(o.parent) == nil {
		return missing
	}
	parent, unlock, err := d.lockVolume(ctx, o.parent)
	if err != nil {
		return err
	}
	defer unlock()
	if parent == nil {
		return missing
	}
	if parent.kind != contract.KindBranch {
		return refuse(object, fmt.Sprintf("%q is no branch", o.parent), "give a branch, or use "+contract.OptSeed+"=NAME")
	}
	if parent.damage != nil {
		return parent.refuseDamaged()
	}
	v := newBranch(m)
	var seed *volume
	err = d.reserve(v, func() error {
		p := parent.branch
		if seed = d.seedByID(p.SeedID); seed == nil {
			return refuse(object, fmt.Sprintf("the seed of branch %q is missing from the data root", o.parent), "")
		}
		m.SeedID, m.Seed, m.Generation = p.SeedID, p.Seed, p.Generation
		m.Parent, m.ParentID = parent.name, parent.id
		m.Settings = withSettings(p.Settings, m.Conf)
		return nil
	})
	if err != nil {
		return err
	}
	err = d.branchOff(ctx, v, parent, seed)
	d.settle(v, err)
	if err != nil {
		return failed(object, "make it", err)
	}
	d.log.Info("made a branch", "branch", m.Name, "parent", parent.name)
	return nil
}

// branchOff freezes the parent and builds the branch on what was frozen.
func (d *Driver) branchOff(ctx context.Context, v, parent, seed *volume) error {
	if d.inUse(parent) {
		return refuse(parent.object(), "a container is using it, and a branch can be made only of one at rest",
			"stop it first; it is listed by: docker ps --filter volume="+parent.name)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	layers, err := d.freeze(v, parent, seed)
	if err != nil {
		return err
	}
	return d.buildBranch(ctx, v, path.Join(layersDir, layers[0], upperDir), "")
}

// freeze turns a branch's upper into a layer and gives the layers that the branch then
// stands on. The layer's folder is prepared as the branch's next one, with an empty
// upper, and exchanged with the branch's own. Until then the layer belongs to nobody,
// and is swept after a crash; from then on the branch's metadata names it.
func (d *Driver) freeze(v, parent, seed *volume) ([]string, error) {
	// The runtime layer lies at the bottom, so a copy of another version's files in a
	// layer would hide it.
	if err := d.store.root.RemoveAll(path.Join(parent.tree(), contract.RuntimeDir)); err != nil {
		return nil, err
	}
	id := newID()
	d.mu.Lock()
	meta := *parent.branch
	meta.Layers = slices.Insert(slices.Clone(meta.Layers), 0, id)
	// The new branch is reserved, so no sweep takes a layer that it names.
	v.branch.Layers, v.branch.Base = meta.Layers, meta.Layers
	d.mu.Unlock()
	if err := d.checkDepth(v, seed); err != nil {
		return nil, err
	}
	if err := d.store.root.Mkdir(path.Join(layersDir, id), 0o700); err != nil {
		return nil, err
	}
	if err := d.exchangeBranch(parent, &meta, layersDir, id, parent.tree(), ""); err != nil {
		return nil, err
	}
	d.mu.Lock()
	parent.branch = &meta
	d.mu.Unlock()
	d.usage.forget(parent.id)
	return meta.Layers, nil
}

// checkDepth refuses more layers than one mount takes. Ids have one length, so any
// upper will do.
func (d *Driver) checkDepth(v, seed *volume) error {
	plan := overlayPlan{Upper: d.store.host(branchesDir, newID(), upperDir), Work: d.store.host(branchesDir, newID(), workDir)}
	for _, id := range v.branch.Layers {
		plan.Lower = append(plan.Lower, d.store.host(layersDir, id, upperDir))
	}
	manifest, err := d.manifestOf(seed)
	if err != nil {
		return err
	}
	layers, err := d.runtime.layersOf(manifest, d.eagerBecause(v) == "")
	if err != nil {
		return err
	}
	for _, dir := range append([]string{path.Join(seed.dir(), rootDir)}, layers...) {
		plan.Lower = append(plan.Lower, d.store.host(dir))
	}
	if _, err := plan.options(); err != nil {
		return refuse(v.object(), err.Error(), "make it of the seed "+seed.name+" instead, or refresh the seed")
	}
	return nil
}
