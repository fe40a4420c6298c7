package plugin

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/command/formatter"
	flagsHelper "github.com/docker/cli/cli/flags"
	"github.com/docker/cli/opts"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/compose"
	"github.com/pgbranch/docker-pgbranch/engine"
)

type listOptions struct {
	quiet  bool
	format string
	filter opts.FilterOpt
}

const branchTable = "table {{.Branch}}\t{{.Seed}}\t{{.State}}\t{{.Cow}}\t{{.Owned}}\t{{.Port}}\t{{.Created}}"

// branchFilters are the keys of `ls --filter`.
var branchFilters = map[string]bool{"name": true, "seed": true, "state": true, "cow": true}

func newListCommand(dockerCLI command.Cli) *cobra.Command {
	options := listOptions{filter: opts.NewFilterOpt()}
	cmd := &cobra.Command{
		Use:     "ls [OPTIONS]",
		Aliases: []string{"list"},
		Short:   "List branches",
		Args:    cli.NoArgs,
		RunE: run(reaping(dockerCLI, func(ctx context.Context, _ []string) error {
			return runList(ctx, dockerCLI, options)
		})),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.BoolVarP(&options.quiet, "quiet", "q", false, "Only display branch names")
	flags.StringVar(&options.format, "format", "", flagsHelper.FormatHelp)
	flags.VarP(&options.filter, "filter", "f", `Filter by name, seed, state or cow (e.g. "seed=shop")`)
	return cmd
}

func runList(ctx context.Context, dockerCLI command.Cli, options listOptions) error {
	filter := options.filter.Value()
	if err := checkFilter(filter, branchFilters, "name, seed, state, cow"); err != nil {
		return err
	}
	branches, err := newEngine(dockerCLI).Branches(ctx)
	if err != nil {
		return err
	}
	kept := branches[:0]
	for _, b := range branches {
		if matchesBranch(filter, b) {
			kept = append(kept, b)
		}
	}
	err = writeBranches(formatter.Context{
		Output: dockerCLI.Out(),
		Format: listFormat(options, branchTable, "{{.Branch}}"),
	}, kept)
	if err == nil && !options.quiet {
		printNotes(ctx, dockerCLI.Err(), kept)
	}
	return err
}

// printNotes prints what a user is likely to be wrong about, beside the list itself.
func printNotes(ctx context.Context, out io.Writer, branches []engine.Branch) {
	for _, b := range branches {
		for _, note := range slices.Concat(b.Notes, compose.Drift(ctx, b)) {
			_, _ = fmt.Fprintf(out, "note: branch %q: %s\n      %s\n", b.Branch, note.Detail, note.Fix)
		}
	}
}

// listFormat gives the template of a list: --quiet, the default table, or what
// --format says.
func listFormat(options listOptions, table, quiet string) formatter.Format {
	switch options.format {
	case "", formatter.TableFormatKey:
		if options.quiet {
			return formatter.Format(quiet)
		}
		return formatter.Format(table)
	}
	return formatter.Format(options.format)
}

func checkFilter(filter filters.Args, known map[string]bool, names string) error {
	if err := filter.Validate(known); err != nil {
		return &engine.Error{Kind: engine.KindInvalid, Object: "--filter", Cause: err.Error(), Hint: "filters: " + names}
	}
	return nil
}

func matchesBranch(filter filters.Args, b engine.Branch) bool {
	return filter.Match("name", b.Branch) &&
		(filter.ExactMatch("seed", b.Seed) || filter.ExactMatch("seed", b.SeedRef())) &&
		filter.ExactMatch("state", b.State) &&
		filter.ExactMatch("cow", b.CowMode)
}

func writeBranches(ctx formatter.Context, branches []engine.Branch) error {
	return ctx.Write(newBranchContext(), func(format func(formatter.SubContext) error) error {
		for _, b := range branches {
			if err := format(&branchContext{b: b}); err != nil {
				return err
			}
		}
		return nil
	})
}

// branchContext is a branch as templates see it.
type branchContext struct {
	formatter.HeaderContext
	b engine.Branch
}

func newBranchContext() *branchContext {
	c := &branchContext{}
	c.Header = formatter.SubHeaderContext{
		"Branch": "BRANCH", "Seed": "SEED", "State": "STATE", "Cow": "COW", "CowReason": "COW REASON", "CowVia": "COW VIA", "CopyUp": "COPY-UP",
		"Owned": "OWNED", "Port": "PORT", "Created": "CREATED", "CreatedAt": "CREATED AT",
		"Container": "CONTAINER", "Image": "IMAGE", "Expires": "EXPIRES", "Git": "GIT BRANCH",
	}
	return c
}

// MarshalJSON gives the keys of the volume's Status rather than the templates'.
func (c *branchContext) MarshalJSON() ([]byte, error) { return marshalLine(c.b) }

func (c *branchContext) Branch() string    { return c.b.Branch }
func (c *branchContext) Seed() string      { return c.b.SeedRef() }
func (c *branchContext) State() string     { return c.b.State }
func (c *branchContext) Cow() string       { return c.b.CowMode }
func (c *branchContext) CowReason() string { return c.b.CowReason }
func (c *branchContext) CopyUp() string    { return c.b.CopyUpMode }
func (c *branchContext) CowVia() string    { return c.b.CowVia }
func (c *branchContext) Owned() string     { return units.BytesSize(float64(c.b.OwnedBytes)) }
func (c *branchContext) Git() string       { return c.b.Git }
func (c *branchContext) Container() string { return c.b.Container }
func (c *branchContext) Image() string     { return c.b.Image }
func (c *branchContext) Created() string   { return ago(c.b.CreatedAt) }
func (c *branchContext) CreatedAt() string { return c.b.CreatedAt.Format(time.RFC3339) }

func (c *branchContext) Port() string {
	if c.b.Port == 0 {
		return ""
	}
	return strconv.Itoa(c.b.Port)
}

func (c *branchContext) Expires() string {
	if c.b.ExpiresAt == nil {
		return "never"
	}
	return c.b.ExpiresAt.Format(time.RFC3339)
}

func ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s ago", units.HumanDuration(time.Since(t)))
}
