package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/engine"
)

func newResetCommand(dockerCLI command.Cli) *cobra.Command {
	var force bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "reset [OPTIONS] BRANCH [BRANCH...]",
		Short: "Put one or more branches back to their seed",
		Long: `Drop everything that a branch has changed. Its name, container and port stay, and a
branch that ran runs again.`,
		Args: cli.RequiresMinArgs(1),
		RunE: run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
			if err := confirm(ctx, dockerCLI, force, fmt.Sprintf("Everything that was changed in %s will be lost.", strings.Join(args, ", "))); err != nil {
				return err
			}
			e := newEngine(dockerCLI)
			return each(ctx, dockerCLI.Out(), args, func(name string) error {
				_, err := e.Reset(ctx, name, timeout)
				return err
			})
		})),
		ValidArgsFunction: completeBranches(dockerCLI, 0),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "Do not ask for confirmation")
	cmd.Flags().DurationVar(&timeout, "timeout", readyTimeout, "How long to wait for the first query")
	return cmd
}

// confirm asks on a terminal, and refuses where there is nobody to ask.
func confirm(ctx context.Context, dockerCLI command.Cli, force bool, warning string) error {
	if force {
		return nil
	}
	if !dockerCLI.In().IsTerminal() {
		return &engine.Error{Kind: engine.KindInvalid, Cause: "this needs a confirmation, and there is no terminal to ask on",
			Hint: "say --force"}
	}
	yes, err := command.PromptForConfirmation(ctx, dockerCLI.In(), dockerCLI.Err(), "WARNING! "+warning+"\nAre you sure you want to continue?")
	if err != nil {
		return err
	}
	if !yes {
		return cli.StatusError{StatusCode: exitFailure, Status: "nothing was done"}
	}
	return nil
}
