package plugin

import (
	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"
)

func newSeedCommand(dockerCLI command.Cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "seed",
		Short: "Manage seeds",
		Args:  cli.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newSeedCreateCommand(dockerCLI),
		newSeedListCommand(dockerCLI),
		newSeedInspectCommand(dockerCLI),
		newSeedRemoveCommand(dockerCLI),
	)
	return cmd
}
