package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"golang.org/x/sync/errgroup"

	"github.com/pgbranch/docker-pgbranch/engine/bundle"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// UninstallOptions say what goes with the volume plugin.
type UninstallOptions struct {
	// Purge removes everything: branches with their containers, seeds, the data root.
	Purge bool
	// KeepData leaves seeds and branches on disk for a later setup to find.
	KeepData bool
	// Report is told each thing that was done, one line each.
	Report func(line string)
	// Consent is asked before anything is removed or stopped. Its error ends the
	// uninstall before that.
	Consent func(Contents) error
}

// Contents is what the volume plugin has in an engine.
type Contents struct {
	Branches, Seeds []string
	// Others are staging volumes, and what is hidden by another driver's volumes.
	Others  []string
	Running []Running
	// Data is the folder of the Engine's host that the data root lies in.
	Data string
}

// volumes counts what a plain uninstall refuses to lose.
func (c Contents) volumes() int { return len(c.Branches) + len(c.Seeds) + len(c.Others) }

// String lists the volumes.
func (c Contents) String() string {
	var parts []string
	for _, p := range []struct {
		what  string
		names []string
	}{{"branches", c.Branches}, {"seeds", c.Seeds}, {"unfinished", c.Others}} {
		if len(p.names) > 0 {
			parts = append(parts, p.what+": "+shorten(p.names))
		}
	}
	return strings.Join(parts, "; ")
}

// shorten lists names for one line.
func shorten(names []string) string {
	const most = 20
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// Uninstall removes the volume plugin and this package's helper images. Without Purge
// or KeepData it refuses, with KindConflict and their names, while volumes exist.
//
// No record of a volume stays with the Engine: each would block its name, and cost
// dockerd 15 seconds at every start (moby volume/service/restore.go and
// pkg/plugins/plugins.go, loadWithRetry). Run again after an interrupt, it goes on.
func (e *Engine) Uninstall(ctx context.Context, opts UninstallOptions) error {
	if err := e.removePlugin(ctx, spareName); err != nil {
		return err
	}
	plugin, err := e.installed(ctx, contract.DriverName)
	if err == nil && plugin == nil && opts.Purge {
		plugin, err = e.reinstall(ctx, opts)
	}
	if err != nil {
		return err
	}
	if plugin == nil {
		opts.Report("the volume plugin is not installed")
		return e.removeHelpers(ctx, opts)
	}
	s := settingsOf(plugin)
	if !plugin.Enabled {
		// Asked first: dockerd tries for ten seconds to reach a plugin that refuses.
		_, err := e.checkStore(ctx, s.data, s.storeID())
		if KindOf(err) != KindSetup {
			err = e.start(ctx, contract.DriverName)
		}
		if err != nil {
			return e.uninstallBroken(ctx, s, err, opts)
		}
	}
	status, err := e.pluginStatus(ctx)
	if err != nil {
		return err
	}
	held, err := e.contents(ctx, status, s)
	if err == nil {
		err = e.mayUninstall(ctx, held, opts)
	}
	if err == nil {
		err = opts.Consent(held)
	}
	if err != nil {
		return err
	}
	if opts.KeepData {
		err = e.leave(ctx, held, status.Volumes, opts)
	} else {
		err = e.purge(ctx, held, s, status.StoreID, opts)
	}
	if err != nil {
		return err
	}
	return e.removeHelpers(ctx, opts)
}

// reinstall brings the plugin back over data that it left in the default folder, so
// that the Engine forgets the volumes in it one by one. It gives nil where there is
// none.
func (e *Engine) reinstall(ctx context.Context, opts UninstallOptions) (*types.Plugin, error) {
	info, err := e.api.Info(ctx)
	if err != nil {
		return nil, translate(err, "docker engine")
	}
	id, err := e.checkStore(ctx, defaultData(info), "")
	if err != nil || id == "" {
		return nil, err
	}
	opts.Report(fmt.Sprintf("the volume plugin is not installed, but left data in %s; installing it to remove that", defaultData(info)))
	if _, err := e.install(ctx, info, SetupOptions{Report: opts.Report}); err != nil {
		return nil, err
	}
	return e.installed(ctx, contract.DriverName)
}

// uninstallBroken removes a plugin that does not start, and with a purge its data
// where it is a store that this build knows. What volumes there are, only the plugin
// could say.
func (e *Engine) uninstallBroken(ctx context.Context, s settings, startErr error, opts UninstallOptions) error {
	id, refusal := e.checkStore(ctx, s.data, "")
	gone := refusal == nil && id == ""
	if !opts.Purge && !gone {
		return errors.Join(e.whyNotStarted(ctx, s, startErr), &Error{Kind: KindConflict, Object: pluginObject,
			Cause: "cannot say which volumes exist", Hint: "mend it with `docker pgbranch setup`, or remove it with everything it has: --purge"})
	}
	if err := opts.Consent(Contents{Data: s.data, Others: []string{"what the plugin, which does not start, may have"}}); err != nil {
		return err
	}
	if id != "" {
		if err := e.wipeStore(ctx, s.data, id); err != nil {
			return err
		}
		opts.Report("removed its data in " + s.data)
	}
	if err := e.removePlugin(ctx, contract.DriverName); err != nil {
		return err
	}
	opts.Report("removed the volume plugin")
	if !gone {
		opts.Report("the engine may remember volumes of it until it is started next, 15 s for each")
	}
	return e.removeHelpers(ctx, opts)
}

// contents sorts what the plugin has.
func (e *Engine) contents(ctx context.Context, status contract.PluginStatus, s settings) (Contents, error) {
	c := Contents{Data: s.data}
	items, err := e.allItems(ctx)
	if err != nil {
		return c, err
	}
	listed := map[string]bool{}
	for _, it := range items {
		listed[it.volume.Name] = true
		switch it.status.Kind {
		case contract.KindBranch:
			c.Branches = append(c.Branches, it.volume.Name)
		case contract.KindSeed:
			c.Seeds = append(c.Seeds, it.volume.Name)
		default:
			c.Others = append(c.Others, it.volume.Name)
		}
	}
	for _, name := range status.Volumes {
		if !listed[name] {
			c.Others = append(c.Others, name+" (hidden by a volume of that name of another driver)")
		}
	}
	c.Running, err = e.runningOnPlugin(ctx)
	return c, err
}

// mayUninstall refuses what would lose something that nobody gave up.
func (e *Engine) mayUninstall(ctx context.Context, held Contents, opts UninstallOptions) error {
	if held.volumes() > 0 && !opts.Purge && !opts.KeepData {
		return &Error{Kind: KindConflict, Object: pluginObject, Cause: "has " + held.String(),
			Hint: "remove them with `docker pgbranch rm` and `docker pgbranch seed rm`; or remove everything with --purge, " +
				"or leave it on the engine's host for a later setup with --keep-data"}
	}
	if err := seeding(held.Running); err != nil {
		return err
	}
	if opts.KeepData {
		return nil
	}
	all, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return translate(err, "docker engine")
	}
	var strangers []string
	for _, c := range all {
		_, branch := c.Labels[LabelBranch]
		_, helper := c.Labels[LabelHelper]
		if !branch && !helper && slices.ContainsFunc(c.Mounts, func(m container.MountPoint) bool { return m.Driver == contract.DriverNameInEngine }) {
			strangers = append(strangers, containerName(c.Names))
		}
	}
	if len(strangers) > 0 {
		return &Error{Kind: KindConflict, Object: pluginObject,
			Cause: "containers that are not ours use its volumes: " + shorten(strangers),
			Hint:  "remove them first: docker rm -f " + strings.Join(strangers, " ")}
	}
	return nil
}

