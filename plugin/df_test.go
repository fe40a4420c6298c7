package plugin

import (
	"bytes"
	"testing"

	"github.com/docker/cli/cli/command/formatter"
	"gotest.tools/v3/golden"

	"github.com/pgbranch/docker-pgbranch/engine"
)

func TestDiskFormats(t *testing.T) {
	items := []diskItem{
		{Kind: "seed", Name: "shop@1", OwnedBytes: 300 << 20, State: "1 branch"},
		{Kind: "branch", Name: "feature-x", OwnedBytes: 190 << 10, CopyUpMode: "clone", State: "running"},
	}
	owners := []engine.Owner{
		{Name: "public.big", Kind: engine.OwnerTable, Database: "shop", Path: "base/16384/16390", Files: 2, OwnedBytes: 3 << 20},
		{Name: "public.big_id", Kind: engine.OwnerIndex, Table: "public.big", Database: "shop", Path: "base/16384/16391", Files: 1, OwnedBytes: 8 << 10},
		{Name: "WAL", Kind: engine.OwnerWAL, Path: "pg_wal", Files: 1, OwnedBytes: 4 << 10},
	}
	for _, format := range []string{"table", "json", "{{.Name}} {{.OwnedBytes}}"} {
		var out bytes.Buffer
		ctx := func(table string) formatter.Context {
			return formatter.Context{Output: &out, Format: listFormat(listOptions{format: format}, table, "")}
		}
		if err := writeAll(ctx(diskTable), newDiskContext(), items, func(i diskItem) formatter.SubContext { return &diskContext{i: i} }); err != nil {
			t.Fatal(err)
		}
		if err := writeAll(ctx(ownerTable), newOwnerContext(), owners, func(o engine.Owner) formatter.SubContext { return &ownerContext{o: o} }); err != nil {
			t.Fatal(err)
		}
		name := format
		if name[0] == '{' {
			name = "template"
		}
		golden.Assert(t, out.String(), "df-"+name+".golden")
	}
}
