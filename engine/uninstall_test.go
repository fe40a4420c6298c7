package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/pgbranch/docker-pgbranch/engine/bundle"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func uninstall(f *fakeAPI, opts UninstallOptions) error {
	opts.Report = func(string) {}
	if opts.Consent == nil {
		opts.Consent = func(Contents) error { return nil }
	}
	return newEngine(f).Uninstall(context.Background(), opts)
}

func TestUninstallRefusesWhileVolumesExist(t *testing.T) {
	f := inUse(t)
	f.addSeed("shop", 1, "bx")
	err := uninstall(f, UninstallOptions{})
	wantKind(t, err, KindConflict)
	if !strings.Contains(err.Error(), "branches: bx; seeds: shop@1") || f.plugin == nil {
		t.Error(err)
	}
	no := errors.New("no")
	if err := uninstall(f, UninstallOptions{Purge: true, Consent: func(Contents) error { return no }}); !errors.Is(err, no) {
		t.Error(err)
	}
	// What another driver hides is somebody's data as well.
	f = newFake()
	f.status = contract.PluginStatus{Volumes: []string{"hidden"}}
	err = uninstall(f, UninstallOptions{})
	wantKind(t, err, KindConflict)
	if !strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
}

func TestUninstallPurgesInOrder(t *testing.T) {
	f := inUse(t)
	f.addSeed("shop", 1, "bx")
	if err := uninstall(f, UninstallOptions{Purge: true}); err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, call := range []string{"container rm pgbranch-bx", "volume rm bx", "volume rm shop@1", "plugin disable pgoverlay",
		"wipe /srv/data id", "plugin rm pgoverlay", "image rm pgbranch-agent:v1"} {
		next := slices.Index(f.calls, call)
		if next <= at {
			t.Fatalf("%q is not after what goes before it, in %q", call, f.calls)
		}
		at = next
	}
	// Again, there is nothing left to do.
	f.images["pgbranch-agent:v1"] = image.InspectResponse{}
	f.check = nil
	if err := uninstall(f, UninstallOptions{Purge: true}); err != nil {
		t.Error(err)
	}
}

func TestUninstallLeavesContainersOfOthers(t *testing.T) {
	f := inUse(t)
	stranger := *f.containers["pgbranch-bx"]
	stranger.config = &container.Config{}
	f.containers["stranger"] = &stranger
	err := uninstall(f, UninstallOptions{Purge: true})
	wantKind(t, err, KindConflict)
	if !strings.Contains(err.Error(), "stranger") || f.did("volume rm bx") {
		t.Errorf("%v, calls %q", err, f.calls)
	}
}

func TestUninstallKeepsData(t *testing.T) {
	f := inUse(t)
	f.status.Volumes = []string{"bx"}
	err := uninstall(f, UninstallOptions{KeepData: true})
	if _, missing := bundle.Binary("amd64"); missing != nil {
		wantKind(t, err, KindSetup)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range f.calls {
		if strings.HasPrefix(call, "volume rm bx") || strings.HasPrefix(call, "wipe") {
			t.Errorf("it did %q", call)
		}
	}
	if f.plugin != nil || !f.did("container stop pgbranch-bx") || !f.did("plugin create pgoverlay") {
		t.Errorf("calls %q", f.calls)
	}
}

// A plugin that does not start cannot say what it has: only a purge goes on then.
func TestUninstallOfABrokenPlugin(t *testing.T) {
	f := newFake()
	f.plugin.Enabled = false
	f.pluginEnable = func(string) error { return errors.New("dial unix: no such file") }
	f.storeThere = "id"
	wantKind(t, uninstall(f, UninstallOptions{}), KindSetup)
	if f.plugin == nil {
		t.Fatal("it was removed")
	}
	if err := uninstall(f, UninstallOptions{Purge: true}); err != nil || f.plugin != nil || !f.did("wipe /var/lib/docker/plugins/ id") {
		t.Errorf("%v, calls %q", err, f.calls)
	}
	// Where there is no store, nothing can be lost.
	f = newFake()
	f.plugin.Enabled = false
	f.pluginEnable = func(string) error { return errors.New("dial unix: no such file") }
	if err := uninstall(f, UninstallOptions{}); err != nil || f.plugin != nil {
		t.Errorf("%v, calls %q", err, f.calls)
	}
}
