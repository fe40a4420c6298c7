package plugin

import (
	"context"
	"fmt"
	"strings"

	"github.com/docker/cli/cli/command"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// verb is what a command does with its arguments.
type verb func(ctx context.Context, args []string) error

// reaping has a verb first remove the branches that have expired and do not run. Those
// that the verb names stay: it is about them.
func reaping(dockerCLI command.Cli, do verb) verb {
	return func(ctx context.Context, args []string) error {
		reported(dockerCLI, newEngine(dockerCLI).Reap(ctx, args))
		return do(ctx, args)
	}
}

// reapBeside removes what has expired while something else goes on. The function that
// it gives waits for the end.
func reapBeside(ctx context.Context, dockerCLI command.Cli) func() engine.Pruned {
	done := make(chan engine.Pruned, 1)
	go func() { done <- newEngine(dockerCLI).Reap(ctx, nil) }()
	return func() engine.Pruned { return reported(dockerCLI, <-done) }
}

func reported(dockerCLI command.Cli, pruned engine.Pruned) engine.Pruned {
	if n := len(pruned.Branches); n > 0 {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "removed %d expired branches: %s\n", n, strings.Join(pruned.Branches, ", "))
	}
	return pruned
}
