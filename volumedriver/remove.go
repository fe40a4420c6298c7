package volumedriver

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Remove removes a volume or a ticket. A volume that a container holds is refused, and
// so is one that branches stand on, with their names. Docker itself refuses only while
// it knows of a container, and forgets that after a failed Get.
func (d *Driver) Remove(ctx context.Context, name string) error {
	if d.removeTicket(name) {
		return nil
	}
	v, unlock, err := d.lockVolume(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if v == nil {
		return nil // it was removed by an earlier sending of this request
	}
	if err := d.beginRemoval(v); err != nil {
		return err
	}
	err = d.removable(v)
	d.step("remove: permitted")
	if err == nil && ctx.Err() != nil {
		err = failed(v.object(), "remove it in time", ctx.Err())
	}
	if err == nil {
		if err = d.store.discard(v.dir()); err != nil {
			err = failed(v.object(), "remove it", err)
		}
	}
	d.step("remove: discarded")
	d.endRemoval(v, err)
	if err != nil {
		d.setErr(v, err)
		return err
	}
	d.usage.forget(v.id)
	if v.kind == contract.KindBranch {
		d.dropLayers()
	}
	d.log.Info("removed", "volume", v.name, "kind", v.kind)
	return nil
}

// beginRemoval checks what stands on the volume and keeps others from building on it.
func (d *Driver) beginRemoval(v *volume) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.kind == contract.KindSeed {
		for _, b := range d.volumes {
			if b.kind == contract.KindBranch && b.branch.SeedID == "" && b.damage != nil {
				return refuse(v.object(), fmt.Sprintf("branch %q may stand on it, whose metadata cannot be read", b.name),
					"see to that one first: docker volume inspect "+b.name)
			}
		}
		if names := d.branchesOf(v); len(names) > 0 {
			return refuse(v.object(), standOn(names),
				"remove them first: docker pgbranch rm "+joinArgs(names))
		}
	}
	v.phase = removing
	return nil
}

// endRemoval takes the volume out, or back in after an error.
func (d *Driver) endRemoval(v *volume, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		v.phase = ready
		return
	}
	delete(d.volumes, v.name)
}

// removable refuses what a container holds. The volume's lock must be held.
func (d *Driver) removable(v *volume) error {
	switch v.kind {
	case contract.KindBranch:
		if d.inUse(v) {
			return refuse(v.object(), "a container is using it",
				"stop it first; it is listed by: docker ps --filter volume="+v.name)
		}
	case contract.KindStaging:
		// A bind mount cannot be probed. The agent that fills the volume has a lock on it, and
		// a container of somebody else's making is Docker's to refuse for.
		if d.isHeld(v) && isLocked(d.store.host(v.dir()), stagingVolume) {
			return refuse(v.object(), "a container is filling it",
				"stop it first; it is listed by: docker ps --filter volume="+v.name)
		}
		return d.unmount(v)
	}
	return nil
}

// standOn says that branches stand on a seed.
func standOn(names []string) string {
	if len(names) == 1 {
		return "a branch stands on it: " + names[0]
	}
	return fmt.Sprintf("%d branches stand on it: %s", len(names), joinNames(names))
}

// joinArgs writes names as arguments of a command.
func joinArgs(names []string) string {
	return strings.Join(names[:min(len(names), maxNames)], " ")
}
