package compose

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// proveOnly compares the project before and after a change: nothing may differ but what
// the plans are about, and that must be as they say. What it finds otherwise is a defect
// of this package or a file that is too unusual for it; nothing was written yet.
func proveOnly(before, after *Project, plans []plan) error {
	if err := firstDifference(neutral(before, plans), neutral(after, plans)); err != nil {
		return unexpected(err)
	}
	for _, pl := range plans {
		if err := after.follows(pl); err != nil {
			return unexpected(err)
		}
	}
	return nil
}

func unexpected(err error) error {
	return &engine.Error{Object: "compose project", Cause: "the change would do something else than what is meant", Err: err,
		Hint: "nothing was written; write the override by hand, as docs/compose.md shows"}
}

// neutral is the project without what the plans may change.
func neutral(p *Project, plans []plan) map[string]any {
	flat := map[string]any{"name": p.Name}
	for name, s := range p.AllServices() {
		i := slices.IndexFunc(plans, func(pl plan) bool { return pl.service == name })
		if i >= 0 {
			s = neutralService(s, plans[i])
		}
		flat["service "+name] = s
	}
	for key, v := range p.Volumes {
		if !slices.ContainsFunc(plans, func(pl plan) bool { return pl.key == key }) {
			flat["volume "+key] = v
		}
	}
	flat["networks"], flat["secrets"], flat["configs"] = p.Networks, p.Secrets, p.Configs
	return flat
}

func neutralService(s types.ServiceConfig, pl plan) types.ServiceConfig {
	env := types.MappingWithEquals{}
	for key, v := range s.Environment {
		if key != "LD_PRELOAD" && key != "PGDATA" {
			env[key] = v
		}
	}
	s.Environment, s.HealthCheck = env, nil
	s.Volumes = slices.DeleteFunc(slices.Clone(s.Volumes), func(m types.ServiceVolumeConfig) bool {
		return path.Clean(m.Target) == path.Clean(pl.facts.MountPath)
	})
	if len(s.Volumes) == 0 {
		s.Volumes = nil
	}
	return s
}

func firstDifference(before, after map[string]any) error {
	keys := append(sortedKeys(before), sortedKeys(after)...)
	for _, key := range keys {
		if !reflect.DeepEqual(before[key], after[key]) {
			return fmt.Errorf("%s would change", key)
		}
	}
	return nil
}

// follows checks that the project does with a service what its plan says.
func (p *Project) follows(pl plan) error {
	s, err := p.service(pl.service)
	if err != nil {
		return err
	}
	if got := value(s, "LD_PRELOAD"); got != pl.preload {
		return fmt.Errorf("service %s would have LD_PRELOAD=%s instead of %s", pl.service, got, pl.preload)
	}
	if got := value(s, "PGDATA"); got != "" && path.Clean(got) != pl.facts.pgdata() {
		return fmt.Errorf("service %s would have PGDATA=%s instead of %s", pl.service, got, pl.facts.pgdata())
	}
	at := slices.IndexFunc(s.Volumes, func(m types.ServiceVolumeConfig) bool {
		return path.Clean(m.Target) == path.Clean(pl.facts.MountPath)
	})
	if at < 0 || s.Volumes[at].Source != pl.key || s.Volumes[at].Type != types.VolumeTypeVolume {
		return fmt.Errorf("service %s would not have the volume %s at %s", pl.service, pl.key, pl.facts.MountPath)
	}
	v := p.Volumes[pl.key]
	switch {
	case v.Driver != contract.DriverName || v.DriverOpts[contract.OptSeed] != pl.facts.Seed:
		return fmt.Errorf("volume %s would not be a branch of %s", pl.key, pl.facts.Seed)
	case !pl.ours && len(v.DriverOpts) != 1:
		return fmt.Errorf("volume %s would have options of another driver: %s", pl.key, strings.Join(sortedKeys(v.DriverOpts), ", "))
	case bool(v.External):
		return fmt.Errorf("volume %s would be external", pl.key)
	}
	return nil
}
