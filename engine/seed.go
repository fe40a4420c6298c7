package engine

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"golang.org/x/sync/errgroup"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Seed is one seed generation. Its JSON is what `seed ls --format json` and
// `seed inspect` print.
type Seed struct {
	// Seed is the name and Generation the number: "shop", 2 for shop@2.
	Seed       string `json:"seed"`
	Generation int    `json:"generation"`
	// OwnedBytes is what the seed has allocated on disk.
	OwnedBytes int64     `json:"ownedBytes"`
	CreatedAt  time.Time `json:"createdAt"`
	// Branches are the names of the branches that stand on it.
	Branches []string           `json:"branches"`
	Manifest *contract.Manifest `json:"manifest"`
}

// Ref gives the seed's full name, "shop@2".
func (s Seed) Ref() string { return fmt.Sprintf("%s@%d", s.Seed, s.Generation) }

// statusWorkers bounds how many volumes are inspected at once: a volume list has
// no Status.
const statusWorkers = 8

// item is one volume of ours with its decoded Status.
type item struct {
	volume volume.Volume
	status contract.Status
}

// items gives the plugin's volumes of one kind, by name.
func (e *Engine) items(ctx context.Context, kind string) ([]item, error) {
	all, err := e.allItems(ctx)
	return slices.DeleteFunc(all, func(it item) bool { return it.status.Kind != kind }), err
}

// allItems gives the plugin's volumes, by name.
func (e *Engine) allItems(ctx context.Context) ([]item, error) {
	if err := e.requirePlugin(ctx); err != nil {
		return nil, err
	}
	list, err := e.api.VolumeList(ctx, volume.ListOptions{
		Filters: filters.NewArgs(filters.Arg("driver", contract.DriverNameInEngine)),
	})
	if err != nil {
		return nil, translate(err, "docker engine")
	}
	all := make([]item, len(list.Volumes))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(statusWorkers)
	for i, v := range list.Volumes {
		group.Go(func() error {
			full, status, err := e.inspect(gctx, v.Name, fmt.Sprintf("volume %q", v.Name))
			if KindOf(err) == KindNotFound {
				return nil // removed since the list was made
			}
			all[i] = item{full, status}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(it item) bool { return it.status.Kind == "" })
	slices.SortFunc(all, func(a, b item) int { return strings.Compare(a.volume.Name, b.volume.Name) })
	return all, nil
}

// Seeds lists all seed generations, by name and generation.
func (e *Engine) Seeds(ctx context.Context) ([]Seed, error) {
	items, err := e.items(ctx, contract.KindSeed)
	if err != nil {
		return nil, err
	}
	return seedsOf(items), nil
}

// seedsOf gives the seeds among volumes, by name and generation.
func seedsOf(items []item) []Seed {
	seeds := make([]Seed, 0, len(items))
	for _, it := range items {
		if it.status.Kind == contract.KindSeed {
			seeds = append(seeds, seedOf(it))
		}
	}
	slices.SortFunc(seeds, func(a, b Seed) int {
		if c := strings.Compare(a.Seed, b.Seed); c != 0 {
			return c
		}
		return a.Generation - b.Generation
	})
	return seeds
}

func seedOf(it item) Seed {
	created, _ := time.Parse(time.RFC3339, it.volume.CreatedAt)
	branches := it.status.Branches
	if branches == nil {
		branches = []string{}
	}
	return Seed{
		Seed: it.status.Seed, Generation: it.status.Generation,
		OwnedBytes: it.status.OwnedBytes, CreatedAt: created,
		Branches: branches, Manifest: it.status.Manifest,
	}
}

// Seed gives one seed generation: NAME@GEN, or the newest of NAME.
//
// It fails with KindNotFound, naming the seeds that exist.
func (e *Engine) Seed(ctx context.Context, ref string) (Seed, error) {
	found, err := e.matchSeeds(ctx, ref)
	if err != nil {
		return Seed{}, err
	}
	return found[len(found)-1], nil
}

// matchSeeds gives the generations that ref names, all of them for a bare name.
func (e *Engine) matchSeeds(ctx context.Context, ref string) ([]Seed, error) {
	name, generation, err := ParseSeedRef(ref)
	if err != nil {
		return nil, err
	}
	all, err := e.Seeds(ctx)
	if err != nil {
		return nil, err
	}
	var found []Seed
	var names []string
	for _, s := range all {
		names = append(names, s.Ref())
		if s.Seed == name && (generation == 0 || s.Generation == generation) {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		return nil, &Error{Kind: KindNotFound, Object: seedObject(ref), Cause: "does not exist", Hint: seedsHint(names)}
	}
	return found, nil
}

func seedsHint(names []string) string {
	if len(names) == 0 {
		return "there is no seed here yet: make one with `docker pgbranch seed create`"
	}
	return "seeds here: " + strings.Join(names, ", ")
}

// ParseSeedRef splits NAME[@GEN]; the generation is 0 where none is given.
//
// It fails with KindInvalid.
func ParseSeedRef(ref string) (name string, generation int, err error) {
	name, gen, has := strings.Cut(ref, "@")
	if err := checkName("seed", name); err != nil {
		return "", 0, err
	}
	if !has {
		return name, 0, nil
	}
	generation, err = strconv.Atoi(gen)
	if err != nil || generation < 1 {
		return "", 0, &Error{Kind: KindInvalid, Object: seedObject(ref), Cause: fmt.Sprintf("%q is no generation", gen),
			Hint: "a generation is a number from 1 up: shop@2"}
	}
	return name, generation, nil
}

// checkName applies the one rule for names.
func checkName(what, name string) error {
	if contract.ValidName(name) {
		return nil
	}
	shown := name
	if len(shown) > 40 {
		shown = shown[:40] + "…"
	}
	return &Error{
		Kind: KindInvalid, Object: fmt.Sprintf("%s %q", what, shown), Cause: "is not a valid name",
		Hint: "use 2 to 128 of the characters a-z A-Z 0-9 _ . -, the first a letter or digit",
	}
}

// RemoveSeed removes the seed generations that ref names: one for NAME@GEN, all
// for NAME. It refuses, with KindConflict and their names, while branches stand
// on any of them, and then removes none.
func (e *Engine) RemoveSeed(ctx context.Context, ref string) error {
	found, err := e.matchSeeds(ctx, ref)
	if err != nil {
		return err
	}
	var holders []string
	for _, s := range found {
		holders = append(holders, s.Branches...)
	}
	if len(holders) > 0 {
		slices.Sort(holders)
		return &Error{
			Kind: KindConflict, Object: seedObject(ref),
			Cause: "branches stand on it: " + strings.Join(holders, ", "),
			Hint:  "remove them first with `docker pgbranch rm`",
		}
	}
	for _, s := range found {
		if err := e.api.VolumeRemove(ctx, s.Ref(), false); err != nil && !isNotFound(err) {
			return translate(err, seedObject(s.Ref()))
		}
	}
	return nil
}
