package plugin

import (
	"context"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/command/inspect"
	flagsHelper "github.com/docker/cli/cli/flags"
	"github.com/spf13/cobra"
)

func newInspectCommand(dockerCLI command.Cli) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "inspect [OPTIONS] BRANCH [BRANCH...]",
		Short: "Display detailed information on one or more branches",
		Args:  cli.RequiresMinArgs(1),
		RunE: run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
			e := newEngine(dockerCLI)
			return runInspect(dockerCLI, args, format, func(name string) (any, error) { return e.Branch(ctx, name) })
		})),
		ValidArgsFunction: completeBranches(dockerCLI, 0),
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", flagsHelper.InspectFormatHelp)
	return cmd
}

// runInspect prints objects as docker's inspect commands do. The error of the
// first that was not found decides the exit code.
func runInspect(dockerCLI command.Cli, names []string, format string, get func(name string) (any, error)) error {
	var first error
	err := inspect.Inspect(dockerCLI.Out(), names, format, func(name string) (any, []byte, error) {
		object, err := get(name)
		if err != nil {
			if first == nil {
				first = err
			}
			return nil, nil, err
		}
		// Templates name the keys that the JSON has, as elsewhere in docker.
		raw, err := marshalLine(object)
		return object, raw, err
	})
	if first != nil {
		return first
	}
	return err
}