// purge removes containers, volumes, data and plugin, in an order in which a later run
// finds what an interrupted one left.
func (e *Engine) purge(ctx context.Context, held Contents, s settings, storeID string, opts UninstallOptions) error {
	n, err := e.removeLabelled(ctx, LabelBranch)
	if err != nil {
		return err
	}
	if n > 0 {
		opts.Report(fmt.Sprintf("removed %d containers of branches", n))
	}
	if _, err := e.removeLabelled(ctx, LabelHelper); err != nil {
		return err
	}
	items, err := e.allItems(ctx)
	if err != nil {
		return err
	}
	// The seeds go last, since branches stand on them.
	for _, seeds := range []bool{false, true} {
		names := []string{}
		for _, it := range items {
			if (it.status.Kind == contract.KindSeed) == seeds {
				names = append(names, it.volume.Name)
			}
		}
		if err := e.eachVolume(ctx, names, func(ctx context.Context, name string) error {
			return e.api.VolumeRemove(ctx, name, false)
		}); err != nil {
			return err
		}
	}
	if held.volumes() > 0 {
		opts.Report(fmt.Sprintf("removed %d branches and %d seeds", len(held.Branches), len(held.Seeds)))
	}
	// The wipe takes the data root's lock, which the plugin holds.
	if err := e.disable(ctx, contract.DriverName); err != nil {
		return err
	}
	if err := e.wipeStore(ctx, s.data, storeID); err != nil {
		return err
	}
	opts.Report("removed its data in " + s.data)
	if err := e.removePlugin(ctx, contract.DriverName); err != nil {
		return err
	}
	opts.Report("removed the volume plugin")
	return nil
}

