package volumedriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// stagingGrace is how long a new staging volume that nothing mounts yet reserves its
// seed's name: the time between a create and the start of the container that fills it.
const stagingGrace = 30 * time.Second

// Create makes a volume, or does the work of a ticket. It is idempotent: the same name
// with the same options is no error, since dockerd sends a create again.
func (d *Driver) Create(ctx context.Context, name string, opts map[string]string) error {
	o, err := parseOptions(name, opts)
	if err != nil {
		return err
	}
	if o.kind == contract.KindTicket {
		return d.createTicket(ctx, name, o)
	}
	v, unlock, err := d.lockVolume(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if v != nil {
		return d.sameOptions(v, o)
	}
	if o.kind == contract.KindStaging {
		return d.createStaging(ctx, name, o)
	}
	return d.createBranch(ctx, name, o)
}

// sameOptions refuses a create of a volume that exists with other options.
func (d *Driver) sameOptions(v *volume, o options) error {
	if v.damage != nil {
		return v.refuseDamaged()
	}
	exists := refuse(v.object(), "exists already with other options",
		"choose another name, or remove it first: docker volume rm "+v.name)
	if v.kind != o.kind {
		return exists
	}
	if v.kind == contract.KindStaging {
		if v.staging.Seed != o.seed || v.staging.Next != o.next {
			return exists
		}
		return nil
	}
	m := v.branch
	sameParent := m.Asked == o.asked() ||
		(o.parent == "" && m.Parent == "" && o.seed == m.Seed && o.generation == m.Generation)
	if !sameParent || m.Cow != o.cow || m.TTL != o.ttl || m.Conf != o.conf {
		return exists
	}
	return nil
}

// asked is the option that chose a branch's parent.
func (o options) asked() string {
	switch {
	case o.parent != "":
		return contract.OptBranch + "=" + o.parent
	case o.generation != 0:
		return contract.OptSeed + "=" + seedVolume(o.seed, o.generation)
	}
	return contract.OptSeed + "=" + o.seed
}

// reserve puts a volume that is being made under its name, so that nothing else takes
// the name or removes what it stands on. check runs under the same lock.
func (d *Driver) reserve(v *volume, check func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tickets[v.name] != nil || d.volumes[v.name] != nil {
		return refuse(named("volume", v.name), "exists already", "choose another name")
	}
	if err := check(); err != nil {
		return err
	}
	d.volumes[v.name] = v
	return nil
}

// settle ends a reservation: the volume is ready, or, with an error, was never there.
func (d *Driver) settle(v *volume, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		v.phase = ready
	} else if d.volumes[v.name] == v {
		delete(d.volumes, v.name)
	}
}

// createBranch makes a branch of a seed. It costs the same whatever the seed's size.
func (d *Driver) createBranch(ctx context.Context, name string, o options) error {
	if err := d.checkFileSystem(named(contract.KindBranch, name)); err != nil {
		return err
	}
	if o.cow == contract.CowFile {
		d.checkKernel()
		if why := d.engineEagerBecause(); why != "" {
			return refuse(named(contract.KindBranch, name), "cannot be made with cow=file: "+why,
				"leave it out to get an eager branch, which copies each file that Postgres opens")
		}
	}
	now := clockNow()
	m := &branchMeta{Format: storeFormat, Name: name, Asked: o.asked(), Cow: o.cow, TTL: o.ttl,
		Created: now.wall, Boot: now.boot, Up: now.up, Conf: o.conf, Settings: withSettings(nil, o.conf)}
	if o.parent != "" {
		return d.createBranchOfBranch(ctx, m, o)
	}
	v := newBranch(m)
	var seed *volume
	err := d.reserve(v, func() error {
		if seed = d.findSeed(o.seed, o.generation); seed == nil {
			return d.noSeed(v.object(), o)
		}
		m.SeedID, m.Seed, m.Generation = seed.id, seed.seed.Name, seed.seed.Generation
		return nil
	})
	if err != nil {
		return err
	}
	err = d.buildBranch(ctx, v, path.Join(seed.dir(), rootDir), walHeadOf(seed.manifest))
	d.settle(v, err)
	if err != nil {
		return failed(v.object(), "make it", err)
	}
	d.log.Info("made a branch", "branch", name, "seed", seed.name)
	return nil
}

