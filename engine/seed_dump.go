package engine

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract/dumpfile"
)

// SeedDumpOptions say what a seed is made of that is restored from a dump: from Dump, or
// where that is nil from one that is made of Source's database.
type SeedDumpOptions struct {
	// SeedCreateOptions are those of any seed. Force takes a restore in which statements
	// failed that may have cost data. MaxRate has no meaning.
	SeedCreateOptions
	Dump *DumpFile
	// Database is where statements go that come before any \connect; empty is the dump's own.
	Database string
	// Locale is the cluster's and its databases'; empty is the image's and the dump's.
	Locale string
	// Password is to be the superuser's; empty keeps the dump's, or has one made.
	Password string
}

// CreateSeedFromDump makes a cluster, restores a dump into it with no network, settles and
// seals it. It gives the superuser's password where one was made, which is kept nowhere. It
// leaves nothing behind unless it succeeds, also when ctx is cancelled.
//
// It fails with KindConflict for a name in use, KindSource for a dump that cannot be
// restored or not whole, KindInvalid for an image that is too old for it.
func (e *Engine) CreateSeedFromDump(ctx context.Context, opts SeedDumpOptions) (seed Seed, password string, err error) {
	if err := e.beginSeed(ctx, &opts.SeedCreateOptions); err != nil {
		return Seed{}, "", err
	}
	var going sync.WaitGroup
	defer going.Wait()
	r, err := e.restoreOf(ctx, opts, &going)
	if err != nil {
		return Seed{}, "", err
	}
	if r.stage, err = e.createStaging(ctx, opts.SeedCreateOptions); err != nil {
		return Seed{}, "", err
	}
	defer e.removeStaging(ctx, r.stage)
	defer going.Wait()
	if opts.Dump == nil {
		if err := e.dump(ctx, opts, &r, &going); err != nil {
			return Seed{}, "", err
		}
	}
	settling := e.settling(ctx, opts.SeedCreateOptions, r.stage, r.image)
	defer settling.drop(ctx)
	result, err := e.restore(ctx, opts, r, settling, &going)
	if err != nil {
		return Seed{}, "", err
	}
	r.manifest.Dump, r.manifest.Database = &result.Dump, result.Database
	if err := e.settle(ctx, opts.SeedCreateOptions, settling, contract.SettleRequest{
		Stage: stagePath, DataDir: r.image.DataDir, Manifest: r.manifest,
	}); err != nil {
		return Seed{}, "", err
	}
	settling.drop(ctx)
	going.Wait()
	seed, err = e.seal(ctx, opts.SeedCreateOptions, r.stage)
	return seed, result.Password, err
}

// restoration is what is known before a dump is restored.
type restoration struct {
	stage    string
	image    pgImage
	dump     contract.Dump
	manifest contract.Manifest
	major    int // of the source, where one is dumped
}

// restoreOf finds out what is to be restored, and the image for it.
func (e *Engine) restoreOf(ctx context.Context, opts SeedDumpOptions, going *sync.WaitGroup) (restoration, error) {
	var r restoration
	var head dumpfile.Head
	var err error
	if opts.Dump != nil {
		head = opts.Dump.Head
		r.manifest.Source, r.manifest.SourceTime = opts.Dump.Name, opts.Dump.Time
	} else {
		probe, err := e.probeSource(ctx, opts.SeedCreateOptions, true, going)
		if err != nil {
			return r, err
		}
		head = dumpfile.Head{Format: dumpfile.Custom, Source: probe.ServerVersion}
		r.major = probe.Major
		r.manifest.Source, r.manifest.SourceTime = describe(probe), probe.Time
	}
	r.dump = contract.Dump{Format: head.Format, Compression: head.Compression, ServerVersion: head.Source, ToolVersion: head.Tool}
	if r.image, err = e.imageFor(ctx, opts, head); err != nil {
		return r, err
	}
	r.manifest.Major, r.manifest.MountPath, r.manifest.DataDir = r.image.Major, r.image.MountPath, r.image.DataDir
	r.manifest.Image, r.manifest.ImageID, r.manifest.ImageDigest = r.image.Ref, r.image.ID, r.image.Digest
	r.manifest.Superuser, r.manifest.User = contract.DumpSuperuser, contract.DumpSuperuser
	return r, nil
}

