package engine

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"

	"github.com/pgbranch/docker-pgbranch/engine/bundle"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func (f *fakeAPI) PluginCreate(_ context.Context, stream io.Reader, o types.PluginCreateOptions) error {
	f.calls = append(f.calls, "plugin create "+o.RepoName)
	_, err := io.Copy(io.Discard, stream)
	f.plugin = &types.Plugin{}
	return err
}

func (f *fakeAPI) PluginEnable(context.Context, string, types.PluginEnableOptions) error {
	f.calls = append(f.calls, "plugin enable")
	f.plugin.Enabled = true
	return nil
}

func (f *fakeAPI) PluginDisable(context.Context, string, types.PluginDisableOptions) error {
	f.calls = append(f.calls, "plugin disable")
	f.plugin.Enabled = false
	return nil
}

func (f *fakeAPI) PluginSet(_ context.Context, _ string, args []string) error {
	f.calls = append(f.calls, "plugin set "+args[0])
	f.plugin.Settings.Env = args
	return nil
}

func (f *fakeAPI) PluginRemove(context.Context, string, types.PluginRemoveOptions) error {
	f.calls = append(f.calls, "plugin rm")
	f.plugin = nil
	return nil
}

func setup(f *fakeAPI, opts SetupOptions) error {
	opts.Report = func(string) {}
	_, err := newEngine(f).Setup(context.Background(), opts)
	return err
}

func TestSetupOfAWellPluginChangesNothing(t *testing.T) {
	f := newFake()
	if err := setup(f, SetupOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range f.calls {
		if strings.HasPrefix(c, "plugin") {
			t.Errorf("it did %q", c)
		}
	}
}

func TestSetupPinsThePluginToItsDataRoot(t *testing.T) {
	f := newFake()
	f.plugin.Settings.Env = []string{contract.EnvStoreID + "="}
	if err := setup(f, SetupOptions{}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(f.calls, "plugin set "+contract.EnvStoreID+"=id") || !f.plugin.Enabled {
		t.Errorf("calls %q, enabled %v", f.calls, f.plugin.Enabled)
	}
}

// Disabling the plugin under a running container loses that container's later
// unmount, so neither pin nor upgrade may do it.
func TestSetupDisablesNothingUnderARunningContainer(t *testing.T) {
	for _, version := range []string{"v1", "v2"} {
		f := newFake()
		if _, err := create(f, "bx"); err != nil {
			t.Fatal(err)
		}
		f.plugin.Settings.Env = nil
		_, err := New(f, version, nil).Setup(context.Background(), SetupOptions{Report: func(string) {}})
		if version == "v2" {
			wantKind(t, err, KindConflict)
			if !strings.Contains(err.Error(), "pgbranch-bx") {
				t.Errorf("%q does not name the container", err)
			}
		}
		if slices.Contains(f.calls, "plugin disable") {
			t.Errorf("version %s: it was disabled", version)
		}
		_ = f.ContainerRemove(context.Background(), "pgbranch-bx", container.RemoveOptions{})
	}
}

func TestSetupRefusesEnginesThatCannotRunThePlugin(t *testing.T) {
	for name, change := range map[string]func(*fakeAPI){
		"rootless": func(f *fakeAPI) { f.info.SecurityOptions = []string{"name=seccomp,profile=builtin", "name=rootless"} },
		"userns":   func(f *fakeAPI) { f.info.SecurityOptions = []string{"name=userns"} },
		"windows":  func(f *fakeAPI) { f.info.OSType = "windows" },
		"riscv":    func(f *fakeAPI) { f.info.Architecture = "riscv64" },
	} {
		f := newFake()
		f.plugin = nil
		change(f)
		if err := setup(f, SetupOptions{}); KindOf(err) != KindSetup {
			t.Errorf("%s: %v", name, err)
		}
		if len(f.calls) > 0 {
			t.Errorf("%s: it did %q", name, f.calls)
		}
	}
}

func TestSetupRefusesToMoveTheData(t *testing.T) {
	wantKind(t, setup(newFake(), SetupOptions{Data: "/srv/elsewhere"}), KindConflict)
	if err := setup(newFake(), SetupOptions{Data: "/var/lib/docker/plugins"}); err != nil {
		t.Errorf("the same folder: %v", err)
	}
	f := newFake()
	f.plugin = nil
	wantKind(t, setup(f, SetupOptions{Data: "relative"}), KindInvalid)
}

func TestSetupInstallsWhatTheBuildCarries(t *testing.T) {
	f := newFake()
	f.plugin = nil
	err := setup(f, SetupOptions{})
	if _, missing := bundle.Binary("amd64"); missing != nil {
		// A bare `go build` carries nothing, and must say so.
		if !errors.Is(missing, bundle.ErrEmpty) || KindOf(err) != KindSetup {
			t.Errorf("%v, %v", missing, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(f.calls, "plugin create pgoverlay") || !f.plugin.Enabled || storeID(f.plugin) != "id" {
		t.Errorf("calls %q", f.calls)
	}
}

func TestVerbsTellAMissingPluginFromAnEmptyEngine(t *testing.T) {
	f := newFake()
	f.plugin = nil
	_, err := newEngine(f).Branches(context.Background())
	wantKind(t, err, KindSetup)
	f.plugin = &types.Plugin{}
	_, err = newEngine(f).Seeds(context.Background())
	wantKind(t, err, KindSetup)
}
