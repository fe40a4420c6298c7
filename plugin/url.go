package plugin

import (
	"context"
	"fmt"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"
)

func newURLCommand(dockerCLI command.Cli) *cobra.Command {
	return &cobra.Command{
		Use:   "url BRANCH",
		Short: "Print a branch's connection URL",
		Long: `Print the connection URL of a branch's published port on the engine's host. It holds a
password only for a branch made with --rotate-password, read from the running branch.
Otherwise roles keep those that they have in the source, and none is stored here.`,
		Args: cli.ExactArgs(1),
		RunE: run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
			url, err := newEngine(dockerCLI).URL(ctx, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(dockerCLI.Out(), url)
			return err
		})),
		ValidArgsFunction: completeBranches(dockerCLI, 1),
	}
}
