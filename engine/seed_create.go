package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// SeedCreateOptions say what a seed is made of.
type SeedCreateOptions struct {
	Name   string
	Source contract.Source
	// Network is the Docker network from which the source can be reached; empty is
	// the default bridge, or the host's network for a source on localhost.
	Network string
	// Image settles the seed and runs its branches; empty is postgres:MAJOR of the
	// source.
	Image string
	// MaxRate bounds what the source sends, bytes a second; 0 is no bound.
	MaxRate int64
	// Force accepts an image in which the source's text sorts otherwise, or which lacks a
	// locale or an extension of it.
	Force bool
	// Next adds a generation to a seed that exists.
	Next bool
	// Progress is told about each stage. It may be nil.
	Progress ProgressFunc
}

// CreateSeed copies a running server, settles the copy and seals it. It leaves
// nothing behind unless it succeeds, also when ctx is cancelled.
//
// It fails with KindConflict for a name in use, KindSource for a source that
// cannot be copied, KindInvalid for an image of another major.
func (e *Engine) CreateSeed(ctx context.Context, opts SeedCreateOptions) (Seed, error) {
	if err := e.beginSeed(ctx, &opts); err != nil {
		return Seed{}, err
	}
	// Containers go while the next stage works.
	var going sync.WaitGroup
	defer going.Wait()
	probe, img, err := e.probe(ctx, opts, &going)
	if err != nil {
		return Seed{}, err
	}
	// Not before the base backup is about to mount it: the plugin takes a staging
	// volume that nothing mounts for a leftover.
	stage, err := e.createStaging(ctx, opts)
	if err != nil {
		return Seed{}, err
	}
	defer e.removeStaging(ctx, stage)
	defer going.Wait()
	settling := e.settling(ctx, opts, stage, img)
	defer settling.drop(ctx)
	backup, err := e.baseBackup(ctx, opts, stage, img, probe, settling, &going)
	if err != nil {
		return Seed{}, err
	}
	if err := e.settle(ctx, opts, settling, settleRequest(img, probe, backup)); err != nil {
		return Seed{}, err
	}
	settling.drop(ctx)
	going.Wait()
	return e.seal(ctx, opts, stage)
}

// beginSeed fills in what the options leave out, refuses those that cannot work, and
// clears what an earlier seeding of that name has left.
func (e *Engine) beginSeed(ctx context.Context, opts *SeedCreateOptions) error {
	if opts.Progress == nil {
		opts.Progress = func(Progress) {}
	}
	if err := checkName("seed", opts.Name); err != nil {
		return err
	}
	if err := checkRate(opts.MaxRate); err != nil {
		return err
	}
	if opts.Network == "" && loopback(opts.Source) {
		opts.Network = "host"
	}
	if err := e.seedNameFree(ctx, *opts); err != nil {
		return err
	}
	e.sweepHelpers(ctx, opts.Name)
	return nil
}

// checkRate applies pg_basebackup's own bounds (MAX_RATE_LOWER and MAX_RATE_UPPER in
// basebackup.h).
func checkRate(rate int64) error {
	if rate == 0 || rate >= 32<<10 && rate <= 1<<30 {
		return nil
	}
	return &Error{Kind: KindInvalid, Object: "--max-rate", Cause: fmt.Sprintf("%d bytes a second is out of bounds", rate),
		Hint: "give 32k to 1g; a bare number is bytes"}
}

// seedNameFree refuses a name in use before the source is bothered. The plugin has
// the last word, at staging and at seal.
func (e *Engine) seedNameFree(ctx context.Context, opts SeedCreateOptions) error {
	seeds, err := e.Seeds(ctx)
	if err != nil || opts.Next {
		return err
	}
	for _, s := range seeds {
		if s.Seed == opts.Name {
			return &Error{
				Kind: KindConflict, Object: seedObject(opts.Name), Cause: fmt.Sprintf("exists already: %s", s.Ref()),
				Hint: "choose another name, or add a generation to it with --next",
			}
		}
	}
	return nil
}

