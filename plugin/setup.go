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
	var yes bool
	cmd := &cobra.Command{
		Use:   "setup [OPTIONS]",
		Short: "Install the volume plugin into the engine, or bring it to this version",
		Long: `Install the volume plugin pgoverlay into the engine, or bring an installed one to
this version. Run again, it changes nothing that is well, and says what it did.

The plugin gets one capability, CAP_SYS_ADMIN, to mount overlays, one folder of the
engine's host to keep seeds and branches in, and no network. It comes with this
program: no registry is needed.

Another version is replaced in place: what runs on the plugin is listed and, once
you agree, stopped and started again; data and settings stay. If the new plugin would
not start, as with a store of a newer format, the old one stays.
` + exitHelp,
		Example: `  docker pgbranch setup
  docker pgbranch setup --data /srv/pgbranch
  docker pgbranch setup --yes`,
		Args: cli.NoArgs,
		RunE: run(func(ctx context.Context, _ []string) error {
			return runSetup(ctx, dockerCLI, opts, yes)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&opts.Data, "data", "",
		"Folder on the engine's host to keep seeds and branches in; it must always exist, or the engine will not start")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Stop and restart what runs on the plugin without asking")
	return cmd
}

func runSetup(ctx context.Context, dockerCLI command.Cli, opts engine.SetupOptions, yes bool) error {
	changed := false
	opts.Report = func(line string) {
		changed = true
		_, _ = fmt.Fprintln(dockerCLI.Err(), line)
	}
	opts.Consent = func(running []engine.Running) error {
		_, _ = fmt.Fprintln(dockerCLI.Err(), "these run on the plugin, and are stopped and started again:")
		for _, r := range running {
			_, _ = fmt.Fprintln(dockerCLI.Err(), "  "+r.String())
		}
		return consent(ctx, dockerCLI, yes, "docker pgbranch setup --yes")
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

// consent asks whether what was listed may be stopped. Where there is nobody to ask,
// that it runs is what stands in the way, and agreed is the command that agrees.
func consent(ctx context.Context, dockerCLI command.Cli, yes bool, agreed string) error {
	if yes {
		return nil
	}
	if !dockerCLI.In().IsTerminal() {
		return &engine.Error{Kind: engine.KindConflict, Object: "volume plugin pgoverlay",
			Cause: "is in use, and there is no terminal to ask on whether that may be stopped", Hint: "run: " + agreed}
	}
	ok, err := command.PromptForConfirmation(ctx, dockerCLI.In(), dockerCLI.Err(), "Continue?")
	if err == nil && !ok {
		err = cli.StatusError{StatusCode: exitFailure, Status: "nothing was done"}
	}
	return err
}
