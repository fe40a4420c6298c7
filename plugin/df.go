package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/command/formatter"
	flagsHelper "github.com/docker/cli/cli/flags"
	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/engine"
)

const (
	diskTable  = "table {{.Kind}}\t{{.Name}}\t{{.Owned}}\t{{.CopyUp}}\t{{.State}}"
	ownerTable = "table {{.Owned}}\t{{.Kind}}\t{{.Database}}\t{{.Name}}"
)

func newDiskCommand(dockerCLI command.Cli) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "df [OPTIONS] [BRANCH]",
		Short: "Show what seeds and branches own on disk, or which tables of a branch do",
		Long: `Show what every seed and branch owns on disk, largest first; with a branch, which of
its tables, indexes and other files do.

Owned is what has been allocated and is shared with nobody: about what its removal
frees. Names of tables come from the branch's own server, so that a branch which does
not run shows paths instead.
` + exitHelp,
		Example: `  docker pgbranch df
  docker pgbranch df feature-x
  docker pgbranch df --format json feature-x`,
		Args: cli.RequiresMaxArgs(1),
		RunE: run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
			if len(args) == 0 {
				return runDisk(ctx, dockerCLI, format)
			}
			return runOwners(ctx, dockerCLI, args[0], format)
		})),
		ValidArgsFunction: completeBranches(dockerCLI, 1),
	}
	cmd.Flags().StringVar(&format, "format", "", flagsHelper.FormatHelp)
	return cmd
}

// diskItem is a seed generation or a branch.
type diskItem struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	OwnedBytes int64  `json:"ownedBytes"`
	CopyUpMode string `json:"copyUpMode,omitempty"`
	// State is a branch's, and of a seed how many branches stand on it.
	State string `json:"state"`
}

func runDisk(ctx context.Context, dockerCLI command.Cli, format string) error {
	e := newEngine(dockerCLI)
	seeds, branches, err := e.All(ctx)
	if err != nil {
		return err
	}
	var items []diskItem
	for _, s := range seeds {
		items = append(items, diskItem{Kind: "seed", Name: s.Ref(), OwnedBytes: s.OwnedBytes, State: plural(len(s.Branches), "branch", "branches")})
	}
	for _, b := range branches {
		items = append(items, diskItem{Kind: "branch", Name: b.Branch, OwnedBytes: b.OwnedBytes, CopyUpMode: b.CopyUpMode, State: b.State})
	}
	slices.SortStableFunc(items, func(a, b diskItem) int { return cmp.Compare(b.OwnedBytes, a.OwnedBytes) })
	return writeAll(formatter.Context{
		Output: dockerCLI.Out(), Format: listFormat(listOptions{format: format}, diskTable, ""),
	}, newDiskContext(), items, func(i diskItem) formatter.SubContext { return &diskContext{i: i} })
}

func runOwners(ctx context.Context, dockerCLI command.Cli, name, format string) error {
	u, err := newEngine(dockerCLI).Usage(ctx, name)
	if err != nil {
		return err
	}
	err = writeAll(formatter.Context{
		Output: dockerCLI.Out(), Format: listFormat(listOptions{format: format}, ownerTable, ""),
	}, newOwnerContext(), u.Owners, func(o engine.Owner) formatter.SubContext { return &ownerContext{o: o} })
	if err == nil && u.Unnamed != "" {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "tables go by their paths: %s\n", u.Unnamed)
	}
	return err
}

// writeAll prints a list in a docker format.
func writeAll[T any](ctx formatter.Context, header formatter.SubContext, items []T, row func(T) formatter.SubContext) error {
	return ctx.Write(header, func(format func(formatter.SubContext) error) error {
		for _, item := range items {
			if err := format(row(item)); err != nil {
				return err
			}
		}
		return nil
	})
}

func plural(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return strconv.Itoa(n) + " " + many
}

// diskContext is a seed or branch as templates see it.
type diskContext struct {
	formatter.HeaderContext
	i diskItem
}

func newDiskContext() *diskContext {
	c := &diskContext{}
	c.Header = formatter.SubHeaderContext{
		"Kind": "KIND", "Name": "NAME", "Owned": "OWNED", "OwnedBytes": "BYTES", "CopyUp": "COPY-UP", "State": "STATE",
	}
	return c
}

// MarshalJSON gives the keys of the volume's Status rather than the templates'.
func (c *diskContext) MarshalJSON() ([]byte, error) { return marshalLine(c.i) }

func (c *diskContext) Kind() string       { return c.i.Kind }
func (c *diskContext) Name() string       { return c.i.Name }
func (c *diskContext) Owned() string      { return units.BytesSize(float64(c.i.OwnedBytes)) }
func (c *diskContext) OwnedBytes() string { return strconv.FormatInt(c.i.OwnedBytes, 10) }
func (c *diskContext) CopyUp() string     { return c.i.CopyUpMode }
func (c *diskContext) State() string      { return c.i.State }

// ownerContext is what owns bytes of a branch, as templates see it.
type ownerContext struct {
	formatter.HeaderContext
	o engine.Owner
}

func newOwnerContext() *ownerContext {
	c := &ownerContext{}
	c.Header = formatter.SubHeaderContext{
		"Owned": "OWNED", "OwnedBytes": "BYTES", "Kind": "KIND", "Database": "DATABASE", "Name": "NAME",
		"Table": "TABLE", "Path": "PATH", "Files": "FILES",
	}
	return c
}

// MarshalJSON gives the keys of engine.Owner rather than the templates'.
func (c *ownerContext) MarshalJSON() ([]byte, error) { return marshalLine(c.o) }

func (c *ownerContext) Owned() string      { return units.BytesSize(float64(c.o.OwnedBytes)) }
func (c *ownerContext) OwnedBytes() string { return strconv.FormatInt(c.o.OwnedBytes, 10) }
func (c *ownerContext) Kind() string       { return c.o.Kind }
func (c *ownerContext) Database() string   { return c.o.Database }
func (c *ownerContext) Table() string      { return c.o.Table }
func (c *ownerContext) Path() string       { return c.o.Path }
func (c *ownerContext) Files() string      { return strconv.Itoa(c.o.Files) }

// Name is the relation's; of an index and of TOAST with the table that it belongs to.
func (c *ownerContext) Name() string {
	if c.o.Table == "" {
		return c.o.Name
	}
	return c.o.Name + " (of " + c.o.Table + ")"
}
