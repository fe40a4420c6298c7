package plugin

import (
	"context"
	"time"

	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"
)

// completionTimeout keeps a shell from hanging on an engine that does not answer.
const completionTimeout = time.Second

func completeSeeds(dockerCLI command.Cli) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		seeds, err := newEngine(dockerCLI).Seeds(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for i, s := range seeds {
			if i == 0 || seeds[i-1].Seed != s.Seed {
				names = append(names, s.Seed)
			}
			names = append(names, s.Ref())
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeBranches completes up to limit branch names; 0 is any number.
func completeBranches(dockerCLI command.Cli, limit int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if limit > 0 && len(args) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		branches, err := newEngine(dockerCLI).Branches(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, b := range branches {
			names = append(names, b.Branch)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
