package plugin

import (
	"context"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/command/container"
	"github.com/spf13/cobra"
)

func newPsqlCommand(dockerCLI command.Cli) *cobra.Command {
	var user, database string
	cmd := &cobra.Command{
		Use:   "psql [OPTIONS] BRANCH [-- ARGS...]",
		Short: "Open psql on a branch",
		Long: `Run psql inside the branch's container, as the user and on the database of the seed's
source, and exit with psql's own status. What follows -- goes to psql.`,
		Example: `  docker pgbranch psql feature-x
  docker pgbranch psql feature-x -- -c 'select 1'
  docker pgbranch psql feature-x < migration.sql`,
		Args: cli.RequiresMinArgs(1),
		RunE: run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
			return runPsql(ctx, dockerCLI, args[0], user, database, args[1:])
		})),
		ValidArgsFunction: completeBranches(dockerCLI, 1),
	}
	cmd.Flags().StringVarP(&user, "username", "U", "", "Role to connect as (default that of the seed's source)")
	cmd.Flags().StringVarP(&database, "dbname", "d", "", "Database to connect to (default that of the seed's source)")
	// psql's own flags may follow the branch's name without --.
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func runPsql(ctx context.Context, dockerCLI command.Cli, name, user, database string, args []string) error {
	branch, err := newEngine(dockerCLI).Running(ctx, name)
	if err != nil {
		return err
	}
	if branch.Manifest != nil {
		if user == "" {
			user = branch.Manifest.User
		}
		if database == "" {
			database = branch.Manifest.Database
		}
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	exec := container.NewExecOptions()
	exec.Interactive = true
	exec.TTY = dockerCLI.In().IsTerminal() && dockerCLI.Out().IsTerminal()
	exec.Command = append([]string{"psql", "-U", user, "-d", database}, args...)
	return container.RunExec(ctx, dockerCLI, branch.Container, exec)
}
