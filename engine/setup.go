package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"

	"github.com/pgbranch/docker-pgbranch/engine/bundle"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// SetupOptions say how the volume plugin is to be installed.
type SetupOptions struct {
	// Data is the folder on the Engine's host that holds the data root; empty takes
	// the Engine's own plugin folder, or what an installed plugin has.
	Data string
	// Report is told each thing that was done, one line each.
	Report func(line string)
}

// Setup installs the volume plugin, or brings an installed one to this CLI's
// version, and pins it to its data root. It changes nothing where all is well.
//
// It fails with KindSetup on an engine that cannot run the plugin, and with
// KindConflict where branches that run stand in the way of an upgrade.
func (e *Engine) Setup(ctx context.Context, opts SetupOptions) (contract.PluginStatus, error) {
	info, err := e.api.Info(ctx)
	if err != nil {
		return contract.PluginStatus{}, translate(err, "docker engine")
	}
	if err := supported(info); err != nil {
		return contract.PluginStatus{}, err
	}
	plugin, _, err := e.api.PluginInspectWithRaw(ctx, contract.DriverName)
	switch {
	case isNotFound(err):
		err = e.install(ctx, info, opts)
	case err != nil:
		err = translate(err, "volume plugin pgoverlay")
	default:
		err = e.refresh(ctx, info, plugin, opts)
	}
	if err != nil {
		return contract.PluginStatus{}, err
	}
	return e.pin(ctx, opts)
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

func (e *Engine) install(ctx context.Context, info system.Info, opts SetupOptions) error {
	data := opts.Data
	if data == "" {
		data = defaultData(info)
	}
	if !strings.HasPrefix(data, "/") {
		return &Error{Kind: KindInvalid, Object: "--data", Cause: fmt.Sprintf("%q is not an absolute path", data),
			Hint: "name a folder on the engine's host, such as /srv/pgbranch"}
	}
	stream, err := pluginStream(info, data)
	if err != nil {
		return err
	}
	if err := e.createPlugin(ctx, stream, data, opts); err != nil {
		return err
	}
	if err := e.enable(ctx, opts); err != nil {
		ctx, cancel := cleanup(ctx)
		defer cancel()
		return errors.Join(err, e.api.PluginRemove(ctx, contract.DriverName, types.PluginRemoveOptions{Force: true}))
	}
	return nil
}

// pluginStream gives this CLI's own build of the plugin for an engine.
func pluginStream(info system.Info, data string) (io.Reader, error) {
	arch, err := goArch(info.Architecture)
	if err != nil {
		return nil, err
	}
	stream, err := bundle.Plugin(arch, data)
	if err != nil {
		return nil, &Error{Kind: KindSetup, Object: "docker-pgbranch", Cause: err.Error(), Hint: "build it with `make build`"}
	}
	return stream, nil
}

func (e *Engine) createPlugin(ctx context.Context, stream io.Reader, data string, opts SetupOptions) error {
	if err := e.api.PluginCreate(ctx, stream, types.PluginCreateOptions{RepoName: contract.DriverName}); err != nil {
		return translate(err, "volume plugin pgoverlay")
	}
	opts.Report(fmt.Sprintf("created the volume plugin pgoverlay %s (capability CAP_SYS_ADMIN, one mount: %s)", e.version, data))
	return nil
}

func (e *Engine) enable(ctx context.Context, opts SetupOptions) error {
	// Timeout 0 leaves the Engine's own limits in force, 2 minutes for Create and
	// Mount; any other value would cap every later call (moby plugin/manager_linux.go).
	if err := e.api.PluginEnable(ctx, contract.DriverName, types.PluginEnableOptions{}); err != nil {
		text := err.Error()
		hint := "look for plugin= lines in the engine's log"
		if strings.Contains(text, "no such file or directory") && strings.Contains(text, "mount") {
			hint = "the data folder must exist on the engine's host: create it, then run this again"
		}
		return &Error{Kind: KindSetup, Object: "volume plugin pgoverlay", Cause: "does not start", Err: err, Hint: hint}
	}
	opts.Report("enabled it")
	return nil
}

// refresh enables an installed plugin and replaces one of another version.
func (e *Engine) refresh(ctx context.Context, info system.Info, plugin *types.Plugin, opts SetupOptions) error {
	source := dataSource(plugin)
	if opts.Data != "" && strings.TrimRight(opts.Data, "/") != strings.TrimRight(source, "/") {
		return &Error{
			Kind: KindConflict, Object: "volume plugin pgoverlay",
			Cause: fmt.Sprintf("keeps its data in %s already", source),
			Hint:  "remove its branches and seeds and then the plugin (`docker plugin rm -f pgoverlay`), and run setup again",
		}
	}
	if !plugin.Enabled {
		if err := e.enable(ctx, opts); err != nil {
			return err
		}
	}
	status, err := e.ticket(ctx, contract.OpStatus, "volume plugin pgoverlay", nil)
	if err != nil {
		return err
	}
	if status.Plugin != nil && status.Plugin.Version == e.version {
		return nil
	}
	return e.upgrade(ctx, info, plugin, opts)
}

// upgrade swaps the plugin for this CLI's build. Docker's own metadata survives:
// volumes come back with a plugin of the same name.
func (e *Engine) upgrade(ctx context.Context, info system.Info, plugin *types.Plugin, opts SetupOptions) error {
	running, err := e.runningOnPlugin(ctx)
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return &Error{
			Kind: KindConflict, Object: "volume plugin pgoverlay",
			Cause: "cannot be upgraded while containers use its volumes: " + strings.Join(running, ", "),
			Hint:  "stop them (`docker pgbranch stop`), run setup again, start them",
		}
	}
	// Made before the old plugin goes: a build without one must change nothing.
	stream, err := pluginStream(info, dataSource(plugin))
	if err != nil {
		return err
	}
	id := storeID(plugin)
	// Force: the Engine counts every volume that it knows as a use of the plugin.
	if err := e.api.PluginDisable(ctx, contract.DriverName, types.PluginDisableOptions{Force: true}); err != nil {
		return translate(err, "volume plugin pgoverlay")
	}
	if err := e.api.PluginRemove(ctx, contract.DriverName, types.PluginRemoveOptions{Force: true}); err != nil {
		return translate(err, "volume plugin pgoverlay")
	}
	opts.Report("removed the volume plugin of another version; its data stays in " + dataSource(plugin))
	if err := e.createPlugin(ctx, stream, dataSource(plugin), opts); err != nil {
		return err
	}
	if id != "" {
		if err := e.api.PluginSet(ctx, contract.DriverName, []string{contract.EnvStoreID + "=" + id}); err != nil {
			return translate(err, "volume plugin pgoverlay")
		}
	}
	return e.enable(ctx, opts)
}

