package plugin

import (
	"context"
	"time"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"
)

func newStartCommand(dockerCLI command.Cli) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "start [OPTIONS] BRANCH [BRANCH...]",
		Short: "Start one or more stopped branches",
		Args:  cli.RequiresMinArgs(1),
		RunE: run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
			e := newEngine(dockerCLI)
			return each(ctx, dockerCLI.Out(), args, func(name string) error {
				_, err := e.Start(ctx, name, timeout)
				return err
			})
		})),
		ValidArgsFunction: completeBranches(dockerCLI, 0),
	}
	cmd.Flags().DurationVar(&timeout, "timeout", readyTimeout, "How long to wait for the first query")
	return cmd
}
