package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"golang.org/x/sync/errgroup"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// PruneOptions say which expired branches go.
type PruneOptions struct {
	// Match picks among the expired branches; nil picks all.
	Match func(Branch) bool
	// Running takes those that run as well, if the container is ours.
	Running bool
	// DryRun removes nothing.
	DryRun bool
}

// Pruned is what a prune removed, or would remove.
type Pruned struct {
	Branches []string
	// Bytes is what they owned on disk.
	Bytes int64
	// Kept says of each expired branch that stayed why it did.
	Kept map[string]string
}

// Prune removes branches whose time is over, by the plugin's clock, and that nothing
// uses: neither a container that runs, nor one of somebody else's, nor another branch.
// Several may run at once.
func (e *Engine) Prune(ctx context.Context, opts PruneOptions) (Pruned, error) {
	branches, err := e.Branches(ctx)
	if err != nil {
		return Pruned{}, err
	}
	var names []string
	for _, b := range branches {
		if b.Expired && (opts.Match == nil || opts.Match(b)) {
			names = append(names, b.Branch)
		}
	}
	return e.prune(ctx, names, opts)
}

// reapTime bounds how long a verb that is about something else removes what has
// expired. The rest is left to the next one.
const reapTime = 5 * time.Second

// Reap is the part of Prune that every verb does, other than for the branches that it
// is about. It costs one request where no branch has a term, and never fails: what it
// could not remove stays for the next verb.
func (e *Engine) Reap(ctx context.Context, except []string) Pruned {
	list, err := e.api.VolumeList(ctx, volume.ListOptions{
		Filters: filters.NewArgs(filters.Arg("driver", contract.DriverNameInEngine)),
	})
	if err != nil {
		return Pruned{}
	}
	var names []string
	for _, v := range list.Volumes {
		// The Engine's own record of the options, since a list has no Status.
		if v.Options[contract.OptTTL] != "" && !slices.Contains(except, v.Name) {
			names = append(names, v.Name)
		}
	}
	if len(names) == 0 {
		return Pruned{}
	}
	ctx, cancel := context.WithTimeout(ctx, reapTime)
	defer cancel()
	pruned, _ := e.prune(ctx, names, PruneOptions{})
	return pruned
}

// prune removes those of the named branches that have expired. A branch goes after
// those that stand on it, so it is tried as long as others go.
func (e *Engine) prune(ctx context.Context, names []string, opts PruneOptions) (Pruned, error) {
	total := Pruned{Kept: map[string]string{}}
	for len(names) > 0 && ctx.Err() == nil {
		containers, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
		if err != nil {
			return total, translate(err, "docker engine")
		}
		removed, err := e.pruneOnce(ctx, names, containers, opts, &total)
		if err != nil || len(removed) == 0 || opts.DryRun {
			break
		}
		names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(removed, n) || total.Kept[n] == "" })
	}
	slices.Sort(total.Branches)
	if ctx.Err() != nil {
		return total, context.Cause(ctx)
	}
	return total, nil
}

func (e *Engine) pruneOnce(ctx context.Context, names []string, containers []container.Summary, opts PruneOptions, total *Pruned) ([]string, error) {
	var mu sync.Mutex
	var removed []string
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(statusWorkers)
	for _, name := range names {
		group.Go(func() error {
			if gctx.Err() != nil {
				return gctx.Err()
			}
			bytes, kept, err := e.pruneOne(gctx, name, containers, opts)
			mu.Lock()
			defer mu.Unlock()
			delete(total.Kept, name)
			switch {
			case kept != "":
				total.Kept[name] = kept
			case err == nil && bytes >= 0:
				removed = append(removed, name)
				total.Branches = append(total.Branches, name)
				total.Bytes += bytes
			}
			return err
		})
	}
	return removed, group.Wait()
}

// pruneOne removes one branch if it has expired. It gives what the branch owned, -1 for
// one that is not to be removed, or why one that has expired stays.
func (e *Engine) pruneOne(ctx context.Context, name string, containers []container.Summary, opts PruneOptions) (bytes int64, kept string, err error) {
	// Looked at again just now: by this time another may have removed it, and made a
	// new one of that name.
	v, status, err := e.inspect(ctx, name, branchObject(name))
	if KindOf(err) == KindNotFound {
		return -1, "", nil
	}
	if err != nil || status.Kind != contract.KindBranch || !status.Expired {
		return -1, "", err
	}
	if len(status.Branches) > 0 {
		return -1, "branches stand on it: " + strings.Join(status.Branches, ", "), nil
	}
	var ours []string
	for _, c := range containers {
		if !slices.ContainsFunc(c.Mounts, func(m container.MountPoint) bool { return m.Name == name }) {
			continue
		}
		switch {
		case c.Labels[LabelBranch] != name:
			return -1, fmt.Sprintf("the container %s, which is not ours, uses it", containerName(c.Names)), nil
		case !opts.Running && c.State != container.StateExited && c.State != container.StateCreated && c.State != container.StateDead:
			return -1, "it is running", nil
		}
		ours = append(ours, c.ID)
	}
	if opts.DryRun {
		return status.OwnedBytes, "", nil
	}
	return e.removeExpired(ctx, v.Name, status.OwnedBytes, ours, opts.Running)
}

// removeExpired removes containers and then their branch. Requests that were begun are
// brought to their end.
func (e *Engine) removeExpired(ctx context.Context, name string, bytes int64, containers []string, force bool) (int64, string, error) {
	ctx, cancel := carryThrough(ctx)
	defer cancel()
	for _, id := range containers {
		// Without force the Engine refuses if it was started meanwhile.
		err := e.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: force, RemoveVolumes: true})
		if err != nil && !isNotFound(err) {
			return -1, removalRefused(err), nil
		}
	}
	err := e.api.VolumeRemove(ctx, name, false)
	if isNotFound(err) {
		return -1, "", nil // another prune did it
	}
	if err != nil {
		return -1, removalRefused(err), nil
	}
	return bytes, "", nil
}

func removalRefused(err error) string {
	cause, _, _ := strings.Cut(translate(err, "").Error(), "\n")
	return cause
}
