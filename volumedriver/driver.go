// Package volumedriver is the volume plugin: it speaks docker.volumedriver/1.0, owns
// the data root, and is the only part of the product that mounts anything.
//
// What is on disk and in the kernel's mount table is the truth. The Driver keeps it in
// memory to answer quickly, and a start after a crash at any point reads either the
// state before an operation or the state after it.
package volumedriver

import (
	"context"
	"log/slog"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Config is what a Driver needs to know of its surroundings.
type Config struct {
	// DataRoot is the folder that holds everything.
	DataRoot string
	// MountRoot is a folder below the plugin's propagated mount: what is mounted below
	// that shows up on the host, and Docker accepts no other mountpoints. The driver makes
	// it a mount of its own, so that what volumes are mounted on is on no disk: where the
	// plugin is cut off from the host (AwaitCutOff), a container would else get the bare
	// mountpoint, an empty folder that an image runs initdb in. As it is, the host has no
	// such path, and the container does not start.
	MountRoot string
	// StoreID pins the driver to the store of that id; empty adopts or makes one, unless
	// PinFile names one.
	StoreID string
	// PinFile is where the driver remembers which store it served, outside of the data
	// root; empty remembers nothing.
	PinFile string
	// Version is the plugin's version, for op=status.
	Version string
	// Shim gives the object of the preload shim for this machine.
	Shim func() ([]byte, error)
	// Agent is the path of the agent's binary.
	Agent string
	// Mounter is the kernel, or what stands for it in a test.
	Mounter Mounter
	Log     *slog.Logger
	// SelfTest stands in a test for followsCopyUp, which needs a real overlay.
	SelfTest func(merged string) error
	// Step, where set, is called by name between the steps of an operation. It exists to
	// crash there: what a restart then finds must be whole.
	Step func(name string)
}

// Driver serves the verbs of the volume protocol. All its methods may be called at the
// same time.
type Driver struct {
	cfg     Config
	store   *store
	mounter Mounter
	log     *slog.Logger
	runtime *runtimeLayers
	usage   *usageCache
	probe   probeCache
	kernel  kernelCheck
	// locks serialises the verbs on one volume, by name. It is taken before mu.
	locks keyLock

	// reached is closed once dockerd has seen that the plugin listens.
	reached chan struct{}

	// mu guards what follows, and is never held over any I/O.
	mu      sync.Mutex
	volumes map[string]*volume
	tickets map[string]*ticket
}

// Open opens the data root and reconciles it with the kernel's mount table. It does
// so before anything listens: a plugin that is not ready must not answer Get.
func Open(cfg Config) (*Driver, error) {
	want := cfg.StoreID
	if want == "" {
		want = readPin(cfg.PinFile)
	}
	s, err := openStore(cfg.DataRoot, want, cfg.Log)
	if err != nil {
		return nil, err
	}
	if err := writePin(cfg.PinFile, s.meta.ID); err != nil {
		cfg.Log.Warn("cannot remember the store", "error", err)
	}
	cfg.MountRoot = filepath.Clean(cfg.MountRoot)
	if err := cfg.Mounter.Room(cfg.MountRoot); err != nil {
		s.close()
		return nil, failed("mounts below "+cfg.MountRoot, "make room for them", err)
	}
	d := &Driver{
		cfg: cfg, store: s, mounter: cfg.Mounter, log: cfg.Log,
		runtime: &runtimeLayers{store: s, shim: cfg.Shim, agentPath: cfg.Agent},
		usage:   newUsageCache(s.root),
		volumes: map[string]*volume{},
		tickets: map[string]*ticket{},
		reached: make(chan struct{}),
	}
	if err := d.load(); err != nil {
		s.close()
		return nil, err
	}
	return d, nil
}

// Close lets go of the data root. It unmounts nothing: with live-restore, and after a
// crash, containers outlive the plugin.
func (d *Driver) Close() { d.store.close() }

// step marks the end of a step of an operation.
func (d *Driver) step(name string) {
	if d.cfg.Step != nil {
		d.cfg.Step(name)
	}
}

// StoreID is the id of the data root.
func (d *Driver) StoreID() string { return d.store.meta.ID }

// Background gets ready what requests would else wait for, and sweeps what crashes and
// removals left behind, until the context ends.
func (d *Driver) Background(ctx context.Context) {
	if err := d.checkFileSystem("plugin"); err != nil {
		d.log.Warn("the data root cannot hold branches", "error", err)
	}
	d.checkKernel()
	d.runtime.load()
	go d.sweepRuntime()
	go d.sweepStaging(ctx)
	go d.mendNames()
	go d.measureSeeds()
	go d.probeCopyUp(ctx)
	d.store.sweepTrash(ctx)
}

// target is where a volume is mounted, inside the plugin.
func (d *Driver) target(v *volume) string { return filepath.Join(d.cfg.MountRoot, v.id) }

// find gives the volume of that name, nil where there is none. A volume that is being
// removed is there until it is gone: the removal may yet be refused.
func (d *Driver) find(name string) *volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.volumes[name]; v != nil && v.phase != creating {
		return v
	}
	return nil
}

