package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/compose"
	"github.com/pgbranch/docker-pgbranch/engine"
)

type composeInitOptions struct {
	seed     string
	services []string
	inPlace  bool
	check    bool
}

func newComposeInitCommand(dockerCLI command.Cli, source *compose.Source) *cobra.Command {
	var opts composeInitOptions
	cmd := &cobra.Command{
		Use:   "init [OPTIONS]",
		Short: "Make the databases of a Compose project branches of a seed",
		Long: `Find the Postgres services of the Compose project and write ` + compose.OverrideFile + `, which
makes their volumes branches of a seed, preloads the shim and adds a health check. The
project's own files stay as they are, unless --in-place edits them: line by line, with
a backup beside each. Run again it takes the seed and the services of the file that is
there.
` + exitHelp,
		Example: `  docker pgbranch compose init --seed shop
  docker pgbranch compose init --seed shop --service db
  docker pgbranch compose init --check`,
		Args: cli.NoArgs,
		RunE: run(func(ctx context.Context, _ []string) error {
			return runComposeInit(ctx, dockerCLI, *source, opts)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.seed, "seed", "", "Seed to branch from, NAME (the newest generation when the volume is made) or NAME@GEN")
	flags.StringArrayVar(&opts.services, "service", nil, "Service that runs Postgres (default the one that looks like it)")
	flags.BoolVar(&opts.inPlace, "in-place", false, "Edit the project's own files, and keep a backup of each")
	flags.BoolVar(&opts.check, "check", false, "Write nothing, and exit with 1 where a file is out of date")
	_ = cmd.RegisterFlagCompletionFunc("seed", completeSeeds(dockerCLI))
	return cmd
}

func runComposeInit(ctx context.Context, dockerCLI command.Cli, source compose.Source, opts composeInitOptions) error {
	path, err := source.OverridePath()
	if err != nil {
		return err
	}
	if source, err = source.Without(path); err != nil {
		return err
	}
	known, err := compose.ReadFacts(path)
	if err != nil {
		return err
	}
	facts, err := composeFacts(ctx, dockerCLI, source, opts, known)
	if err != nil {
		return err
	}
	var edits []compose.Edited
	if opts.inPlace || opts.check && known == nil {
		edits, err = source.InPlace(ctx, facts)
	} else {
		edits, err = overrideEdit(ctx, source, facts, path)
	}
	if err != nil {
		return err
	}
	return applyEdits(dockerCLI, edits, opts)
}

func overrideEdit(ctx context.Context, source compose.Source, facts compose.Facts, path string) ([]compose.Edited, error) {
	text, err := source.Override(ctx, facts)
	if err != nil {
		return nil, err
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return []compose.Edited{{Path: path, Before: old, After: text}}, nil
}

// composeFacts finds out what the files do not say. --check asks no engine where the
// override that is there can tell.
func composeFacts(ctx context.Context, dockerCLI command.Cli, source compose.Source, opts composeInitOptions, known *compose.Facts) (compose.Facts, error) {
	project, err := source.Load(ctx)
	if err != nil {
		return compose.Facts{}, err
	}
	services := opts.services
	if len(services) == 0 && known != nil {
		services = known.Services
	}
	if services, err = chooseServices(dockerCLI, project, services); err != nil {
		return compose.Facts{}, err
	}
	seed := opts.seed
	if seed == "" && known != nil {
		seed = known.Seed
	}
	for i := 0; seed == "" && i < len(services); i++ {
		seed = project.SeedAsked(services[i])
	}
	if err := required("--seed", seed, "name the seed to branch from; `docker pgbranch seed ls` lists them"); err != nil {
		return compose.Facts{}, err
	}
	if opts.check && known != nil && known.Seed == seed {
		facts := *known
		facts.Services = services
		return facts, nil
	}
	return askFacts(ctx, newEngine(dockerCLI), project, seed, services)
}

func askFacts(ctx context.Context, eng *engine.Engine, project *compose.Project, seed string, services []string) (compose.Facts, error) {
	found, err := eng.Seed(ctx, seed)
	if err != nil {
		return compose.Facts{}, err
	}
	facts := compose.FactsOf(seed, *found.Manifest, services)
	for _, name := range services {
		image := project.AllServices()[name].Image
		preload, major, err := eng.ImagePreload(ctx, image)
		if err != nil {
			return facts, err
		}
		if major != 0 && major != facts.Major {
			return facts, &engine.Error{Kind: engine.KindInvalid, Object: fmt.Sprintf("service %q", name),
				Cause: fmt.Sprintf("runs %s, which is Postgres %d, and the seed %s is of Postgres %d", image, major, found.Ref(), facts.Major),
				Hint:  fmt.Sprintf("name an image of Postgres %d, such as %s", facts.Major, found.Manifest.Image)}
		}
		if preload != "" {
			facts.Preload = preload
		}
	}
	return facts, nil
}

// chooseServices asks a person where the files leave open which service is meant.
func chooseServices(dockerCLI command.Cli, project *compose.Project, asked []string) ([]string, error) {
	services, err := project.Choose(asked)
	candidates := project.Candidates()
	if err == nil || len(asked) > 0 || len(candidates) == 0 || !dockerCLI.In().IsTerminal() {
		return services, err
	}
	for _, c := range candidates {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "  %s: %s\n", c.Service, c.Why)
	}
	_, _ = fmt.Fprint(dockerCLI.Err(), "Which of these services shall have a branch? ")
	var name string
	if _, scanErr := fmt.Fscanln(dockerCLI.In(), &name); scanErr != nil {
		return nil, err
	}
	if !slices.ContainsFunc(candidates, func(c compose.Candidate) bool { return c.Service == name }) {
		return nil, err
	}
	return []string{name}, nil
}

// applyEdits writes what has changed, or for --check says so.
func applyEdits(dockerCLI command.Cli, edits []compose.Edited, opts composeInitOptions) error {
	changed := 0
	for _, e := range edits {
		if bytes.Equal(e.Before, e.After) {
			continue
		}
		changed++
		if opts.check {
			continue
		}
		if opts.inPlace {
			if err := e.Backup(); err != nil {
				return err
			}
		}
		if err := compose.Write(e.Path, e.After); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(dockerCLI.Out(), e.Path)
	}
	switch {
	case changed > 0 && opts.check:
		return &engine.Error{Object: "compose project", Cause: "is out of date with its seed", Hint: "docker pgbranch compose init writes what is missing"}
	case changed == 0:
		_, _ = fmt.Fprintln(dockerCLI.Err(), "nothing to do")
	case opts.inPlace:
		_, _ = fmt.Fprintln(dockerCLI.Err(), "start it with: docker compose up -d")
	default:
		_, _ = fmt.Fprintln(dockerCLI.Err(), "start it with: docker pgbranch compose up -d")
	}
	return nil
}
