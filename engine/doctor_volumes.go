package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// idleStaging is how old a staging volume that no container has must be, before it is
// taken for a leftover: between two helpers of a seeding there are moments without one.
const idleStaging = 2 * time.Minute

// doctorVolumes looks at each branch, and at what should be no longer there.
func (e *Engine) doctorVolumes(ctx context.Context, d *diagnosis, status contract.PluginStatus, more func(context.Context, Branch) []Note) {
	list, err := e.api.VolumeList(ctx, volume.ListOptions{})
	if err != nil {
		d.failed("volumes", translate(err, "docker engine"))
		return
	}
	before := len(d.checks)
	labels := map[string]map[string]string{}
	for _, v := range list.Volumes {
		labels[v.Name] = v.Labels
		if v.Driver != contract.DriverNameInEngine && slices.Contains(status.Volumes, v.Name) {
			d.problem("volume", fmt.Sprintf("docker volume rm %s  # after a look at what is in it", v.Name),
				"%s: a volume of the driver %s has the name and hides the plugin's own", v.Name, v.Driver)
		}
	}
	branches, err := e.Branches(ctx)
	if err != nil {
		d.failed("volumes", err)
		return
	}
	for _, b := range branches {
		if b.damaged {
			continue
		}
		d.branch(b, labels[b.Branch])
		notes := b.Notes
		if more != nil {
			notes = slices.Concat(notes, more(ctx, b))
		}
		for _, note := range notes {
			d.problem("branch", note.Fix, "%s: %s", b.Branch, note.Detail)
		}
	}
	e.doctorOthers(ctx, d)
	e.doctorLeftovers(ctx, d, status.Volumes)
	if len(d.checks) == before {
		d.ok("volumes", "%d branches, %d seeds", status.Branches, status.Seeds)
	}
}

// branch looks at one branch.
func (d *diagnosis) branch(b Branch, labels map[string]string) {
	name := b.Branch
	if b.Expired {
		fix := "docker pgbranch prune -f"
		if b.State == StateRunning {
			fix += " --running"
		}
		d.problem("branch", fix, "%s: has expired at %s, and is %s", name, b.ExpiresAt.Format(time.RFC3339), b.State)
	}
	// A branch of ours begins its life with a container; one made by hand or by Compose
	// may well have none.
	if b.State == StateVolume && labels[labelCreation] != "" {
		d.problem("branch", "docker pgbranch rm "+name, "%s: its container is gone", name)
	}
	if b.CowMode == contract.ModeEager && b.State == StateRunning {
		d.problem("branch", fmt.Sprintf("docker pgbranch rm -f %s && docker pgbranch create %s --from %s", name, name, b.SeedRef()),
			"%s: copies each file that Postgres opens: %s", name, b.CowReason)
	}
	if b.LastError != "" {
		d.problem("branch", "docker pgbranch inspect "+name, "%s: the plugin's last error about it: %s", name, oneLine(b.LastError))
	}
}

// doctorOthers looks for volumes with damaged metadata, and for what seedings left
// behind.
func (e *Engine) doctorOthers(ctx context.Context, d *diagnosis) {
	items, err := e.allItems(ctx)
	if err != nil {
		d.failed("volumes", err)
		return
	}
	for _, it := range items {
		name := it.volume.Name
		created, _ := time.Parse(time.RFC3339, it.volume.CreatedAt)
		switch {
		case it.status.Damaged:
			d.problem("damage", fmt.Sprintf("docker volume rm %s  # if nothing in it is wanted", name),
				"%s %s: cannot be used, and is not deleted by itself: %s", it.status.Kind, name, oneLine(it.status.LastError))
		case it.status.Kind == contract.KindStaging && !it.status.Mounted && time.Since(created) > idleStaging:
			d.problem("staging", "docker volume rm "+name, "%s: is left from the seeding of %s, which nobody goes on with", name, it.status.Seed)
		}
	}
}

// doctorLeftovers looks for containers of ours without a purpose. volumes are those
// that the plugin has, nil where that is not known.
func (e *Engine) doctorLeftovers(ctx context.Context, d *diagnosis, volumes []string) {
	all, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		d.failed("containers", translate(err, "docker engine"))
		return
	}
	for _, c := range all {
		name := containerName(c.Names)
		if branch := c.Labels[LabelBranch]; branch != "" && volumes != nil && !slices.Contains(volumes, branch) {
			d.problem("container", "docker rm -f "+name, "%s: the branch %s that it runs is gone", name, branch)
		}
		_, helper := c.Labels[LabelHelper]
		if helper && c.State != container.StateRunning && time.Since(time.Unix(c.Created, 0)) > leftoverAge {
			d.problem("container", "docker rm "+name, "%s: is a helper container that was left", name)
		}
	}
}
