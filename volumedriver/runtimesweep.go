package volumedriver

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// sweepRuntime drops the runtime layers of other versions of the plugin, about 10 MB
// each, that no mount has. A branch at rest needs none: its next mount has this
// version's, and with index=on the kernel knows again only the first lower layer, which
// is the seed or a frozen layer (fs/overlayfs/super.c, ovl_get_indexdir).
func (d *Driver) sweepRuntime() {
	d.runtime.load()
	there := d.store.names(runtimeDir)
	others := slices.DeleteFunc(there, func(name string) bool {
		// What says whether branches load the shim is a few bytes, and of all versions.
		return strings.HasPrefix(name, d.runtime.digest+"-") || strings.HasPrefix(name, preloadPrefix)
	})
	if len(others) == 0 {
		return
	}
	used := map[string]bool{}
	for _, v := range d.branches() {
		for _, dir := range d.runtimeHeld(v, others) {
			used[dir] = true
		}
	}
	for _, name := range others {
		if !used[name] {
			d.dropHalf(path.Join(runtimeDir, name))
		}
	}
}

// branches gives the branches there are.
func (d *Driver) branches() []*volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []*volume
	for _, v := range d.volumes {
		if v.kind == contract.KindBranch && v.phase != creating {
			list = append(list, v)
		}
	}
	return list
}

// runtimeHeld gives those of the runtime layers that a branch's mounts have: of the
// branch as it is mounted here, or of one that a container has from before a `docker
// plugin disable -f`, which only a probe shows.
func (d *Driver) runtimeHeld(v *volume, layers []string) []string {
	unlock, err := d.locks.lock(context.Background(), v.name)
	if err != nil {
		return layers
	}
	defer unlock()
	d.mu.Lock()
	m, gone := v.mounts, d.volumes[v.name] != v
	d.mu.Unlock()
	held := layers
	if m.Runtime != nil {
		held = nil
		for _, dir := range m.Runtime {
			if slices.Contains(layers, path.Base(dir)) {
				held = append(held, path.Base(dir))
			}
		}
	}
	if gone || len(held) == 0 {
		return nil
	}
	mounted, err := d.mounter.Mounted(d.target(v))
	if err != nil || mounted || m.held() {
		return held
	}
	if d.stillHeld(v) {
		return held
	}
	return nil
}