// runningOnPlugin names the running containers that mount a pgoverlay volume.
func (e *Engine) runningOnPlugin(ctx context.Context) ([]string, error) {
	list, err := e.api.ContainerList(ctx, container.ListOptions{})
	if err != nil {
		return nil, translate(err, "docker engine")
	}
	var names []string
	for _, c := range list {
		for _, m := range c.Mounts {
			if m.Driver == contract.DriverNameInEngine {
				names = append(names, containerName(c.Names))
				break
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// pin writes the data root's id into the plugin's settings, so that a data root
// that went away or was swapped makes the plugin refuse to start, instead of
// answering that no volume exists: at that answer the Engine drops each volume's
// labels and references (moby volume/service/store.go, VolumeStore.getVolume).
func (e *Engine) pin(ctx context.Context, opts SetupOptions) (contract.PluginStatus, error) {
	plugin, _, err := e.api.PluginInspectWithRaw(ctx, contract.DriverName)
	if err != nil {
		return contract.PluginStatus{}, translate(err, "volume plugin pgoverlay")
	}
	status, err := e.ticket(ctx, contract.OpStatus, "volume plugin pgoverlay", nil)
	if err != nil {
		return contract.PluginStatus{}, err
	}
	if status.Plugin == nil {
		return contract.PluginStatus{}, &Error{Kind: KindSetup, Object: "volume plugin pgoverlay", Cause: "does not say what it is"}
	}
	if storeID(plugin) != "" {
		return *status.Plugin, nil
	}
	// A setting can be changed only while the plugin is disabled, and disabling it
	// under a running container loses that container's later unmount.
	if running, err := e.runningOnPlugin(ctx); err != nil || len(running) > 0 {
		opts.Report("did not pin it to its data root, since containers use its volumes; run setup again when none runs")
		return *status.Plugin, err
	}
	if err := e.api.PluginDisable(ctx, contract.DriverName, types.PluginDisableOptions{Force: true}); err != nil {
		return contract.PluginStatus{}, translate(err, "volume plugin pgoverlay")
	}
	setErr := e.api.PluginSet(ctx, contract.DriverName, []string{contract.EnvStoreID + "=" + status.Plugin.StoreID})
	if err := e.api.PluginEnable(ctx, contract.DriverName, types.PluginEnableOptions{}); err != nil {
		return contract.PluginStatus{}, translate(err, "volume plugin pgoverlay")
	}
	if setErr != nil {
		return contract.PluginStatus{}, translate(setErr, "volume plugin pgoverlay")
	}
	opts.Report("pinned it to the data root " + status.Plugin.StoreID)
	return *status.Plugin, nil
}

// dataSource gives the host folder of a plugin's data mount. Config holds what is
// in force: the Engine changes it on `plugin set`, and Settings may lag behind.
func dataSource(plugin *types.Plugin) string {
	for _, m := range plugin.Config.Mounts {
		if m.Name == "data" && m.Source != nil {
			return *m.Source
		}
	}
	return ""
}

func storeID(plugin *types.Plugin) string {
	for _, env := range plugin.Settings.Env {
		if id, ok := strings.CutPrefix(env, contract.EnvStoreID+"="); ok {
			return id
		}
	}
	return ""
}
