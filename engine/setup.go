package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"

	"github.com/pgbranch/docker-pgbranch/engine/bundle"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// pluginObject is how errors name the volume plugin.
const pluginObject = "volume plugin pgoverlay"

// SetupOptions say how the volume plugin is to be installed.
type SetupOptions struct {
	// Data is the folder on the Engine's host that holds the data root; empty takes
	// the Engine's own plugin folder, or what an installed plugin has.
	Data string
	// Report is told each thing that was done, one line each.
	Report func(line string)
	// Consent is asked before containers are stopped for an upgrade. Its error ends the
	// setup before anything was changed.
	Consent func(running []Running) error
}

// Setup installs the volume plugin, or brings an installed one to this CLI's
// version, and pins it to its data root. It changes nothing where all is well, and
// goes on where an earlier setup was killed.
//
// It fails with KindSetup on an engine or a data root that cannot run the plugin.
func (e *Engine) Setup(ctx context.Context, opts SetupOptions) (contract.PluginStatus, error) {
	info, err := e.api.Info(ctx)
	if err != nil {
		return contract.PluginStatus{}, translate(err, "docker engine")
	}
	if err := supported(info); err != nil {
		return contract.PluginStatus{}, err
	}
	if opts.Data != "" && !strings.HasPrefix(opts.Data, "/") {
		return contract.PluginStatus{}, &Error{Kind: KindInvalid, Object: "--data",
			Cause: fmt.Sprintf("%q is not an absolute path", opts.Data),
			Hint:  "name a folder on the engine's host, such as /srv/pgbranch"}
	}
	plugin, err := e.installed(ctx, contract.DriverName)
	if err != nil {
		return contract.PluginStatus{}, err
	}
	spare, err := e.installed(ctx, spareName)
	if err != nil {
		return contract.PluginStatus{}, err
	}
	switch {
	case plugin == nil && spare == nil:
		return e.install(ctx, info, opts)
	case plugin == nil:
		err = e.finishUpgrade(ctx, info, spare, opts)
	default:
		err = e.refresh(ctx, info, plugin, spare, opts)
	}
	if err != nil {
		return contract.PluginStatus{}, err
	}
	return e.pin(ctx, opts)
}

// installed gives a plugin, nil where it is not installed.
func (e *Engine) installed(ctx context.Context, name string) (*types.Plugin, error) {
	plugin, _, err := e.api.PluginInspectWithRaw(ctx, name)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, translate(err, pluginObject)
	}
	return plugin, nil
}

// supported refuses engines on which the plugin cannot work, before anything is
// made.
func supported(info system.Info) error {
	refuse := func(cause, hint string) error {
		return &Error{Kind: KindSetup, Object: "docker engine", Cause: cause, Hint: hint}
	}
	if info.OSType != "linux" {
		return refuse(fmt.Sprintf("runs %s containers", info.OSType), "switch it to Linux containers")
	}
	for _, option := range info.SecurityOptions {
		switch {
		case strings.Contains(option, "name=rootless"):
			return refuse("runs rootless, where a volume plugin may not mount overlays",
				"use an engine that runs as root")
		case strings.Contains(option, "name=userns"):
			return refuse("remaps user namespaces, which it does not do for plugins: owners would not match",
				"use an engine without userns-remap")
		}
	}
	_, err := goArch(info.Architecture)
	return err
}

// goArch gives Go's name of an architecture as the Engine names it.
func goArch(machine string) (string, error) {
	switch machine {
	case "x86_64", "amd64":
		return "amd64", nil
	case "aarch64", "arm64":
		return "arm64", nil
	}
	return "", &Error{
		Kind: KindSetup, Object: "docker engine",
		Cause: fmt.Sprintf("runs on %s, for which there is no build", machine),
		Hint:  "amd64 and arm64 are supported",
	}
}

// defaultData is a folder that every engine has, so that the mount's source
// exists at every boot: dockerd panics when it does not
// (moby plugin/manager_linux.go, Manager.enable).
func defaultData(info system.Info) string { return info.DockerRootDir + "/plugins/" }

// install makes the plugin where there was none. One that cannot hold branches on
// the data root's file system does not stay.
func (e *Engine) install(ctx context.Context, info system.Info, opts SetupOptions) (contract.PluginStatus, error) {
	s := settings{data: opts.Data}
	if s.data == "" {
		s.data = defaultData(info)
	}
	stream, err := pluginStream(info, contract.DriverName, s.data)
	if err != nil {
		return contract.PluginStatus{}, err
	}
	if err := e.createPlugin(ctx, contract.DriverName, stream, s); err != nil {
		return contract.PluginStatus{}, err
	}
	opts.Report(fmt.Sprintf("created the volume plugin pgoverlay %s (capability CAP_SYS_ADMIN, one mount: %s)", e.version, s.data))
	undo := func(err error) (contract.PluginStatus, error) {
		ctx, cancel := cleanup(ctx)
		defer cancel()
		return contract.PluginStatus{}, errors.Join(err, e.removePlugin(ctx, contract.DriverName))
	}
	if err := e.enable(ctx, s, opts); err != nil {
		return undo(err)
	}
	status, err := e.pin(ctx, opts)
	if err == nil {
		err = unfit(status, s.data)
	}
	if err == nil {
		return status, nil
	}
	if status.StoreID != "" && len(status.Volumes) == 0 {
		// What the plugin made in the folder shall not stay either.
		defer func() {
			ctx, cancel := cleanup(ctx)
			defer cancel()
			_ = e.wipeStore(ctx, s.data, status.StoreID)
		}()
	}
	return undo(err)
}