// leftoverAge is how old a helper container that does not run must be, before it
// is taken for what a killed seeding left and not for what another one is about
// to start.
const leftoverAge = 10 * time.Second

// sweepHelpers removes what an earlier seeding of that name left behind when it
// was killed without a chance to clean up. A seeding that still goes on keeps what
// is its own: its container runs, and the Engine refuses to remove a volume in use.
func (e *Engine) sweepHelpers(ctx context.Context, seed string) {
	label := filters.NewArgs(filters.Arg("label", LabelHelper+"="+seed))
	containers, err := e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: label})
	if err != nil {
		return
	}
	for _, c := range containers {
		if c.State != container.StateRunning && time.Since(time.Unix(c.Created, 0)) > leftoverAge {
			_ = e.api.ContainerRemove(ctx, c.ID, container.RemoveOptions{RemoveVolumes: true})
		}
	}
	volumes, err := e.api.VolumeList(ctx, volume.ListOptions{Filters: label})
	if err != nil {
		return
	}
	for _, v := range volumes.Volumes {
		if v.Driver == contract.DriverNameInEngine && v.Labels[LabelHelper] == seed {
			_ = e.api.VolumeRemove(ctx, v.Name, false)
		}
	}
}

func (e *Engine) createStaging(ctx context.Context, opts SeedCreateOptions) (string, error) {
	generation := contract.GenerationFirst
	if opts.Next {
		generation = contract.GenerationNext
	}
	name := "pgbranch-staging-" + nonce()
	_, err := e.createVolume(ctx, volume.CreateOptions{
		Name:       name,
		DriverOpts: map[string]string{contract.OptStaging: opts.Name, contract.OptGeneration: generation},
		Labels:     map[string]string{LabelHelper: opts.Name},
	})
	if err != nil {
		e.removeStaging(ctx, name)
		return "", translate(err, seedObject(opts.Name))
	}
	return name, nil
}

// removeStaging drops what is left of a staging volume. After a seal only the
// Engine's own record of it is.
func (e *Engine) removeStaging(ctx context.Context, name string) {
	ctx, cancel := cleanup(ctx)
	defer cancel()
	_ = e.api.VolumeRemove(ctx, name, true)
}

// probe asks the source what it is, and finds the image for it.
func (e *Engine) probe(ctx context.Context, opts SeedCreateOptions, going *sync.WaitGroup) (contract.Probe, pgImage, error) {
	probe, err := e.probeSource(ctx, opts, false, going)
	if err != nil {
		return contract.Probe{}, pgImage{}, err
	}
	ref := opts.Image
	if ref == "" {
		ref = fmt.Sprintf("postgres:%d", probe.Major)
	}
	img, err := e.ensureImage(ctx, ref, opts.Progress)
	if err != nil {
		return probe, img, err
	}
	if img.Major != 0 && img.Major != probe.Major {
		return probe, img, &Error{
			Kind: KindInvalid, Object: seedObject(opts.Name),
			Cause: fmt.Sprintf("the source runs Postgres %d and the image %s has Postgres %d", probe.Major, ref, img.Major),
			Hint:  fmt.Sprintf("leave out --image, or name one with Postgres %d", probe.Major),
		}
	}
	if img.Major == 0 {
		img.Major = probe.Major
	}
	return probe, img, nil
}

// probeSource asks the source what it is; logical, what a dump of it needs.
func (e *Engine) probeSource(ctx context.Context, opts SeedCreateOptions, logical bool, going *sync.WaitGroup) (contract.Probe, error) {
	opts.Progress(Progress{Stage: contract.StageProbe, Message: opts.Source.URL})
	agent, err := e.ensureAgentImage(ctx)
	if err != nil {
		return contract.Probe{}, err
	}
	last, err := e.runAndGo(ctx, going, helper{
		Seed: opts.Name, Image: agent, Agent: "/pgoverlay", Network: opts.Network,
		Verb: contract.AgentProbe, Request: contract.ProbeRequest{Source: opts.Source, Logical: logical},
	}, opts.Progress)
	if err != nil {
		return contract.Probe{}, err
	}
	if last.Probe == nil {
		return contract.Probe{}, &Error{Object: seedObject(opts.Name), Cause: "the source did not say what it is"}
	}
	return *last.Probe, nil
}