// noSeed says which seeds there are instead. d.mu must be held.
func (d *Driver) noSeed(object string, o options) error {
	if o.generation == 0 {
		return refuse(object, fmt.Sprintf("seed %q does not exist", o.seed), d.seedsHere())
	}
	newest := d.findSeed(o.seed, 0)
	if newest == nil {
		return refuse(object, fmt.Sprintf("seed %q does not exist", o.seed), d.seedsHere())
	}
	return refuse(object, fmt.Sprintf("seed %q has no generation %d", o.seed, o.generation),
		"its newest is "+newest.name)
}

// buildBranch makes a branch's folder, to lie on the layer top. meta.json comes last: without it the folder is
// no branch, and is swept at the next start.
func (d *Driver) buildBranch(ctx context.Context, v *volume, top, walHead string) error {
	id, err := d.store.makeDir(branchesDir)
	if err != nil {
		return err
	}
	d.setID(v, id)
	d.step("create: folder made")
	err = d.store.makeUpper(v.dir(), top, walHead)
	if err == nil {
		err = d.placeSettings(v.dir(), v.branch)
	}
	d.step("create: upper made")
	if err == nil {
		err = writeMeta(d.store.root, path.Join(v.dir(), metaFile), v.branch)
	}
	d.step("create: metadata written")
	if err == nil {
		err = syncDir(d.store.root, branchesDir)
	}
	if err == nil {
		// dockerd has given up, and has told its user that there is no branch.
		err = context.Cause(ctx)
	}
	if err != nil {
		return errors.Join(err, d.store.discard(v.dir()))
	}
	d.store.writeName(v.dir(), v.name)
	return nil
}

// createStaging makes a staging volume: an empty root for a cluster, and the runtime
// as a copy, because the container that fills it may write to all of it.
func (d *Driver) createStaging(ctx context.Context, name string, o options) error {
	if err := d.checkFileSystem(named("volume", name)); err != nil {
		return err
	}
	m := &stagingMeta{Format: storeFormat, Name: name, Seed: o.seed, Next: o.next, Created: time.Now().UTC()}
	v := newStaging(m)
	if err := d.reserve(v, func() error { return d.seedNameFree(v, m.Created) }); err != nil {
		return err
	}
	err := d.buildStaging(ctx, v)
	d.settle(v, err)
	if err != nil {
		return failed(v.object(), "make it", err)
	}
	d.log.Info("made a staging volume", "volume", name, "seed", o.seed)
	return nil
}

// seedNameFree refuses, for generation=first, the name of a seed that exists or that
// another staging volume is being filled for: one that is mounted, or that was made
// within stagingGrace. Others are leftovers and do not count; of two that go on all
// the same, the second seal is refused. d.mu must be held.
func (d *Driver) seedNameFree(v *volume, now time.Time) error {
	if v.staging.Next {
		return nil
	}
	seed := v.staging.Seed
	if newest := d.findSeed(seed, 0); newest != nil {
		return refuse(v.object(), fmt.Sprintf("seed %q exists already: %s", seed, newest.name),
			"choose another name, or add a generation: docker pgbranch seed refresh "+seed)
	}
	for _, other := range d.volumes {
		if other.kind != contract.KindStaging || other == v || other.staging.Seed != seed {
			continue
		}
		if age := now.Sub(other.created); other.mounts.held() || other.phase == creating || (age >= 0 && age < stagingGrace) {
			return refuse(v.object(), fmt.Sprintf("seed %q is being made in volume %q", seed, other.name),
				"wait for it, or remove that volume: docker volume rm "+other.name)
		}
	}
	return nil
}

func (d *Driver) buildStaging(ctx context.Context, v *volume) error {
	id, err := d.store.makeDir(stagingDir)
	if err != nil {
		return err
	}
	d.setID(v, id)
	d.step("create: folder made")
	err = d.fillStaging(v)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return errors.Join(err, d.store.discard(v.dir()))
	}
	d.store.writeName(v.dir(), v.name)
	return syncDir(d.store.root, stagingDir)
}

// fillStaging makes what the container finds. Everybody may write there: the folder is
// reachable only through its mount, and whoever fills it runs as the cluster's owner.
func (d *Driver) fillStaging(v *volume) error {
	root := d.store.root
	for _, dir := range []string{v.tree(), path.Join(v.tree(), rootDir)} {
		if err := root.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := root.Chmod(dir, 0o777); err != nil {
			return err
		}
	}
	if err := d.runtime.install(v.tree(), os.Geteuid(), os.Getegid()); err != nil {
		return err
	}
	d.step("create: staging filled")
	return writeMeta(root, path.Join(v.dir(), metaFile), v.staging)
}
