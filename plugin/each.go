package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// each does a verb for every name, prints the names for which it worked, and
// goes on after a failure, as docker's multi-argument verbs do.
func each(ctx context.Context, out io.Writer, names []string, verb func(name string) error) error {
	var errs []error
	for _, name := range names {
		if ctx.Err() != nil {
			errs = append(errs, ctx.Err())
			break
		}
		if err := verb(name); err != nil {
			errs = append(errs, err)
			continue
		}
		_, _ = fmt.Fprintln(out, name)
	}
	return errors.Join(errs...)
}
