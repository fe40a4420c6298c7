package compose

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// BranchVariable is the variable that is part of a generated volume's name: another
// value is another branch, and the old one stays.
const BranchVariable = "BRANCH"

// plan is what one service needs.
type plan struct {
	service string
	facts   Facts
	// key is the volume's key; name, driver options and driver are set unless declared,
	// when the user's files make a branch of it already.
	key      string
	declared bool
	// ours says that the user's files make the volume with our driver, of whatever.
	ours bool
	// resets says that the user's files give the volume driver options that a branch cannot have.
	resets bool
	// mounted says that the user's files mount key at the right place.
	mounted bool
	// preload is the whole value of LD_PRELOAD.
	preload string
	// pgdata is set where the user's files set PGDATA to another place.
	pgdata string
}

// plans gives the plan of every service that the facts name. None of them may come from
// a file that the project includes.
func (p *Project) plans(f Facts) ([]plan, error) {
	var plans []plan
	for _, service := range f.Services {
		if err := p.ownService(service); err != nil {
			return nil, err
		}
		pl, err := p.plan(service, f)
		if err != nil {
			return nil, err
		}
		plans = append(plans, pl)
	}
	return plans, nil
}

// plan says what a service needs to have a branch of the seed.
func (p *Project) plan(service string, f Facts) (plan, error) {
	s, err := p.service(service)
	if err != nil {
		return plan{}, err
	}
	object := fmt.Sprintf("service %q", service)
	refuse := func(cause, hint string) (plan, error) {
		return plan{}, &engine.Error{Kind: engine.KindInvalid, Object: object, Cause: cause, Hint: hint}
	}
	if s.Provider != nil {
		return refuse("is a provider service, which needs none of this", "leave it as it is")
	}
	if major := MajorOf(s.Image); major != 0 && major != f.Major {
		return refuse(fmt.Sprintf("runs %s, and the seed %s is of Postgres %d", s.Image, f.Seed, f.Major),
			fmt.Sprintf("name an image of Postgres %d, or make a seed of Postgres %d", f.Major, major))
	}
	pl := plan{service: service, facts: f, preload: joinPreload(value(s, "LD_PRELOAD"), f)}
	if pgdata := value(s, "PGDATA"); pgdata != "" && path.Clean(pgdata) != f.pgdata() {
		pl.pgdata = f.pgdata()
	}
	for _, m := range s.Volumes {
		target := path.Clean(m.Target)
		switch {
		case target == path.Clean(f.MountPath):
			p.take(&pl, m)
		case strings.HasPrefix(target, path.Clean(f.MountPath)+"/") && holdsCluster(s, target):
			return refuse(fmt.Sprintf("mounts its data at %s, and images of Postgres %d have it at %s", target, f.Major, f.MountPath),
				"write "+f.MountPath+" there in the compose file")
		}
	}
	if pl.key == "" {
		pl.key = service + "-branch"
	}
	return pl, nil
}

// take looks at what the user's files mount where the branch belongs.
func (p *Project) take(pl *plan, m types.ServiceVolumeConfig) {
	v, named := p.Volumes[m.Source]
	// What is not the project's own to change keeps its key, and the branch gets another;
	// so do a folder of the host, and a part of a volume.
	if m.Type != types.VolumeTypeVolume || !named || bool(v.External) || m.Volume != nil && m.Volume.Subpath != "" {
		return
	}
	pl.key, pl.mounted = m.Source, !m.ReadOnly
	pl.declared = v.Driver == contract.DriverName && v.DriverOpts[contract.OptSeed] == pl.facts.Seed
	pl.ours = v.Driver == contract.DriverName
	for key := range v.DriverOpts {
		pl.resets = pl.resets || !pl.ours || key == contract.OptBranch
	}
}

func (f Facts) pgdata() string { return path.Join(f.MountPath, f.DataDir) }

func (f Facts) runtime(file string) string { return path.Join(f.MountPath, contract.RuntimeDir, file) }

// joinPreload puts the shim behind what is preloaded already: that may call on to the
// shim, which calls on to nobody. A service's LD_PRELOAD takes the place of its image's.
func joinPreload(own string, f Facts) string {
	shim := f.runtime(contract.ShimFile)
	if own == "" {
		own = f.Preload
	}
	// ld.so takes both separators.
	parts := strings.FieldsFunc(own, func(r rune) bool { return r == ':' || r == ' ' })
	if slices.Contains(parts, shim) {
		return own
	}
	return strings.Join(append(parts, shim), ":")
}

// volumeName is what the volume is called: never as Compose would call a volume of that
// key, which may exist with the user's data in it.
func (pl plan) volumeName() string {
	return "${COMPOSE_PROJECT_NAME}_" + pl.key + "_${" + BranchVariable + ":-main}"
}

// Times of the health check. A probe waits inside the container, so that it turns green
// at the moment when the server answers, and the next comes soon where it did not.
const (
	healthInterval      = "10s"
	healthTimeout       = "5s"
	healthStartPeriod   = "60s"
	healthStartInterval = "100ms"
	healthRetries       = "3"
	// probeTimeout is how long one probe waits for the server; below healthTimeout.
	probeTimeout = "3s"
)

// probe is the health check's command: the agent in the volume, so that it needs nothing
// of the image and no password. It is red while the server recovers.
func (f Facts) probe() []string {
	return []string{"CMD", f.runtime(contract.AgentFile), "agent", contract.AgentReady,
		"--user", f.Superuser, "--database", f.Database, "--timeout", probeTimeout}
}
