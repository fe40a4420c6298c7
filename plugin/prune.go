package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/opts"
	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/engine"
)

func newPruneCommand(dockerCLI command.Cli) *cobra.Command {
	var options engine.PruneOptions
	var force bool
	filter := opts.NewFilterOpt()
	cmd := &cobra.Command{
		Use:   "prune [OPTIONS]",
		Short: "Remove branches that have expired",
		Long: `Remove the branches whose time (--ttl) is over and that nothing uses, with their
containers. One that runs stays unless you say --running; one that a container of
somebody else's uses, or that another branch stands on, stays always.

The clock is the engine's host's. Setting it back expires nothing, and neither does
setting it ahead, until the time is really over or the host has booted.

Every other verb does the same, without --running, for some seconds at most.
` + exitHelp,
		Example: `  docker pgbranch prune --dry-run
  docker pgbranch prune -f --filter seed=shop`,
		Args: cli.NoArgs,
		RunE: run(func(ctx context.Context, _ []string) error {
			values := filter.Value()
			if err := checkFilter(values, branchFilters, "name, seed, state, cow"); err != nil {
				return err
			}
			options.Match = func(b engine.Branch) bool { return matchesBranch(values, b) }
			if !options.DryRun {
				if err := confirm(ctx, dockerCLI, force, "This will remove all branches that have expired and are not used."); err != nil {
					return err
				}
			}
			return runPrune(ctx, dockerCLI, options)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.BoolVarP(&force, "force", "f", false, "Do not ask for confirmation")
	flags.BoolVar(&options.Running, "running", false, "Remove expired branches that run, too")
	flags.BoolVar(&options.DryRun, "dry-run", false, "Only show what would be removed")
	flags.Var(&filter, "filter", `Only those that match name, seed, state or cow (e.g. "seed=shop")`)
	return cmd
}

func runPrune(ctx context.Context, dockerCLI command.Cli, options engine.PruneOptions) error {
	pruned, err := newEngine(dockerCLI).Prune(ctx, options)
	heading, total := "Deleted Branches:", "Total reclaimed space:"
	if options.DryRun {
		heading, total = "Would delete Branches:", "Would reclaim:"
	}
	if len(pruned.Branches) > 0 {
		_, _ = fmt.Fprintln(dockerCLI.Out(), heading)
		for _, name := range pruned.Branches {
			_, _ = fmt.Fprintln(dockerCLI.Out(), name)
		}
		_, _ = fmt.Fprintln(dockerCLI.Out())
	}
	for _, name := range slices.Sorted(maps.Keys(pruned.Kept)) {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "kept %s, which has expired: %s\n", name, pruned.Kept[name])
	}
	_, _ = fmt.Fprintln(dockerCLI.Out(), total, units.HumanSize(float64(pruned.Bytes)))
	return err
}
