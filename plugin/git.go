package plugin

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// currentGitBranch asks git for the branch that the current folder is on, also in a
// linked worktree and before its first commit.
func currentGitBranch(ctx context.Context) (string, error) {
	refuse := func(cause, hint string) error {
		return &engine.Error{Kind: engine.KindInvalid, Object: "--git", Cause: cause, Hint: hint}
	}
	var errs bytes.Buffer
	// The whole reference: --short would add "heads/" where a tag has the same name.
	cmd := exec.CommandContext(ctx, "git", "symbolic-ref", "--quiet", "HEAD")
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", refuse("git is not in PATH", "install it, or name the branch: docker pgbranch create NAME")
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return "", refuse("HEAD is detached: no git branch is checked out",
			"run `git switch BRANCH`, or, as in CI, name the branch: docker pgbranch create NAME")
	case err != nil:
		cause := strings.TrimPrefix(strings.TrimSpace(errs.String()), "fatal: ")
		if cause == "" {
			cause = err.Error()
		}
		return "", refuse(cause, "run this inside a git repository, or name the branch: docker pgbranch create NAME")
	}
	branch, ok := strings.CutPrefix(strings.TrimSuffix(string(out), "\n"), "refs/heads/")
	if !ok {
		return "", refuse("HEAD is on no branch, but on "+branch, "run `git switch BRANCH`")
	}
	return branch, nil
}
