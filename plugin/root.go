// Package plugin is the `docker pgbranch` command tree: flags in, text out. What
// the verbs do is in package engine.
package plugin

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/docker/cli/cli"
	cliplugin "github.com/docker/cli/cli-plugins/plugin"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// Version is the CLI's and the volume plugin's, set by the linker.
var Version = "dev"

// NewRootCommand makes the `pgbranch` command with all its verbs.
func NewRootCommand(dockerCLI command.Cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pgbranch",
		Short: "Copy-on-write branches of Postgres",
		Long: `Copy-on-write branches of Postgres, in stock containers.

A seed is a settled, read-only copy of a database you have. A branch is a running,
writable Postgres that shares the seed's files and stores only what it changes.
` + exitHelp,
		TraverseChildren: true,
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if err := cliplugin.PersistentPreRunE(cmd, args); err != nil {
				return err
			}
			// Docker closes a socket to tell a plugin of an interrupt; on a terminal the
			// signal itself reaches the whole process group as well, and would end this
			// process before it has cleaned up.
			ctx, _ := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			cmd.SetContext(ctx)
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return cli.StatusError{StatusCode: exitUsage, Status: fmt.Sprintf(
				"docker pgbranch: %q is no command of it\n\nRun 'docker pgbranch --help' for those there are", args[0])}
		},
		Args: cobra.ArbitraryArgs,
	}
	cmd.SetFlagErrorFunc(flagError)
	cmd.AddCommand(
		newSetupCommand(dockerCLI),
		newSeedCommand(dockerCLI),
		newCreateCommand(dockerCLI),
		newListCommand(dockerCLI),
		newInspectCommand(dockerCLI),
		newDiskCommand(dockerCLI),
		newMetricsCommand(dockerCLI),
		newPsqlCommand(dockerCLI),
		newURLCommand(dockerCLI),
		newStopCommand(dockerCLI),
		newStartCommand(dockerCLI),
		newResetCommand(dockerCLI),
		newRemoveCommand(dockerCLI),
		newComposeCommand(dockerCLI),
		newDoctorCommand(dockerCLI),
		newPruneCommand(dockerCLI),
		newUninstallCommand(dockerCLI),
		newVersionCommand(dockerCLI),
	)
	usageErrors(cmd)
	return cmd
}

// usageErrors gives a wrong number of arguments the exit code of other input that
// can never work; docker's own checks of it exit with 1.
func usageErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return cli.StatusError{StatusCode: exitUsage, Status: err.Error()}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		usageErrors(sub)
	}
}

// required refuses an option that was left out.
func required(option, value, hint string) error {
	if value != "" {
		return nil
	}
	return &engine.Error{Kind: engine.KindInvalid, Object: option, Cause: "is missing", Hint: hint}
}

// newEngine makes the engine of the current Docker context.
func newEngine(dockerCLI command.Cli) *engine.Engine {
	e := engine.New(dockerCLI.Client(), Version, func(ref string) (string, error) {
		return command.RetrieveAuthTokenFromImage(dockerCLI.ConfigFile(), ref)
	})
	if dir, err := os.UserCacheDir(); err == nil {
		e.KeepFacts(filepath.Join(dir, "docker-pgbranch", "images"))
	}
	return e
}

// run wraps a verb so that its errors carry an exit code and print their hint.
func run(verb func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return exitError(cmd.Context(), verb(cmd.Context(), args))
	}
}

func flagError(cmd *cobra.Command, err error) error {
	return cli.StatusError{StatusCode: exitUsage, Status: fmt.Sprintf(
		"%s\n\nUsage:  %s\n\nRun '%s --help' for more information", err, cmd.UseLine(), cmd.CommandPath())}
}

func newVersionCommand(dockerCLI command.Cli) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of the CLI plugin",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(dockerCLI.Out(), Version)
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}
