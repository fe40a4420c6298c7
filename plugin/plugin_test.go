package plugin

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/command/formatter"
	"github.com/docker/cli/cli/streams"
	"github.com/docker/docker/api/types/filters"
	"github.com/spf13/cobra"
	"gotest.tools/v3/golden"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

var sampleBranches = []engine.Branch{
	{Branch: "feature-x", Seed: "shop", Generation: 2, State: engine.StateRunning, CowMode: contract.ModeLazyRW,
		OwnedBytes: 190 << 10, Port: 20417, HostIP: "127.0.0.1", Container: "pgbranch-feature-x"},
	{Branch: "old", Seed: "catalog", Generation: 1, State: engine.StateVolume, CowMode: contract.ModeEager, CowReason: "it was asked for"},
}

var sampleSeeds = []engine.Seed{
	{Seed: "shop", Generation: 2, OwnedBytes: 300 << 20, Branches: []string{"feature-x"},
		Manifest: &contract.Manifest{Major: 17, Source: "db.internal:5432/shop", Image: "postgres:17"}},
}

func TestListFormats(t *testing.T) {
	for name, c := range map[string]struct {
		options listOptions
		seeds   bool
	}{
		"branches":          {listOptions{}, false},
		"branches-quiet":    {listOptions{quiet: true}, false},
		"branches-json":     {listOptions{format: "json"}, false},
		"branches-template": {listOptions{format: "{{.Branch}} {{.Port}} {{.Expires}}"}, false},
		"branches-table":    {listOptions{format: "table {{.Branch}}\t{{.CowReason}}"}, false},
		"seeds":             {listOptions{}, true},
		"seeds-quiet":       {listOptions{quiet: true}, true},
		"seeds-json":        {listOptions{format: "json"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			var err error
			if c.seeds {
				err = writeSeeds(formatter.Context{Output: &out, Format: listFormat(c.options, seedTable, "{{.Seed}}")}, sampleSeeds)
			} else {
				err = writeBranches(formatter.Context{Output: &out, Format: listFormat(c.options, branchTable, "{{.Branch}}")}, sampleBranches)
			}
			if err != nil {
				t.Fatal(err)
			}
			golden.Assert(t, out.String(), name+".golden")
		})
	}
}

func TestFilters(t *testing.T) {
	for _, c := range []struct {
		key, value string
		want       int
	}{
		{"name", "feature", 1}, {"seed", "shop", 1}, {"seed", "shop@2", 1}, {"seed", "shop@1", 0},
		{"state", "running", 1}, {"cow", "eager", 1},
	} {
		filter := filters.NewArgs(filters.Arg(c.key, c.value))
		got := 0
		for _, b := range sampleBranches {
			if matchesBranch(filter, b) {
				got++
			}
		}
		if got != c.want {
			t.Errorf("%s=%s matches %d, want %d", c.key, c.value, got, c.want)
		}
	}
	err := checkFilter(filters.NewArgs(filters.Arg("colour", "red")), branchFilters, "name")
	if engine.KindOf(err) != engine.KindInvalid {
		t.Errorf("an unknown filter gives %v", err)
	}
}

func TestErrorsCarryTheirExitCodeAndHint(t *testing.T) {
	ctx := context.Background()
	for kind, code := range map[engine.Kind]int{
		engine.KindOther: 1, engine.KindInvalid: 2, engine.KindNotFound: 3,
		engine.KindConflict: 4, engine.KindSetup: 5, engine.KindSource: 6,
	} {
		var status cli.StatusError
		err := exitError(ctx, &engine.Error{Kind: kind, Object: `branch "x"`, Cause: "is no good", Hint: "do that", Log: []string{"FATAL"}})
		if !errors.As(err, &status) || status.StatusCode != code {
			t.Errorf("kind %d gives %+v, want code %d", kind, err, code)
		}
		if want := "  | FATAL\nbranch \"x\": is no good\nhint: do that"; status.Status != want {
			t.Errorf("printed %q, want %q", status.Status, want)
		}
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	var status cli.StatusError
	if err := exitError(cancelled, context.Canceled); !errors.As(err, &status) || status.StatusCode != 130 {
		t.Errorf("an interrupt gives %v", err)
	}
	if exitError(ctx, nil) != nil {
		t.Error("no error became one")
	}
}

func TestEachGoesOnAfterAFailure(t *testing.T) {
	var out bytes.Buffer
	err := each(context.Background(), &out, []string{"a", "b", "c"}, func(name string) error {
		if name == "b" {
			return &engine.Error{Kind: engine.KindNotFound, Object: "b", Cause: "does not exist"}
		}
		return nil
	})
	if out.String() != "a\nc\n" {
		t.Errorf("printed %q", out.String())
	}
	var status cli.StatusError
	if !errors.As(exitError(context.Background(), err), &status) || status.StatusCode != exitNotFound {
		t.Errorf("error is %v", err)
	}
}

func TestPlainProgressIsALineAStageAndThenSparse(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	p := &plainProgress{out: &out, now: func() time.Time { return clock }}
	for done := int64(0); done <= 100; done++ {
		p.report(engine.Progress{Stage: "base backup", Done: done << 20, Total: 100 << 20})
		clock = clock.Add(100 * time.Millisecond)
	}
	p.report(engine.Progress{Stage: "freeze", Message: "database shop"})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) < 4 || len(lines) > 9 {
		t.Errorf("%d lines:\n%s", len(lines), out.String())
	}
	if last := lines[len(lines)-1]; last != "freeze: database shop" {
		t.Errorf("last line %q", last)
	}
	if !strings.Contains(out.String(), "100MiB of 100MiB, 10MiB/s") {
		t.Errorf("no bytes and rate in:\n%s", out.String())
	}
}

func TestProgressRefusesAnUnknownMode(t *testing.T) {
	_, err := newProgress(streams.NewOut(&bytes.Buffer{}), "fancy")
	if engine.KindOf(err) != engine.KindInvalid {
		t.Errorf("got %v", err)
	}
}

// Every verb says how it is used, and completes.
func TestCommandTree(t *testing.T) {
	dockerCLI, err := command.NewDockerCli()
	if err != nil {
		t.Fatal(err)
	}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short help is %q", cmd.CommandPath(), cmd.Short)
		}
		if !cmd.HasSubCommands() && cmd.ValidArgsFunction == nil {
			t.Errorf("%s completes files", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(NewRootCommand(dockerCLI))
}
