package engine

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types"

	"github.com/pgbranch/docker-pgbranch/engine/bundle"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func (f *fakeAPI) PluginCreate(_ context.Context, stream io.Reader, o types.PluginCreateOptions) error {
	f.calls = append(f.calls, "plugin create "+o.RepoName)
	_, err := io.Copy(io.Discard, stream)
	*f.slot(o.RepoName) = &types.Plugin{
		Settings: types.PluginSettings{Env: []string{contract.EnvStoreID + "=", "PGOVERLAY_LOG=info"}},
		Config: types.PluginConfig{
			Mounts: []types.PluginMount{{Name: "data", Source: ptr("/var/lib/docker/plugins/")}},
			Env:    []types.PluginEnv{{Name: contract.EnvStoreID}, {Name: "PGOVERLAY_LOG"}},
		},
	}
	return err
}

func (f *fakeAPI) PluginEnable(_ context.Context, name string, _ types.PluginEnableOptions) error {
	f.calls = append(f.calls, "plugin enable "+name)
	if f.pluginEnable != nil {
		if err := f.pluginEnable(name); err != nil {
			return err
		}
	}
	(*f.slot(name)).Enabled = true
	if name == contract.DriverName && slices.Contains(f.calls, "plugin create "+name) {
		f.version = f.next
	}
	return nil
}

func (f *fakeAPI) PluginDisable(_ context.Context, name string, _ types.PluginDisableOptions) error {
	f.calls = append(f.calls, "plugin disable "+name)
	(*f.slot(name)).Enabled = false
	return nil
}

func (f *fakeAPI) PluginSet(_ context.Context, name string, args []string) error {
	p := *f.slot(name)
	for _, arg := range args {
		f.calls = append(f.calls, "plugin set "+name+" "+arg)
		if source, ok := strings.CutPrefix(arg, "data.source="); ok {
			p.Config.Mounts[0].Source = &source
			continue
		}
		key, _, _ := strings.Cut(arg, "=")
		p.Settings.Env = slices.DeleteFunc(p.Settings.Env, func(e string) bool { return strings.HasPrefix(e, key+"=") })
		p.Settings.Env = append(p.Settings.Env, arg)
	}
	return nil
}

func (f *fakeAPI) PluginRemove(_ context.Context, name string, _ types.PluginRemoveOptions) error {
	f.calls = append(f.calls, "plugin rm "+name)
	if *f.slot(name) == nil {
		return notFound("plugin")
	}
	*f.slot(name) = nil
	return nil
}

func (f *fakeAPI) did(call string) bool { return slices.Contains(f.calls, call) }

func setup(f *fakeAPI, opts SetupOptions) error {
	_, err := newEngine(f).Setup(context.Background(), quiet(opts))
	return err
}

// quiet agrees to everything and reports nothing, unless told otherwise.
func quiet(opts SetupOptions) SetupOptions {
	if opts.Report == nil {
		opts.Report = func(string) {}
	}
	if opts.Consent == nil {
		opts.Consent = func([]Running) error { return nil }
	}
	return opts
}

// upgradeTo runs setup of another version.
func upgradeTo(f *fakeAPI, version string, opts SetupOptions) error {
	f.next = version
	_, err := New(f, version, nil).Setup(context.Background(), quiet(opts))
	return err
}

// needsBundle skips nothing: a bare `go build` carries no plugin, and then an upgrade
// must refuse before it changes anything.
func needsBundle(t *testing.T, f *fakeAPI, err error) bool {
	t.Helper()
	if _, missing := bundle.Binary("amd64"); missing == nil {
		return true
	}
	if KindOf(err) != KindSetup || f.did("plugin rm "+contract.DriverName) {
		t.Errorf("without a bundle: %v, calls %q", err, f.calls)
	}
	return false
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
	if !slices.Contains(f.calls, "plugin set pgoverlay "+contract.EnvStoreID+"=id") || !f.plugin.Enabled {
		t.Errorf("calls %q, enabled %v", f.calls, f.plugin.Enabled)
	}
}

// Disabling the plugin under a running container loses that container's later
// unmount, so pinning does not do it.
func TestSetupPinsNothingUnderARunningContainer(t *testing.T) {
	f := newFake()
	if _, err := create(f, "bx"); err != nil {
		t.Fatal(err)
	}
	f.plugin.Settings.Env = nil
	if err := setup(f, SetupOptions{}); err != nil {
		t.Fatal(err)
	}
	if f.did("plugin disable pgoverlay") {
		t.Errorf("it was disabled: %q", f.calls)
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
	if !f.did("plugin create pgoverlay") || !f.plugin.Enabled || settingsOf(f.plugin).storeID() != "id" {
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