// imageFor gives the image that a dump is restored with: the named one, if it is not too
// old, or postgres:MAJOR of the dumped server.
func (e *Engine) imageFor(ctx context.Context, opts SeedDumpOptions, head dumpfile.Head) (pgImage, error) {
	source, reader := head.SourceMajor(), head.ReaderMajor()
	ref := opts.Image
	switch {
	case source > contract.NewestMajor:
		return pgImage{}, &Error{Kind: KindInvalid, Object: seedObject(opts.Name),
			Cause: fmt.Sprintf("the source is of Postgres %s, and a seed has %d to %d", head.Source, contract.OldestMajor, contract.NewestMajor),
			Hint:  "a newer docker pgbranch may know it"}
	case ref != "":
	case source == 0:
		return pgImage{}, &Error{Kind: KindInvalid, Object: seedObject(opts.Name), Cause: "the dump does not say which Postgres it is of",
			Hint: "name an image with --image, such as postgres:17"}
	case source < contract.OldestMajor:
		return pgImage{}, &Error{Kind: KindInvalid, Object: seedObject(opts.Name),
			Cause: fmt.Sprintf("the source is of Postgres %s, and a seed has %d to %d", head.Source, contract.OldestMajor, contract.NewestMajor),
			Hint:  fmt.Sprintf("name a newer image with --image, such as postgres:%d; most dumps can be restored there", max(contract.OldestMajor, reader))}
	default:
		ref = fmt.Sprintf("postgres:%d", max(source, reader))
	}
	img, err := e.ensureImage(ctx, ref, opts.Progress)
	if err != nil {
		return img, err
	}
	if img.Major == 0 {
		// The agent asks its server, and refuses what does not fit. Its layout has been taken
		// for that of the older majors.
		return img, nil
	}
	switch {
	case img.Major < contract.OldestMajor || img.Major > contract.NewestMajor:
		return img, &Error{Kind: KindInvalid, Object: seedObject(opts.Name),
			Cause: fmt.Sprintf("the image %s has Postgres %d, and a seed has %d to %d", ref, img.Major, contract.OldestMajor, contract.NewestMajor),
			Hint:  fmt.Sprintf("use --image postgres:%d", contract.NewestMajor)}
	case img.Major < source:
		return img, tooOld(opts, fmt.Sprintf("the dump is of Postgres %d and the image %s has Postgres %d", source, ref, img.Major), source)
	case img.Major < reader:
		return img, tooOld(opts, fmt.Sprintf("the dump was written by pg_dump %s in a format that pg_restore %d, of the image %s, does not read",
			head.Tool, img.Major, ref), reader)
	}
	return img, nil
}

func tooOld(opts SeedDumpOptions, cause string, major int) error {
	return &Error{Kind: KindInvalid, Object: seedObject(opts.Name), Cause: cause, Hint: fmt.Sprintf("use --image postgres:%d", major)}
}

// dump dumps the source into the staging volume.
func (e *Engine) dump(ctx context.Context, opts SeedDumpOptions, r *restoration, going *sync.WaitGroup) error {
	opts.Progress(Progress{Stage: contract.StageDump})
	last, err := e.runAndGo(ctx, going, helper{
		Seed: opts.Name, Image: r.image.Ref, Agent: stagedAgent, Network: opts.Network, Stage: r.stage, Hide: r.image.MountPath,
		Verb: contract.AgentDump, Request: contract.DumpRequest{Source: opts.Source, Stage: stagePath, Major: r.major},
	}, opts.Progress)
	if err != nil {
		return err
	}
	if last.Dump == nil {
		return &Error{Object: seedObject(opts.Name), Cause: "pg_dump ended without a result"}
	}
	r.dump.Notes = append(r.dump.Notes, last.Dump.Notes...)
	return nil
}

// restore restores the dump, in a container with no network at all: what a dump makes may
// act on the world as well as a copy.
func (e *Engine) restore(ctx context.Context, opts SeedDumpOptions, r restoration, next *early, going *sync.WaitGroup) (*contract.RestoreResult, error) {
	request := contract.RestoreRequest{
		Stage: stagePath, DataDir: r.image.DataDir, Dump: r.dump, Staged: opts.Dump == nil,
		Database: opts.Database, Locale: opts.Locale, Password: opts.Password, Force: opts.Force,
	}
	var dump io.Reader
	if opts.Dump != nil {
		request.Bytes, dump = opts.Dump.Bytes, opts.Dump
	}
	opts.Progress(Progress{Stage: contract.StageRestore, Total: request.Bytes})
	s, err := e.begin(ctx, helper{
		Seed: opts.Name, Image: r.image.Ref, Agent: stagedAgent, Network: "none", Stage: r.stage, Hide: r.image.MountPath,
		Verb: contract.AgentRestore,
	})
	if err != nil {
		return nil, err
	}
	defer going.Go(func() { s.drop(ctx) })
	last, err := s.askWith(ctx, request, dump, func(p Progress) {
		next.startSoon(p.Done, p.Total)
		opts.Progress(p)
	})
	if err != nil {
		return nil, err
	}
	if last.Restore == nil {
		return nil, &Error{Object: seedObject(opts.Name), Cause: "the restore ended without a result"}
	}
	return last.Restore, nil
}

// askWith is ask, with a dump behind the request. It does not wait for a dump that nobody
// reads any more: standard input may never end.
func (s *session) askWith(ctx context.Context, request any, dump io.Reader, progress ProgressFunc) (contract.AgentEvent, error) {
	if dump == nil {
		return s.ask(ctx, request, progress)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.sent = func() {
		go func() {
			// Where the agent takes no more it says why.
			if readErr, _ := dumpfile.Send(s.conn.Conn, dump); readErr != nil {
				cancel(&Error{Kind: KindSource, Object: s.helper.object(), Cause: "the dump cannot be read", Err: readErr})
			}
		}()
	}
	return s.ask(ctx, request, progress)
}
