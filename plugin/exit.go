package plugin

import (
	"context"
	"errors"
	"strings"

	"github.com/docker/cli/cli"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// Exit codes: the one table.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitSetup       = 5
	exitSource      = 6
	exitInterrupted = 130
)

const exitHelp = `
Exit status:
  0    done
  1    failed
  2    the arguments or options can never work
  3    no such seed, branch, image or network
  4    the name is in use, or something holds what was to be removed
  5    no engine, or no volume plugin in it
  6    the source server cannot be copied
  130  interrupted, and cleaned up`

var exitCodes = map[engine.Kind]int{
	engine.KindInvalid:  exitUsage,
	engine.KindNotFound: exitNotFound,
	engine.KindConflict: exitConflict,
	engine.KindSetup:    exitSetup,
	engine.KindSource:   exitSource,
}

// exitError gives an error the form in which docker prints it and exits.
func exitError(ctx context.Context, err error) error {
	var status cli.StatusError
	switch {
	case err == nil || errors.As(err, &status):
		return err
	case ctx.Err() != nil:
		return cli.StatusError{StatusCode: exitInterrupted, Status: "interrupted: nothing was left behind"}
	}
	code, ok := exitCodes[engine.KindOf(err)]
	if !ok {
		code = exitFailure
	}
	return cli.StatusError{StatusCode: code, Status: message(err), Cause: err}
}

// message gives an error as printed: the log that explains it, the error, and
// on a line of its own what to do next.
func message(err error) string {
	var b strings.Builder
	for _, e := range flatten(err) {
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		var ours *engine.Error
		if !errors.As(e, &ours) {
			b.WriteString(e.Error())
			continue
		}
		for _, line := range ours.Log {
			b.WriteString("  | " + line + "\n")
		}
		b.WriteString(e.Error())
		if ours.Hint != "" {
			b.WriteString("\nhint: " + ours.Hint)
		}
	}
	return b.String()
}

// flatten takes apart what errors.Join put together.
func flatten(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}
