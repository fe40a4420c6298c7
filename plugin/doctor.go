package plugin

import (
	"context"
	"fmt"
	"slices"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/command/formatter"
	flagsHelper "github.com/docker/cli/cli/flags"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/compose"
	"github.com/pgbranch/docker-pgbranch/engine"
)

const doctorTable = "table {{.Check}}\t{{.State}}\t{{.Detail}}"

func newDoctorCommand(dockerCLI command.Cli) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "doctor [OPTIONS]",
		Short: "Look for what is wrong, and say what mends it",
		Long: `Look at the engine, the volume plugin, its data, and every branch. Changes nothing.
Works also where the plugin does not run or the engine does not answer.

Exits with 1 if anything is to be mended, and prints the command for each.
`,
		Args: cli.NoArgs,
		RunE: run(func(ctx context.Context, _ []string) error {
			return runDoctor(dockerCLI, newEngine(dockerCLI).Doctor(ctx, compose.Drift), format)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&format, "format", "", flagsHelper.FormatHelp)
	return cmd
}

func runDoctor(dockerCLI command.Cli, checks []engine.Check, format string) error {
	table := format == "" || format == formatter.TableFormatKey
	if table {
		format = doctorTable
	}
	if err := writeChecks(formatter.Context{Output: dockerCLI.Out(), Format: formatter.Format(format)}, checks); err != nil {
		return err
	}
	problems := slices.DeleteFunc(slices.Clone(checks), func(c engine.Check) bool { return c.State != engine.CheckProblem })
	if len(problems) == 0 {
		return nil
	}
	if table {
		_, _ = fmt.Fprintln(dockerCLI.Out(), "\nWhat mends it:")
		for _, c := range problems {
			_, _ = fmt.Fprintf(dockerCLI.Out(), "  # %s: %s\n  %s\n", c.Check, c.Detail, c.Fix)
		}
	}
	return cli.StatusError{StatusCode: exitFailure, Status: fmt.Sprintf("%d to be mended", len(problems))}
}

func writeChecks(ctx formatter.Context, checks []engine.Check) error {
	return ctx.Write(newCheckContext(), func(format func(formatter.SubContext) error) error {
		for _, c := range checks {
			if err := format(&checkContext{c: c}); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkContext is a check as templates see it.
type checkContext struct {
	formatter.HeaderContext
	c engine.Check
}

func newCheckContext() *checkContext {
	c := &checkContext{}
	c.Header = formatter.SubHeaderContext{"Check": "CHECK", "State": "STATE", "Detail": "DETAIL", "Fix": "FIX"}
	return c
}

// MarshalJSON gives the keys of the check itself.
func (c *checkContext) MarshalJSON() ([]byte, error) { return marshalLine(c.c) }

func (c *checkContext) Check() string  { return c.c.Check }
func (c *checkContext) State() string  { return c.c.State }
func (c *checkContext) Detail() string { return c.c.Detail }
func (c *checkContext) Fix() string    { return c.c.Fix }
