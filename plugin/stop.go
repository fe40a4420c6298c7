package plugin

import (
	"context"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"
)

func newStopCommand(dockerCLI command.Cli) *cobra.Command {
	var seconds int
	cmd := &cobra.Command{
		Use:               "stop [OPTIONS] BRANCH [BRANCH...]",
		Short:             "Stop one or more branches",
		Args:              cli.RequiresMinArgs(1),
		ValidArgsFunction: completeBranches(dockerCLI, 0),
	}
	cmd.Flags().IntVarP(&seconds, "timeout", "t", 0, "Seconds to wait before the server is killed (default the container's)")
	cmd.RunE = run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
		var timeout *int
		if cmd.Flags().Changed("timeout") {
			timeout = &seconds
		}
		e := newEngine(dockerCLI)
		return each(ctx, dockerCLI.Out(), args, func(name string) error { return e.Stop(ctx, name, timeout) })
	}))
	return cmd
}
