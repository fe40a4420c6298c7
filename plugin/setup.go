package plugin

import (
	"context"
	"fmt"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func newSetupCommand(dockerCLI command.Cli) *cobra.Command {
	var opts engine.SetupOptions
	cmd := &cobra.Command{
		Use:   "setup [OPTIONS]",
		Short: "Install the volume plugin into the engine",
		Long: `Install the volume plugin pgoverlay into the engine, or bring an installed one to
this version. Run again, it changes nothing that is well, and says what it did.

The plugin gets one capability, CAP_SYS_ADMIN, to mount overlays, one folder of the
engine's host to keep seeds and branches in, and no network. It comes with this
program: no registry is needed.
` + exitHelp,
		Args: cli.NoArgs,
		RunE: run(func(ctx context.Context, _ []string) error {
			return runSetup(ctx, dockerCLI, opts)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&opts.Data, "data", "",
		"Folder on the engine's host to keep seeds and branches in; it must always exist, or the engine will not start")
	return cmd
}

func runSetup(ctx context.Context, dockerCLI command.Cli, opts engine.SetupOptions) error {
	changed := false
	opts.Report = func(line string) {
		changed = true
		_, _ = fmt.Fprintln(dockerCLI.Err(), line)
	}
	status, err := newEngine(dockerCLI).Setup(ctx, opts)
	if err != nil {
		return err
	}
	if !changed {
		_, _ = fmt.Fprintln(dockerCLI.Err(), "nothing to do")
	}
	if status.CowMode == contract.ModeEager {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "warning: branches on this engine are eager, each file that Postgres opens is copied: %s\n", status.CowReason)
	}
	_, err = fmt.Fprintf(dockerCLI.Out(), "pgoverlay %s is ready: data on %s (a first write to a table makes a %s of it), %s free of %s\n", status.Version,
		status.FileSystem, status.CopyUpMode, units.BytesSize(float64(status.FreeBytes)), units.BytesSize(float64(status.TotalBytes)))
	return err
}
