package plugin

import (
	"context"
	"strconv"
	"time"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/command/formatter"
	flagsHelper "github.com/docker/cli/cli/flags"
	"github.com/docker/cli/opts"
	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/engine"
)

const seedTable = "table {{.Seed}}\t{{.Major}}\t{{.Size}}\t{{.Branches}}\t{{.Source}}\t{{.Created}}"

// seedFilters are the keys of `seed ls --filter`.
var seedFilters = map[string]bool{"name": true, "major": true}

func newSeedListCommand(dockerCLI command.Cli) *cobra.Command {
	options := listOptions{filter: opts.NewFilterOpt()}
	cmd := &cobra.Command{
		Use:     "ls [OPTIONS]",
		Aliases: []string{"list"},
		Short:   "List seeds",
		Args:    cli.NoArgs,
		RunE: run(reaping(dockerCLI, func(ctx context.Context, _ []string) error {
			return runSeedList(ctx, dockerCLI, options)
		})),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.BoolVarP(&options.quiet, "quiet", "q", false, "Only display seed names")
	flags.StringVar(&options.format, "format", "", flagsHelper.FormatHelp)
	flags.VarP(&options.filter, "filter", "f", `Filter by name or major (e.g. "major=17")`)
	return cmd
}

func runSeedList(ctx context.Context, dockerCLI command.Cli, options listOptions) error {
	filter := options.filter.Value()
	if err := checkFilter(filter, seedFilters, "name, major"); err != nil {
		return err
	}
	seeds, err := newEngine(dockerCLI).Seeds(ctx)
	if err != nil {
		return err
	}
	kept := seeds[:0]
	for _, s := range seeds {
		if filter.Match("name", s.Seed) && filter.ExactMatch("major", major(s)) {
			kept = append(kept, s)
		}
	}
	return writeSeeds(formatter.Context{
		Output: dockerCLI.Out(),
		Format: listFormat(options, seedTable, "{{.Seed}}"),
	}, kept)
}

func writeSeeds(ctx formatter.Context, seeds []engine.Seed) error {
	return ctx.Write(newSeedContext(), func(format func(formatter.SubContext) error) error {
		for _, s := range seeds {
			if err := format(&seedContext{s: s}); err != nil {
				return err
			}
		}
		return nil
	})
}

func major(s engine.Seed) string {
	if s.Manifest == nil {
		return ""
	}
	return strconv.Itoa(s.Manifest.Major)
}

// seedContext is a seed as templates see it.
type seedContext struct {
	formatter.HeaderContext
	s engine.Seed
}

func newSeedContext() *seedContext {
	c := &seedContext{}
	c.Header = formatter.SubHeaderContext{
		"Seed": "SEED", "Major": "POSTGRES", "Size": "SIZE", "Branches": "BRANCHES",
		"Source": "SOURCE", "Created": "CREATED", "CreatedAt": "CREATED AT", "Image": "IMAGE",
	}
	return c
}

// MarshalJSON gives the keys of the volume's Status rather than the templates'.
func (c *seedContext) MarshalJSON() ([]byte, error) { return marshalLine(c.s) }

func (c *seedContext) Seed() string      { return c.s.Ref() }
func (c *seedContext) Major() string     { return major(c.s) }
func (c *seedContext) Size() string      { return units.BytesSize(float64(c.s.OwnedBytes)) }
func (c *seedContext) Branches() string  { return strconv.Itoa(len(c.s.Branches)) }
func (c *seedContext) Created() string   { return ago(c.s.CreatedAt) }
func (c *seedContext) CreatedAt() string { return c.s.CreatedAt.Format(time.RFC3339) }

func (c *seedContext) Source() string {
	if c.s.Manifest == nil {
		return ""
	}
	return c.s.Manifest.Source
}

func (c *seedContext) Image() string {
	if c.s.Manifest == nil {
		return ""
	}
	return c.s.Manifest.Image
}
