package compose

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Drift says, for a branch that is a volume of a Compose project whose files are at
// hand, what those files ask for and the volume is not. Compose keeps such a volume
// without a word unless a person is there to answer its question: it asks, and takes
// the end of its input for a no (compose pkg/compose/create.go, ensureVolume).
//
// A project that cannot be read is nobody's fault here, and says nothing.
func Drift(ctx context.Context, b engine.Branch) []engine.Note {
	o := b.Compose
	if o == nil || len(o.Files) == 0 {
		return nil
	}
	for _, f := range o.Files {
		if _, err := os.Stat(f); err != nil {
			return nil
		}
	}
	// Compose has said already what is odd about the files.
	logrus.SetOutput(io.Discard)
	defer logrus.SetOutput(os.Stderr)
	p, err := Source{Files: o.Files, ProjectDir: o.WorkingDir, Name: o.Project, EnvFiles: o.EnvFiles}.Load(ctx)
	if err != nil {
		return nil
	}
	return p.drift(b)
}

func (p *Project) drift(b engine.Branch) []engine.Note {
	// Another name is another branch: the way to switch.
	if v, ok := p.Volumes[b.Compose.Volume]; !ok || v.Name != b.Branch {
		return nil
	}
	return p.VolumeDrift(b.Compose.Volume, b)
}

// VolumeDrift says what the files ask for of the volume under a key, where the branch of
// its name is something else.
func (p *Project) VolumeDrift(key string, b engine.Branch) []engine.Note {
	v := p.Volumes[key]
	if v.Driver != contract.DriverName || bool(v.External) {
		return nil
	}
	is, asked := "seed="+b.SeedRef(), ""
	switch seed, parent := v.DriverOpts[contract.OptSeed], v.DriverOpts[contract.OptBranch]; {
	case seed != "" && (b.Parent != "" || seed != b.Seed && seed != b.SeedRef()):
		asked = "seed=" + seed
	case parent != "" && parent != b.Parent:
		asked = "branch=" + parent
	}
	if b.Parent != "" {
		is = "branch=" + b.Parent
	}
	if asked == "" {
		return nil
	}
	return []engine.Note{{
		Detail: fmt.Sprintf("the files of the compose project %s ask for %s, and the volume was made with %s; compose keeps it as it is", p.Name, asked, is),
		Fix: fmt.Sprintf("docker compose -p %s down && docker volume rm %s  # its changes are lost; to keep them, give the new volume another name",
			p.Name, b.Branch),
	}}
}

// BranchVolumes gives the keys of the project's own volumes that are branches.
func (p *Project) BranchVolumes() []string {
	var keys []string
	for key, v := range p.Volumes {
		if v.Driver == contract.DriverName && !bool(v.External) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// HasBranches says whether the files make any database a branch: by a volume, also one
// that something else makes, or by a provider service.
func (p *Project) HasBranches() bool {
	for _, s := range p.AllServices() {
		if s.Provider != nil && s.Provider.Type == ProviderType {
			return true
		}
	}
	return len(p.BranchVolumes()) > 0
}
