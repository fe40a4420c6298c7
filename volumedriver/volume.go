package volumedriver

import (
	"path"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// phase is where a volume is in its life.
type phase int

const (
	// creating: the name is taken and nothing is shown yet.
	creating phase = iota
	// ready: shown, and may be built upon.
	ready
	// removing: still shown, since the removal may be refused, and not built upon.
	removing
)

// volume is one seed generation, branch or staging volume. What stands before the
// metadata never changes once the volume is ready; the rest is guarded by Driver.mu.
type volume struct {
	kind    string
	id      string
	name    string
	created time.Time
	// cow is the cow mode that was asked for; of a branch only.
	cow string

	// Exactly one of these is set, by kind. What they point to never changes; a branch
	// gets another when its layers change.
	seed    *seedMeta
	branch  *branchMeta
	staging *stagingMeta
	// manifest is the seed's own; of a seed only.
	manifest *contract.Manifest

	phase phase
	// mounts says who holds the volume. It counts by Docker's mount id: `docker cp` on a
	// running container sends Mount and Unmount with the id of the container's live mount
	// (moby#47964), so a set of ids would unmount under Postgres. Its maps never change.
	mounts mountsMeta
	// damage is why the volume's metadata cannot be used, nil where it can. Of a damaged
	// volume only the name and the folder are certain.
	damage error
	// lastErr is the last error met with this volume, empty after a success.
	lastErr string
}

// dir is the volume's folder below the data root.
func (v *volume) dir() string {
	switch v.kind {
	case contract.KindSeed:
		return path.Join(seedsDir, v.id)
	case contract.KindBranch:
		return path.Join(branchesDir, v.id)
	default:
		return path.Join(stagingDir, v.id)
	}
}

// tree is the folder whose allocated blocks the volume owns, below the data root.
func (v *volume) tree() string {
	switch v.kind {
	case contract.KindSeed:
		return path.Join(v.dir(), rootDir)
	case contract.KindBranch:
		return path.Join(v.dir(), upperDir)
	default:
		return path.Join(v.dir(), stagingVolume)
	}
}

// object is how errors name the volume.
func (v *volume) object() string { return named(v.kind, v.name) }

// status is what `docker volume inspect` shows, without what other volumes and the
// disk add. Driver.mu must be held.
func (v *volume) status() *contract.Status {
	s := &contract.Status{Kind: v.kind, Mounted: v.mounts.held(), LastError: v.lastErr}
	if v.damage != nil {
		s.Damaged, s.LastError = true, v.damage.Error()
	}
	switch v.kind {
	case contract.KindSeed:
		s.Seed, s.Generation, s.Manifest = v.seed.Name, v.seed.Generation, v.manifest
	case contract.KindBranch:
		s.Seed, s.Generation, s.Parent = v.branch.Seed, v.branch.Generation, v.branch.Parent
		s.ExpiresAt = v.branch.expires()
		s.Settings = v.branch.Settings
	case contract.KindStaging:
		s.Seed = v.staging.Seed
	}
	return s
}

func newSeed(m *seedMeta, manifest *contract.Manifest) *volume {
	return &volume{kind: contract.KindSeed, id: m.ID, name: seedVolume(m.Name, m.Generation),
		created: m.Created, seed: m, manifest: manifest}
}

func newBranch(m *branchMeta) *volume {
	return &volume{kind: contract.KindBranch, id: m.ID, name: m.Name, created: m.Created, cow: m.Cow, branch: m}
}

func newStaging(m *stagingMeta) *volume {
	return &volume{kind: contract.KindStaging, id: m.ID, name: m.Name, created: m.Created, staging: m}
}

// ticket is a volume that is created only to have something done. It lives in memory
// until it is removed, or for ticketLife.
type ticket struct {
	opts    options
	created time.Time
	// status is nil until the work is done.
	status *contract.Status
}

// ticketLife bounds how long a ticket that nobody removes is remembered.
const ticketLife = time.Hour
