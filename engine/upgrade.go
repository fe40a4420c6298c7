package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// spareName is the plugin that an upgrade tries out before the old one goes. It also
// keeps the settings while there is no pgoverlay, for the case that this program is
// killed then.
const spareName = contract.DriverName + "-upgrade"

// Running is a container that runs on a volume of the plugin.
type Running struct {
	Name string
	// Branch is the branch that it runs, if it is one of ours.
	Branch string
	// Transient tells that the Engine removes it when it stops (`docker run --rm`), so
	// that it cannot be started again.
	Transient bool

	id string
	// seed is the seed that a helper container makes.
	seed string
}

// String gives the container as a list names it.
func (r Running) String() string {
	name := r.Name
	if r.Branch != "" {
		name = fmt.Sprintf("branch %s", r.Branch)
	}
	if r.Transient {
		name += " (started with --rm: it will be gone)"
	}
	return name
}

// runningOnPlugin lists the running containers that mount a volume of the plugin.
func (e *Engine) runningOnPlugin(ctx context.Context) ([]Running, error) {
	list, err := e.api.ContainerList(ctx, container.ListOptions{})
	if err != nil {
		return nil, translate(err, "docker engine")
	}
	var found []Running
	for _, c := range list {
		if !slices.ContainsFunc(c.Mounts, func(m container.MountPoint) bool { return m.Driver == contract.DriverNameInEngine }) {
			continue
		}
		full, err := e.api.ContainerInspect(ctx, c.ID)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return nil, translate(err, "docker engine")
		}
		found = append(found, Running{
			Name: containerName(c.Names), Branch: c.Labels[LabelBranch], id: c.ID, seed: c.Labels[LabelHelper],
			Transient: full.HostConfig != nil && full.HostConfig.AutoRemove,
		})
	}
	slices.SortFunc(found, func(a, b Running) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// seeding refuses to stop a helper container that makes a seed.
func seeding(running []Running) error {
	for _, r := range running {
		if r.seed != "" {
			return &Error{Kind: KindConflict, Object: seedObject(r.seed), Cause: "is being made", Hint: "let that end, then run this again"}
		}
	}
	return nil
}

// refresh enables an installed plugin, points it back to its data and replaces one of
// another version. spare, which may be nil, is what a killed upgrade left.
func (e *Engine) refresh(ctx context.Context, info system.Info, plugin, spare *types.Plugin, opts SetupOptions) error {
	if spare != nil {
		// It may hold the data root's lock.
		if err := e.removePlugin(ctx, spareName); err != nil {
			return err
		}
		opts.Report("removed what an upgrade that was killed left behind")
	}
	s, err := e.placeData(ctx, plugin, opts)
	if err != nil {
		return err
	}
	if !plugin.Enabled {
		// Asked first: dockerd tries for ten seconds to reach a plugin that refuses.
		_, refusal := e.checkStore(ctx, s.data, s.storeID())
		if startErr := e.enable(ctx, s, opts); startErr != nil {
			if refusal != nil {
				return startErr
			}
			opts.Report("the plugin that is installed does not start; replacing it")
			return e.upgrade(ctx, info, s, false, opts)
		}
	}
	status, err := e.pluginStatus(ctx)
	if err != nil || status.Version == e.version {
		return err
	}
	opts.Report(fmt.Sprintf("found the volume plugin pgoverlay %s", status.Version))
	return e.upgrade(ctx, info, s, true, opts)
}

// placeData points a plugin that is disabled back to its store, where that is no
// longer in the folder that the plugin mounts: `docker plugin upgrade` puts the folder
// back to the default, and a disk may have moved. It gives the settings in force.
func (e *Engine) placeData(ctx context.Context, plugin *types.Plugin, opts SetupOptions) (settings, error) {
	s := settingsOf(plugin)
	elsewhere := opts.Data
	if elsewhere == "" {
		elsewhere = formerData(plugin)
	}
	if elsewhere == "" || samePath(elsewhere, s.data) {
		return s, nil
	}
	if opts.Data == "" {
		return e.pointBack(ctx, plugin, s, elsewhere, opts)
	}
	taken := &Error{
		Kind: KindConflict, Object: pluginObject,
		Cause: fmt.Sprintf("keeps its data in %s already", s.data),
		Hint: "to move it: stop its containers, `docker plugin disable -f pgoverlay`, move the folder pgoverlay in it, " +
			"and run this again; to give it up: `docker pgbranch uninstall --purge`",
	}
	if plugin.Enabled || s.storeID() == "" {
		return s, taken
	}
	if _, err := e.checkStore(ctx, elsewhere, s.storeID()); err != nil {
		return s, errors.Join(err, taken)
	}
	return e.pointTo(ctx, s, elsewhere, opts)
}

// pointBack points a disabled plugin to former, the folder that it had before an upgrade,
// where its store is there and not in the folder in force. One that is not pinned had the
// store that lies in former, whatever lies in the other folder.
func (e *Engine) pointBack(ctx context.Context, plugin *types.Plugin, s settings, former string, opts SetupOptions) (settings, error) {
	if plugin.Enabled {
		return s, nil // it has started, so the store in force is the right one
	}
	if s.storeID() != "" {
		if _, err := e.checkStore(ctx, s.data, s.storeID()); err == nil {
			return s, nil
		}
	}
	if id, err := e.checkStore(ctx, former, s.storeID()); err != nil || id == "" {
		return s, nil // that is not it either; enabling will say what is wrong
	}
	return e.pointTo(ctx, s, former, opts)
}

// pointTo changes the data mount's source.
func (e *Engine) pointTo(ctx context.Context, s settings, data string, opts SetupOptions) (settings, error) {
	request, cancel := carryThrough(ctx)
	defer cancel()
	if err := e.api.PluginSet(request, contract.DriverName, []string{"data.source=" + data}); err != nil {
		return s, translate(err, pluginObject)
	}
	opts.Report(fmt.Sprintf("pointed it from %s to %s, where its store is", s.data, data))
	s.data = data
	return s, nil
}

// upgrade swaps the plugin for this CLI's build and keeps its settings. Docker's own
// metadata survives: volumes come back with a plugin of the same name.
//
// What uses the plugin is stopped, with consent, and started again. Until the new
// plugin has started once under another name, the old one is put back on any failure
// and on an interrupt.
func (e *Engine) upgrade(ctx context.Context, info system.Info, s settings, enabled bool, opts SetupOptions) error {
	// All that can refuse comes before anything is stopped.
	if _, err := e.checkStore(ctx, s.data, s.storeID()); err != nil {
		return e.stays(err)
	}
	running, err := e.runningOnPlugin(ctx)
	if err == nil {
		err = seeding(running)
	}
	if err != nil {
		return err
	}
	if len(running) > 0 {
		if err := opts.Consent(running); err != nil {
			return err
		}
	}
	stopped, err := e.stopAll(ctx, running, opts)
	// What ran before shall run, whatever happens.
	defer func() { e.startAll(ctx, stopped, opts) }()
	if err != nil {
		return err
	}
	if enabled {
		if err := e.disable(ctx, contract.DriverName); err != nil {
			return err
		}
	}
	if err := e.tryOut(ctx, info, s); err != nil {
		putBack, cancel := cleanup(ctx)
		defer cancel()
		err = errors.Join(e.stays(err), e.removePlugin(putBack, spareName))
		if enabled {
			err = errors.Join(err, e.start(putBack, contract.DriverName))
		}
		return err
	}
	// From here on there is no way back, only forward: an interrupt waits.
	return e.swap(context.WithoutCancel(ctx), info, s, opts)
}

// stays says that an upgrade was not made, and why.
func (e *Engine) stays(err error) error {
	var ours *Error
	if !errors.As(err, &ours) || ours.Kind != KindSetup {
		return err
	}
	return &Error{Kind: KindSetup, Object: pluginObject, Hint: ours.Hint,
		Cause: fmt.Sprintf("stays as it is, since %s would not start: %s", e.version, strings.TrimPrefix(ours.Error(), pluginObject+": "))}
}

// tryOut starts the new plugin under another name, while the old one is disabled, and
// stops it again.
func (e *Engine) tryOut(ctx context.Context, info system.Info, s settings) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	stream, err := pluginStream(info, spareName, s.data)
	if err != nil {
		return err
	}
	if err := e.createPlugin(ctx, spareName, stream, s); err != nil {
		return err
	}
	if err := e.start(ctx, spareName); err != nil {
		return e.whyNotStarted(ctx, s, err)
	}
	if err := e.disable(ctx, spareName); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// swap removes the old plugin and makes the new one.
func (e *Engine) swap(ctx context.Context, info system.Info, s settings, opts SetupOptions) error {
	stream, err := pluginStream(info, contract.DriverName, s.data)
	if err != nil {
		return err
	}
	if err := e.removePlugin(ctx, contract.DriverName); err != nil {
		return err
	}
	if err := e.createPlugin(ctx, contract.DriverName, stream, s); err != nil {
		return err
	}
	if err := e.start(ctx, contract.DriverName); err != nil {
		return e.whyNotStarted(ctx, s, err)
	}
	opts.Report(fmt.Sprintf("replaced it by %s; its data stays in %s", e.version, s.data))
	return e.removePlugin(ctx, spareName)
}

// finishUpgrade goes on where an upgrade was killed between the old plugin and the
// new: the spare has the settings.
func (e *Engine) finishUpgrade(ctx context.Context, info system.Info, spare *types.Plugin, opts SetupOptions) error {
	if spare.Enabled {
		if err := e.disable(ctx, spareName); err != nil {
			return err
		}
	}
	opts.Report("going on with an upgrade that was killed")
	return e.swap(context.WithoutCancel(ctx), info, settingsOf(spare), opts)
}

// stopAll stops containers and gives those that it stopped. It fails if others run by
// then.
func (e *Engine) stopAll(ctx context.Context, running []Running, opts SetupOptions) ([]Running, error) {
	var stopped []Running
	for _, r := range running {
		if ctx.Err() != nil {
			return stopped, context.Cause(ctx)
		}
		request, cancel := carryThrough(ctx)
		err := e.api.ContainerStop(request, r.id, container.StopOptions{})
		cancel()
		if err != nil && !isNotFound(err) {
			return stopped, translate(err, fmt.Sprintf("container %q", r.Name))
		}
		opts.Report("stopped " + r.String())
		if !r.Transient {
			stopped = append(stopped, r)
		}
	}
	others, err := e.runningOnPlugin(ctx)
	if err == nil && len(others) > 0 {
		err = &Error{Kind: KindConflict, Object: pluginObject,
			Cause: fmt.Sprintf("%s was started meanwhile", others[0].Name), Hint: "run this again"}
	}
	return stopped, err
}

// startAll starts what stopAll stopped, also after an interrupt. One that does not
// start is reported, and keeps no other from starting.
func (e *Engine) startAll(ctx context.Context, stopped []Running, opts SetupOptions) {
	ctx = context.WithoutCancel(ctx)
	for _, r := range stopped {
		if err := e.api.ContainerStart(ctx, r.id, container.StartOptions{}); err != nil {
			opts.Report(fmt.Sprintf("could not start %s again: %s", r, err))
			continue
		}
		opts.Report("started " + r.String())
	}
}
