package plugin

import (
	"context"
	"fmt"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/engine"
)

func newUninstallCommand(dockerCLI command.Cli) *cobra.Command {
	var opts engine.UninstallOptions
	var force bool
	cmd := &cobra.Command{
		Use:   "uninstall [OPTIONS]",
		Short: "Remove the volume plugin from the engine",
		Long: `Remove the volume plugin and the helper images from the engine. While branches or
seeds exist it refuses and lists them, unless you say what becomes of them:

  --purge      removes everything: branches with their containers, seeds, all data
  --keep-data  stops what runs and leaves seeds and branches on the engine's host;
               a later setup finds them. Labels that were given to the volumes are lost.

Neither leaves the engine a record of a volume: each would block its name, and cost
the engine 15 seconds at every start.
` + exitHelp,
		Args: cli.NoArgs,
		RunE: run(func(ctx context.Context, _ []string) error {
			return runUninstall(ctx, dockerCLI, opts, force)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.BoolVar(&opts.Purge, "purge", false, "Remove all branches, seeds and data as well")
	flags.BoolVar(&opts.KeepData, "keep-data", false, "Leave seeds and branches on the engine's host")
	flags.BoolVarP(&force, "force", "f", false, "Do not ask for confirmation")
	return cmd
}

func runUninstall(ctx context.Context, dockerCLI command.Cli, opts engine.UninstallOptions, force bool) error {
	if opts.Purge && opts.KeepData {
		return &engine.Error{Kind: engine.KindInvalid, Object: "--purge", Cause: "contradicts --keep-data", Hint: "say one of them"}
	}
	opts.Report = func(line string) { _, _ = fmt.Fprintln(dockerCLI.Err(), line) }
	opts.Consent = func(held engine.Contents) error {
		warning := "The volume plugin will be removed."
		if list := held.String(); list != "" && opts.Purge {
			warning = "This will be removed for good: " + list + "."
		} else if list != "" {
			warning = fmt.Sprintf("The volume plugin will be removed; this stays in %s: %s.", held.Data, list)
		}
		for _, r := range held.Running {
			warning += "\n  running, and will be stopped: " + r.String()
		}
		return confirm(ctx, dockerCLI, force, warning)
	}
	return newEngine(dockerCLI).Uninstall(ctx, opts)
}