// unfit refuses a data root that cannot hold branches.
func unfit(status contract.PluginStatus, data string) error {
	if status.Unfit == "" {
		return nil
	}
	cause, _, _ := strings.Cut(status.Unfit, "\n")
	return &Error{Kind: KindSetup, Object: fmt.Sprintf("data folder %s", data),
		Cause: strings.TrimPrefix(cause, pluginObject+": "),
		Hint:  "name a folder on ext4, XFS (ftype=1) or btrfs of the engine's host: `docker pgbranch setup --data DIR`"}
}

// pluginStream gives this CLI's own build of the plugin for an engine.
func pluginStream(info system.Info, name, data string) (io.Reader, error) {
	arch, err := goArch(info.Architecture)
	if err != nil {
		return nil, err
	}
	stream, err := bundle.Plugin(arch, name, data)
	if err != nil {
		return nil, &Error{Kind: KindSetup, Object: "docker-pgbranch", Cause: err.Error(), Hint: "build it with `make build`"}
	}
	return stream, nil
}

// createPlugin makes a plugin that is not enabled yet. stream already has the data
// source of s in it.
func (e *Engine) createPlugin(ctx context.Context, name string, stream io.Reader, s settings) error {
	ctx, cancel := carryThrough(ctx)
	defer cancel()
	if err := e.api.PluginCreate(ctx, stream, types.PluginCreateOptions{RepoName: name}); err != nil {
		return translate(err, pluginObject)
	}
	plugin, _, err := e.api.PluginInspectWithRaw(ctx, name)
	if err != nil {
		return translate(err, pluginObject)
	}
	if env := s.known(plugin); len(env) > 0 {
		return translate(e.api.PluginSet(ctx, name, env), pluginObject)
	}
	return nil
}

// removePlugin removes a plugin, also an enabled one. One that is gone is well.
func (e *Engine) removePlugin(ctx context.Context, name string) error {
	err := e.api.PluginRemove(ctx, name, types.PluginRemoveOptions{Force: true})
	if isNotFound(err) {
		return nil
	}
	return translate(err, pluginObject)
}

// start enables a plugin.
func (e *Engine) start(ctx context.Context, name string) error {
	ctx, cancel := carryThrough(ctx)
	defer cancel()
	// Timeout 0 leaves the Engine's own limits in force, 2 minutes for Create and
	// Mount; any other value would cap every later call (moby plugin/manager_linux.go).
	return e.api.PluginEnable(ctx, name, types.PluginEnableOptions{})
}

// disable stops a plugin. Force: the Engine counts every volume that it knows as a
// use of the plugin.
func (e *Engine) disable(ctx context.Context, name string) error {
	ctx, cancel := carryThrough(ctx)
	defer cancel()
	return translate(e.api.PluginDisable(ctx, name, types.PluginDisableOptions{Force: true}), pluginObject)
}

// enable enables pgoverlay, or says why it does not start.
func (e *Engine) enable(ctx context.Context, s settings, opts SetupOptions) error {
	if err := e.start(ctx, contract.DriverName); err != nil {
		return e.whyNotStarted(ctx, s, err)
	}
	opts.Report("enabled it")
	return nil
}

// whyNotStarted asks a helper container for the reason that a plugin which does not
// start can give only to dockerd's log.
func (e *Engine) whyNotStarted(ctx context.Context, s settings, err error) error {
	var ours *Error
	if _, refusal := e.checkStore(ctx, s.data, s.storeID()); errors.As(refusal, &ours) && ours.Kind == KindSetup {
		return &Error{Kind: KindSetup, Object: pluginObject, Cause: "does not start: " + ours.Cause, Hint: ours.Hint}
	}
	return &Error{Kind: KindSetup, Object: pluginObject, Cause: "does not start", Err: err,
		Hint: "look for plugin= lines in the engine's log"}
}

// pin writes the data root's id into the plugin's settings, so that a data root
// that went away or was swapped makes the plugin refuse to start, instead of
// answering that no volume exists: at that answer the Engine drops each volume's
// labels and references (moby volume/service/store.go, VolumeStore.getVolume).
func (e *Engine) pin(ctx context.Context, opts SetupOptions) (contract.PluginStatus, error) {
	plugin, _, err := e.api.PluginInspectWithRaw(ctx, contract.DriverName)
	if err != nil {
		return contract.PluginStatus{}, translate(err, pluginObject)
	}
	status, err := e.pluginStatus(ctx)
	if err != nil || settingsOf(plugin).storeID() != "" {
		return status, err
	}
	// A setting can be changed only while the plugin is disabled, and disabling it
	// under a running container loses that container's later unmount.
	if running, err := e.runningOnPlugin(ctx); err != nil || len(running) > 0 {
		opts.Report("did not pin it to its data root, since containers use its volumes; run setup again when none runs")
		return status, err
	}
	if err := e.disable(ctx, contract.DriverName); err != nil {
		return status, err
	}
	request, cancel := carryThrough(ctx)
	defer cancel()
	setErr := e.api.PluginSet(request, contract.DriverName, []string{contract.EnvStoreID + "=" + status.StoreID})
	if err := e.start(ctx, contract.DriverName); err != nil {
		return status, translate(err, pluginObject)
	}
	if setErr != nil {
		return status, translate(setErr, pluginObject)
	}
	opts.Report("pinned it to the data root " + status.StoreID)
	return status, nil
}

// pluginStatus asks the running plugin what it is.
func (e *Engine) pluginStatus(ctx context.Context) (contract.PluginStatus, error) {
	status, err := e.ticket(ctx, contract.OpStatus, pluginObject, nil)
	if err != nil {
		return contract.PluginStatus{}, err
	}
	if status.Plugin == nil {
		return contract.PluginStatus{}, &Error{Kind: KindSetup, Object: pluginObject, Cause: "does not say what it is"}
	}
	return *status.Plugin, nil
}
