package engine

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
)

// expire makes branches with a term, as the plugin sees them.
func expire(t *testing.T, f *fakeAPI, expired bool, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, _, err := newEngine(f).Create(context.Background(), CreateOptions{Name: name, From: "shop", TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		f.volumes[name].Status["expired"] = expired
		f.volumes[name].Status["ownedBytes"] = 100
	}
}

func TestPruneRemovesOnlyWhatHasExpiredAndIsNotUsed(t *testing.T) {
	f := newFake()
	f.addSeed("shop", 1)
	expire(t, f, true, "stopped", "never-started", "running", "foreign", "parent", "child")
	expire(t, f, false, "young")
	for _, name := range []string{"stopped", "foreign", "parent", "child", "young"} {
		f.containers["pgbranch-"+name].running = false
	}
	delete(f.containers, "pgbranch-never-started")
	f.containers["theirs"] = &fakeContainer{config: &container.Config{}, host: f.containers["pgbranch-foreign"].host}
	f.volumes["parent"].Status["branches"] = []string{"child"}
	f.calls = nil
	// The fake does not keep book of branches that stand on another.
	f.onVolumeRemove = func(name string) {
		if name == "child" {
			f.volumes["parent"].Status["branches"] = nil
		}
	}
	dry, err := newEngine(f).Prune(context.Background(), PruneOptions{DryRun: true})
	if err != nil || len(f.volumes) != 8 || !slices.Contains(dry.Branches, "stopped") {
		t.Fatalf("a dry run: %+v, %v, %q", dry, err, f.calls)
	}
	got, err := newEngine(f).Prune(context.Background(), PruneOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"child", "never-started", "parent", "stopped"}; !slices.Equal(got.Branches, want) || got.Bytes != 400 {
		t.Errorf("removed %q, %d bytes", got.Branches, got.Bytes)
	}
	if len(got.Kept) != 2 || got.Kept["running"] != "it is running" || !strings.Contains(got.Kept["foreign"], "theirs") {
		t.Errorf("kept %q", got.Kept)
	}
	got, _ = newEngine(f).Prune(context.Background(), PruneOptions{Running: true})
	if !slices.Equal(got.Branches, []string{"running"}) || f.volumes["young"] == nil || f.volumes["foreign"] == nil {
		t.Errorf("asked for those that run: %+v", got)
	}
}

func TestEveryVerbReaps(t *testing.T) {
	f := newFake()
	f.addSeed("shop", 1)
	expire(t, f, true, "old", "mine", "running")
	f.containers["pgbranch-old"].running = false
	f.containers["pgbranch-mine"].running = false
	got := newEngine(f).Reap(context.Background(), []string{"mine"})
	if !slices.Equal(got.Branches, []string{"old"}) || f.volumes["mine"] == nil || f.volumes["running"] == nil {
		t.Errorf("reaped %q", got.Branches)
	}
	if !f.did("container rm pgbranch-old") || f.did("container rm pgbranch-mine") {
		t.Errorf("calls %q", f.calls)
	}
}

// Another may have removed the branch and made a new one of its name since it was
// listed.
func TestPruneLooksAgain(t *testing.T) {
	f := newFake()
	f.addSeed("shop", 1)
	expire(t, f, false, "again")
	got, err := newEngine(f).prune(context.Background(), []string{"again", "gone"}, PruneOptions{})
	if err != nil || len(got.Branches) != 0 || f.volumes["again"] == nil {
		t.Errorf("%+v, %v", got, err)
	}
}