// lockVolume takes the lock of a name and gives the volume, nil where there is none.
func (d *Driver) lockVolume(ctx context.Context, name string) (*volume, func(), error) {
	unlock, err := d.locks.lock(ctx, name)
	if err != nil {
		return nil, nil, failed(named("volume", name), "wait for another request about it", err)
	}
	return d.find(name), unlock, nil
}

// setID gives a volume that is being made the id of its folder.
func (d *Driver) setID(v *volume, id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v.id = id
	switch v.kind {
	case contract.KindSeed:
		v.seed.ID = id
	case contract.KindBranch:
		v.branch.ID = id
	case contract.KindStaging:
		v.staging.ID = id
	}
}

// setErr records the outcome of a verb for Status.
func (d *Driver) setErr(v *volume, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v.lastErr = ""
	if err != nil {
		v.lastErr = err.Error()
	}
}

// Info is one volume as List and Get give it.
type Info struct {
	Name       string
	Mountpoint string
	CreatedAt  time.Time
	// Status is nil in a list.
	Status *contract.Status
}

// List gives all volumes, without their Status. It reads memory only.
func (d *Driver) List() []Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]Info, 0, len(d.volumes))
	for _, v := range d.volumes {
		if v.phase != creating {
			list = append(list, Info{Name: v.name, Mountpoint: d.target(v), CreatedAt: v.created})
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Get gives one volume. Its only error is errNotFound.
func (d *Driver) Get(name string) (Info, error) {
	d.mu.Lock()
	if t := d.tickets[name]; t != nil && t.status != nil {
		defer d.mu.Unlock()
		return Info{Name: name, Mountpoint: filepath.Join(d.cfg.MountRoot, "ticket"), CreatedAt: t.created, Status: t.status}, nil
	}
	v := d.volumes[name]
	if v == nil || v.phase == creating {
		d.mu.Unlock()
		return Info{}, notFound(name)
	}
	status := v.status()
	status.Branches = d.branchesOf(v)
	var seed *volume
	if v.kind == contract.KindBranch {
		// The CLI makes a branch's container from its seed's manifest, and asks once.
		if seed = d.seedByID(v.branch.SeedID); seed != nil {
			status.Manifest = seed.manifest
		}
	}
	g, branch := d.grounds(v), v.branch
	d.mu.Unlock()

	if branch != nil && branch.TTL != 0 {
		status.Expired = branch.expired(clockNow())
	}
	status.OwnedBytes = d.usage.get(v, g)
	d.describe(v, seed, status)
	return Info{Name: v.name, Mountpoint: d.target(v), CreatedAt: v.created, Status: status}, nil
}

// describe adds to a Status what needs a look at the disk.
func (d *Driver) describe(v, seed *volume, status *contract.Status) {
	status.CopyUpMode = d.probe.copyUpMode()
	if v.kind != contract.KindBranch {
		return
	}
	status.CowMode = contract.ModeLazyRW
	if why := d.eagerBecause(v); why != "" {
		status.CowMode, status.CowReason = contract.ModeEager, why
		return
	}
	d.describeRun(v, seed, status)
}

// eagerBecause says why the plugin does not let a branch be lazy, empty where it does.
func (d *Driver) eagerBecause(v *volume) string {
	if v.cow == contract.CowOff {
		return "cow=off"
	}
	return d.engineEagerBecause()
}

// engineEagerBecause says why no branch on this engine can be lazy, empty where they
// can.
func (d *Driver) engineEagerBecause() string {
	if err := d.runtime.shimMissing(); err != nil {
		return "the plugin has no shim: " + err.Error()
	}
	if err := d.kernelVerdict(); err != nil {
		return "the engine's kernel is not fit for lazyrw: " + err.Error()
	}
	return ""
}

// measureSeeds has the size of every seed measured once, so that Get has it at hand.
func (d *Driver) measureSeeds() {
	d.mu.Lock()
	var seeds []*volume
	for _, v := range d.volumes {
		if v.kind == contract.KindSeed && v.phase != creating {
			seeds = append(seeds, v)
		}
	}
	d.mu.Unlock()
	for _, v := range seeds {
		d.usage.get(v, grounds{own: []string{v.tree()}})
	}
}

// grounds gives the folders that a volume's bytes lie in: its own tree, the frozen layers
// that nothing else stands on, and what it shares. d.mu must be held.
func (d *Driver) grounds(v *volume) grounds {
	g := grounds{own: []string{v.tree()}}
	if v.kind != contract.KindBranch {
		// A seed owns all that it has, however many clones of it there are.
		return g
	}
	clones := d.probe.copyUpMode() == contract.CopyUpClone
	if clones {
		g.below = []string{path.Join(seedsDir, v.branch.SeedID, rootDir)}
	}
	shared := map[string]bool{}
	for _, b := range d.volumes {
		if b.kind == contract.KindBranch && b != v {
			for _, id := range b.branch.Layers {
				shared[id] = true
			}
		}
	}
	for _, id := range v.branch.Layers {
		layer := path.Join(layersDir, id, upperDir)
		switch {
		case !shared[id]:
			g.own = append(g.own, layer)
		case clones:
			g.below = append(g.below, layer)
		}
	}
	return g
}

// branchesOf names the branches that stand on a volume. d.mu must be held.
func (d *Driver) branchesOf(v *volume) []string {
	if v.kind == contract.KindStaging {
		return nil
	}
	var names []string
	for _, b := range d.volumes {
		if b.kind != contract.KindBranch {
			continue
		}
		if (v.kind == contract.KindSeed && b.branch.SeedID == v.id) ||
			(v.kind == contract.KindBranch && b.branch.ParentID == v.id) {
			names = append(names, b.name)
		}
	}
	slices.Sort(names)
	return names
}

// Path gives where the volume is, or would be, mounted.
func (d *Driver) Path(name string) (string, error) {
	v := d.find(name)
	if v == nil {
		return "", notFound(name)
	}
	return d.target(v), nil
}

// seedsHere names the seeds, for refusals. d.mu must be held.
func (d *Driver) seedsHere() string {
	seen := map[string]bool{}
	for _, v := range d.volumes {
		if v.kind == contract.KindSeed && v.phase == ready && v.damage == nil {
			seen[v.seed.Name] = true
		}
	}
	if len(seen) == 0 {
		return "there are no seeds yet; make one: docker pgbranch seed create NAME --from URL"
	}
	return "seeds here: " + joinNames(sortedKeys(seen))
}

// seedByID gives a seed generation by its id. d.mu must be held.
func (d *Driver) seedByID(id string) *volume {
	for _, v := range d.volumes {
		if v.kind == contract.KindSeed && v.id == id {
			return v
		}
	}
	return nil
}

// findSeed gives a seed generation, the newest for 0. d.mu must be held.
func (d *Driver) findSeed(name string, generation int) *volume {
	var best *volume
	for _, v := range d.volumes {
		if v.kind != contract.KindSeed || v.phase != ready || v.damage != nil || v.seed.Name != name {
			continue
		}
		if generation != 0 && v.seed.Generation != generation {
			continue
		}
		if best == nil || v.seed.Generation > best.seed.Generation {
			best = v
		}
	}
	return best
}

// maxNames bounds how many names one error carries.
const maxNames = 20

// joinNames lists names for a person.
func joinNames(names []string) string {
	more := ""
	if len(names) > maxNames {
		names, more = names[:maxNames], ", …"
	}
	return strings.Join(names, ", ") + more
}
