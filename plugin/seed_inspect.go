package plugin

import (
	"context"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	flagsHelper "github.com/docker/cli/cli/flags"
	"github.com/spf13/cobra"
)

func newSeedInspectCommand(dockerCLI command.Cli) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "inspect [OPTIONS] SEED[@GEN] [SEED[@GEN]...]",
		Short: "Display detailed information on one or more seeds",
		Args:  cli.RequiresMinArgs(1),
		RunE: run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
			e := newEngine(dockerCLI)
			return runInspect(dockerCLI, args, format, func(ref string) (any, error) { return e.Seed(ctx, ref) })
		})),
		ValidArgsFunction: completeSeeds(dockerCLI),
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", flagsHelper.InspectFormatHelp)
	return cmd
}
