package compose

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/distribution/reference"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// postgresImages are the last parts of the names of images that run a Postgres server.
var postgresImages = []string{"postgres", "postgresql", "postgis", "timescaledb", "timescaledb-ha", "pgvector", "pgrouting", "citus", "paradedb"}

// Paths at which images of Postgres have their volume.
const (
	mountTo17   = "/var/lib/postgresql/data"
	mountFrom18 = "/var/lib/postgresql"
)

// Candidate is a service that may run Postgres.
type Candidate struct {
	Service string
	// Why says what makes it one.
	Why string
	// Sure is false where only a volume's path hints at it.
	Sure bool
	// Keeps says that the service has a volume or folder where its cluster lies. A client
	// that runs the same image for its psql has none.
	Keeps bool
}

// Candidates finds the Postgres services among those that are enabled, sure ones first,
// then by name.
func (p *Project) Candidates() []Candidate {
	var found []Candidate
	for name, s := range p.Services {
		if s.Provider != nil {
			continue
		}
		at := slices.IndexFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool { return holdsCluster(s, v.Target) })
		if slices.Contains(postgresImages, imageName(s.Image)) {
			found = append(found, Candidate{name, "its image is " + s.Image, true, at >= 0})
		} else if at >= 0 {
			found = append(found, Candidate{name, "it has a volume at " + s.Volumes[at].Target, false, true})
		}
	}
	slices.SortFunc(found, func(a, b Candidate) int {
		if a.Sure != b.Sure {
			if a.Sure {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Service, b.Service)
	})
	return found
}

// Choose gives the services to give branches to: those asked for, or the only sure
// candidate, or the only one of them with a volume, or the only one at all. It fails with engine.KindInvalid, naming the
// choices, where that is not clear.
func (p *Project) Choose(asked []string) ([]string, error) {
	if len(asked) > 0 {
		for _, name := range asked {
			if _, err := p.service(name); err != nil {
				return nil, err
			}
		}
		asked = slices.Clone(asked)
		slices.Sort(asked)
		return slices.Compact(asked), nil
	}
	all := p.Candidates()
	only := func(keep func(Candidate) bool) []Candidate {
		return slices.DeleteFunc(slices.Clone(all), func(c Candidate) bool { return !keep(c) })
	}
	sure := only(func(c Candidate) bool { return c.Sure })
	keeping := only(func(c Candidate) bool { return c.Sure && c.Keeps })
	switch {
	case len(sure) == 1:
		return []string{sure[0].Service}, nil
	case len(keeping) == 1:
		return []string{keeping[0].Service}, nil
	case len(all) == 1:
		return []string{all[0].Service}, nil
	case len(all) == 0:
		hint := "name it with --service; services: " + strings.Join(p.ServiceNames(), ", ")
		if off := p.DisabledServiceNames(); len(off) > 0 {
			hint += "; not in the active profiles: " + strings.Join(off, ", ")
		}
		return nil, &engine.Error{Kind: engine.KindInvalid, Object: "compose project", Cause: "no service looks like Postgres", Hint: hint}
	}
	var names []string
	for _, c := range all {
		names = append(names, fmt.Sprintf("%s (%s)", c.Service, c.Why))
	}
	return nil, &engine.Error{Kind: engine.KindInvalid, Object: "compose project", Cause: "several services look like Postgres",
		Hint: "choose with --service, more than once for more than one: " + strings.Join(names, ", ")}
}

func imageName(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return ""
	}
	return path.Base(reference.Path(named))
}

var leadingNumber = regexp.MustCompile(`^\d+`)

// MajorOf reads a Postgres major from an image's tag, 0 where it does not say.
func MajorOf(image string) int {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return 0
	}
	tagged, ok := named.(reference.Tagged)
	if !ok {
		return 0
	}
	major, _ := strconv.Atoi(leadingNumber.FindString(strings.TrimPrefix(tagged.Tag(), "pg")))
	return major
}

// holdsCluster says whether a mount at target is where the service's cluster lies.
func holdsCluster(s types.ServiceConfig, target string) bool {
	target = path.Clean(target)
	if target == mountTo17 || target == mountFrom18 {
		return true
	}
	pgdata := value(s, "PGDATA")
	return pgdata != "" && (target == path.Clean(pgdata) || strings.HasPrefix(path.Clean(pgdata), target+"/"))
}

// value is an environment variable of the service, empty where it is not set.
func value(s types.ServiceConfig, key string) string {
	if v := s.Environment[key]; v != nil {
		return *v
	}
	return ""
}

// Facts are what must be known of a seed, and of the image that runs it.
type Facts struct {
	// Seed is as a volume's option names it: NAME or NAME@GEN.
	Seed string `yaml:"seed"`
	// Major is the seed's Postgres major.
	Major int `yaml:"postgres"`
	// MountPath, DataDir, Superuser and Database are those of contract.Manifest.
	MountPath string `yaml:"mount"`
	DataDir   string `yaml:"data"`
	Superuser string `yaml:"superuser"`
	Database  string `yaml:"database"`
	// Preload is what the service's image itself sets LD_PRELOAD to.
	Preload string `yaml:"preload,omitempty"`
	// Services are those that get a branch.
	Services []string `yaml:"services"`
}

// FactsOf takes what a seed's manifest says.
func FactsOf(seed string, m contract.Manifest, services []string) Facts {
	return Facts{Seed: seed, Major: m.Major, MountPath: m.MountPath, DataDir: m.DataDir,
		Superuser: m.Superuser, Database: m.Database, Services: services}
}

// SeedAsked gives the seed that the project's own files name for a service, "" for none.
func (p *Project) SeedAsked(service string) string {
	s, err := p.service(service)
	if err != nil {
		return ""
	}
	for _, m := range s.Volumes {
		if v, ok := p.Volumes[m.Source]; ok && m.Type == types.VolumeTypeVolume && v.Driver == contract.DriverName {
			return v.DriverOpts[contract.OptSeed]
		}
	}
	return ""
}
