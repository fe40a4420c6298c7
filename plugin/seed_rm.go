package plugin

import (
	"context"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"
)

func newSeedRemoveCommand(dockerCLI command.Cli) *cobra.Command {
	return &cobra.Command{
		Use:     "rm SEED[@GEN] [SEED[@GEN]...]",
		Aliases: []string{"remove"},
		Short:   "Remove one or more seeds",
		Long: `Remove a seed: one generation for NAME@GEN, all of them for NAME. Refused while
branches stand on any of them.`,
		Args: cli.RequiresMinArgs(1),
		RunE: run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
			e := newEngine(dockerCLI)
			return each(ctx, dockerCLI.Out(), args, func(ref string) error { return e.RemoveSeed(ctx, ref) })
		})),
		ValidArgsFunction: completeSeeds(dockerCLI),
	}
}
