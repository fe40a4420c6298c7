package plugin

import (
	"context"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"
)

func newRemoveCommand(dockerCLI command.Cli) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm [OPTIONS] BRANCH [BRANCH...]",
		Aliases: []string{"remove"},
		Short:   "Remove one or more branches with their containers",
		Args:    cli.RequiresMinArgs(1),
		RunE: run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
			e := newEngine(dockerCLI)
			return each(ctx, dockerCLI.Out(), args, func(name string) error { return e.Remove(ctx, name, force) })
		})),
		ValidArgsFunction: completeBranches(dockerCLI, 0),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "Remove running branches too, and do not mind one that does not exist")
	return cmd
}