// eachVolume does something with volumes, several at once. One that is gone is well.
func (e *Engine) eachVolume(ctx context.Context, names []string, do func(ctx context.Context, name string) error) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(statusWorkers)
	for _, name := range names {
		group.Go(func() error {
			if err := do(gctx, name); err != nil && !isNotFound(err) {
				return translate(err, fmt.Sprintf("volume %q", name))
			}
			return nil
		})
	}
	return group.Wait()
}

// leave stops what runs on the plugin, has the Engine forget its volumes, and removes
// the plugin.
//
// The Engine forgets a volume only at a driver's word that it does not exist. So a
// plugin of the same name takes the old one's place for a moment, with an empty store
// inside of its own root file system.
func (e *Engine) leave(ctx context.Context, held Contents, volumes []string, opts UninstallOptions) error {
	info, err := e.api.Info(ctx)
	if err != nil {
		return translate(err, "docker engine")
	}
	arch, err := goArch(info.Architecture)
	if err != nil {
		return err
	}
	empty, err := bundle.EmptyPlugin(arch, held.Data)
	if err != nil {
		return &Error{Kind: KindSetup, Object: "docker-pgbranch", Cause: err.Error(), Hint: "build it with `make build`"}
	}
	report := SetupOptions{Report: opts.Report}
	stopped, err := e.stopAll(ctx, held.Running, report)
	if err != nil {
		e.startAll(ctx, stopped, report)
		return err
	}
	// From here on there is no way back, only forward: an interrupt waits.
	ctx = context.WithoutCancel(ctx)
	if err := e.removePlugin(ctx, contract.DriverName); err != nil {
		return err
	}
	if err := e.createPlugin(ctx, contract.DriverName, empty, settings{}); err != nil {
		return err
	}
	if err := e.start(ctx, contract.DriverName); err != nil {
		return translate(err, pluginObject)
	}
	if err := e.eachVolume(ctx, volumes, func(ctx context.Context, name string) error {
		_, err := e.api.VolumeInspect(ctx, name)
		return err
	}); err != nil {
		return err
	}
	if err := e.removePlugin(ctx, contract.DriverName); err != nil {
		return err
	}
	opts.Report("removed the volume plugin")
	if held.volumes() > 0 {
		opts.Report(fmt.Sprintf("kept in %s: %s", held.Data, held))
		opts.Report("to have it back: docker pgbranch setup --data " + held.Data)
	}
	return e.sayWaiting(ctx, opts)
}

// sayWaiting names the containers that still name the driver. dockerd looks 15 seconds
// for it at its next start (moby pkg/plugins/plugins.go, loadWithRetry).
func (e *Engine) sayWaiting(ctx context.Context, opts UninstallOptions) error {
	all, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return translate(err, "docker engine")
	}
	var names []string
	for _, c := range all {
		if slices.ContainsFunc(c.Mounts, func(m container.MountPoint) bool { return m.Driver == contract.DriverNameInEngine }) {
			names = append(names, containerName(c.Names))
		}
	}
	if len(names) > 0 {
		opts.Report("stopped containers still name the plugin, so that the engine waits 15 s for it at its next start: " + shorten(names))
	}
	return nil
}

// removeHelpers removes helper containers that were left, and the helper images.
func (e *Engine) removeHelpers(ctx context.Context, opts UninstallOptions) error {
	if _, err := e.removeLabelled(ctx, LabelHelper); err != nil {
		return err
	}
	images, err := e.api.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", LabelHelper))})
	if err != nil {
		return translate(err, "docker engine")
	}
	for _, img := range images {
		_, err := e.api.ImageRemove(ctx, img.ID, image.RemoveOptions{Force: true, PruneChildren: true})
		if err != nil && !isNotFound(err) {
			return translate(err, fmt.Sprintf("image %q", img.ID))
		}
	}
	if len(images) > 0 {
		opts.Report(fmt.Sprintf("removed %d helper images", len(images)))
	}
	return nil
}

// removeLabelled removes the containers that have a label and counts them.
func (e *Engine) removeLabelled(ctx context.Context, label string) (int, error) {
	list, err := e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		return 0, translate(err, "docker engine")
	}
	for _, c := range list {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		err := e.api.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if err != nil && !isNotFound(err) && !strings.Contains(err.Error(), "is already in progress") {
			return 0, translate(err, fmt.Sprintf("container %q", containerName(c.Names)))
		}
	}
	return len(list), nil
}