func (e *Engine) baseBackup(ctx context.Context, opts SeedCreateOptions, stage string, img pgImage, probe contract.Probe,
	next *early, going *sync.WaitGroup) (contract.BaseBackupResult, error) {
	opts.Progress(Progress{Stage: contract.StageBaseBackup, Total: probe.Bytes})
	last, err := e.runAndGo(ctx, going, helper{
		Seed: opts.Name, Image: img.Ref, Agent: stagedAgent, Network: opts.Network, Stage: stage, Hide: img.MountPath,
		Verb: contract.AgentBaseBackup,
		Request: contract.BaseBackupRequest{
			Source: opts.Source, Stage: stagePath, DataDir: img.DataDir,
			Major: probe.Major, Tablespaces: probe.Tablespaces, MaxRate: opts.MaxRate,
			Databases: probe.Databases, Libc: probe.Libc,
			Extensions: probe.Extensions, PreloadLibraries: probe.PreloadLibraries, Force: opts.Force,
		},
	}, func(p Progress) {
		next.startSoon(p.Done, p.Total)
		opts.Progress(p)
	})
	if err != nil {
		return contract.BaseBackupResult{}, err
	}
	if last.BaseBackup == nil {
		return contract.BaseBackupResult{}, &Error{Object: seedObject(opts.Name), Cause: "the base backup ended without a result"}
	}
	return *last.BaseBackup, nil
}

// stagedAgent is the agent's path in a helper that has the staging volume.
const stagedAgent = stagePath + "/" + contract.RuntimeDir + "/" + contract.AgentFile

// settling is the helper that settles. It has no network at all: the copy carries its
// source's intentions.
func (e *Engine) settling(ctx context.Context, opts SeedCreateOptions, stage string, img pgImage) *early {
	return e.early(ctx, helper{
		Seed: opts.Name, Image: img.Ref, Agent: stagedAgent, Network: "none", Stage: stage, Hide: img.MountPath,
		Verb: contract.AgentSettle,
	})
}

// settleRequest is that of a seed by a base backup.
func settleRequest(img pgImage, probe contract.Probe, backup contract.BaseBackupResult) contract.SettleRequest {
	return contract.SettleRequest{
		Stage: stagePath, DataDir: img.DataDir, Settings: probe.Settings, Given: probe.Given, Skipped: backup.Skipped,
		Manifest: contract.Manifest{
			Major: probe.Major, Image: img.Ref, ImageID: img.ID, ImageDigest: img.Digest, Unfit: backup.Unfit,
			MountPath: img.MountPath, DataDir: img.DataDir,
			Superuser: probe.Superuser, User: probe.User, Database: probe.Database,
			Source: describe(probe), SourceLSN: backup.StartLSN, SourceTime: probe.Time,
		},
	}
}

func (e *Engine) settle(ctx context.Context, opts SeedCreateOptions, settling *early, request contract.SettleRequest) error {
	session, err := settling.take()
	if err != nil {
		return err
	}
	_, err = session.ask(ctx, request, opts.Progress)
	return err
}

func (e *Engine) seal(ctx context.Context, opts SeedCreateOptions, stage string) (Seed, error) {
	opts.Progress(Progress{Stage: StageSeal})
	// An interrupt now comes too late: the plugin may have sealed already, and a
	// seal is a rename. It is carried through, so that the answer is true.
	ctx = context.WithoutCancel(ctx)
	answer, err := e.ticket(ctx, contract.OpSeal, seedObject(opts.Name), map[string]string{contract.OptVolume: stage})
	if err != nil {
		return Seed{}, err
	}
	it, status, err := e.inspect(ctx, answer.SealedAs, seedObject(answer.SealedAs))
	if err != nil {
		return Seed{}, err
	}
	return seedOf(item{it, status}), nil
}
