package engine

import (
	"slices"
	"strings"

	"github.com/docker/docker/api/types"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// settings are what `docker plugin set` can change of the volume plugin, and an
// upgrade must keep.
type settings struct {
	// data is the data mount's source, a folder of the Engine's host.
	data string
	// env are KEY=VALUE.
	env []string
}

// settingsOf gives the settings that are in force.
func settingsOf(plugin *types.Plugin) settings {
	// Config holds the mount's source: the Engine changes it there on `plugin set`.
	return settings{data: mountSource(plugin.Config.Mounts), env: plugin.Settings.Env}
}

// formerData gives the data source that was set once and is no longer in force:
// `docker plugin upgrade` puts the source back to its default, and leaves the old one
// standing in Settings (moby plugin/manager_linux.go, Manager.upgradePlugin).
func formerData(plugin *types.Plugin) string {
	former := mountSource(plugin.Settings.Mounts)
	if samePath(former, mountSource(plugin.Config.Mounts)) {
		return ""
	}
	return former
}

func mountSource(mounts []types.PluginMount) string {
	for _, m := range mounts {
		if m.Name == "data" && m.Source != nil {
			return *m.Source
		}
	}
	return ""
}

// samePath compares folders as a person writes them.
func samePath(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// storeID is the store that the plugin is pinned to, empty for none.
func (s settings) storeID() string {
	for _, env := range s.env {
		if id, ok := strings.CutPrefix(env, contract.EnvStoreID+"="); ok {
			return id
		}
	}
	return ""
}

// known gives the env settings that a plugin knows and has not yet: the Engine
// refuses to set others.
func (s settings) known(plugin *types.Plugin) []string {
	var env []string
	for _, setting := range s.env {
		key, _, _ := strings.Cut(setting, "=")
		if slices.Contains(plugin.Settings.Env, setting) {
			continue
		}
		if slices.ContainsFunc(plugin.Config.Env, func(e types.PluginEnv) bool { return e.Name == key }) {
			env = append(env, setting)
		}
	}
	return env
}
