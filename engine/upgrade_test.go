package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// inUse gives an engine with a running branch, a store elsewhere and a changed log
// level.
func inUse(t *testing.T) *fakeAPI {
	t.Helper()
	f := newFake()
	if _, err := create(f, "bx"); err != nil {
		t.Fatal(err)
	}
	f.plugin.Settings.Env = []string{contract.EnvStoreID + "=id", "PGOVERLAY_LOG=debug", "PGOVERLAY_OLD=1"}
	f.plugin.Config.Mounts[0].Source = ptr("/srv/data")
	f.calls = nil
	return f
}

func TestUpgradeKeepsSettingsAndRestartsWhatRan(t *testing.T) {
	f := inUse(t)
	err := upgradeTo(f, "v2", SetupOptions{})
	if !needsBundle(t, f, err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	order := []string{"container stop pgbranch-bx", "plugin disable pgoverlay", "plugin create " + spareName,
		"plugin enable " + spareName, "plugin disable " + spareName, "plugin rm pgoverlay", "plugin create pgoverlay",
		"plugin enable pgoverlay", "plugin rm " + spareName, "container start pgbranch-bx"}
	at := -1
	for _, call := range order {
		next := slices.Index(f.calls, call)
		if next <= at {
			t.Fatalf("%q is not after what goes before it, in %q", call, f.calls)
		}
		at = next
	}
	s := settingsOf(f.plugin)
	if s.storeID() != "id" || !slices.Contains(s.env, "PGOVERLAY_LOG=debug") || slices.Contains(s.env, "PGOVERLAY_OLD=1") {
		t.Errorf("settings are %+v", s)
	}
	if f.spare != nil || !f.plugin.Enabled || !f.containers["pgbranch-bx"].running {
		t.Errorf("spare %v, plugin %v", f.spare, f.plugin)
	}
}

func TestUpgradeWithoutConsentChangesNothing(t *testing.T) {
	f := inUse(t)
	var listed []string
	no := &Error{Kind: KindConflict, Cause: "no"}
	err := upgradeTo(f, "v2", SetupOptions{Consent: func(r []Running) error {
		for _, c := range r {
			listed = append(listed, c.String())
		}
		return no
	}})
	if !errors.Is(err, no) || !slices.Equal(listed, []string{"branch bx"}) {
		t.Errorf("%v, listed %q", err, listed)
	}
	for _, c := range f.calls {
		if strings.HasPrefix(c, "plugin") || c == "container stop pgbranch-bx" {
			t.Errorf("it did %q", c)
		}
	}
}

func TestUpgradeRefusedByTheStoreStopsNothing(t *testing.T) {
	f := inUse(t)
	f.check = func(source, id string) error {
		if source != "/srv/data" || id != "id" {
			t.Errorf("asked about %s, %s", source, id)
		}
		return errors.New("data root /data/pgoverlay: has format 2, and this plugin knows up to 1\ninstall newer")
	}
	err := upgradeTo(f, "v2", SetupOptions{})
	wantKind(t, err, KindSetup)
	if !strings.Contains(err.Error(), "has format 2") || !strings.Contains(err.Error(), "stays as it is") {
		t.Error(err)
	}
	if f.did("plugin disable pgoverlay") || f.did("container stop pgbranch-bx") {
		t.Errorf("calls %q", f.calls)
	}
}

// The new plugin passes every check and still does not start: the old one is back and
// so is what ran.
func TestUpgradeThatFailsPutsTheOldPluginBack(t *testing.T) {
	for _, where := range []string{"start", "interrupt"} {
		f := inUse(t)
		ctx, cancel := context.WithCancel(context.Background())
		f.pluginEnable = func(name string) error {
			if name != spareName {
				return nil
			}
			if where == "interrupt" {
				cancel()
				return nil
			}
			return errors.New("dial unix: no such file")
		}
		f.next = "v2"
		_, err := New(f, "v2", nil).Setup(ctx, quiet(SetupOptions{}))
		cancel()
		if !needsBundle(t, f, err) {
			return
		}
		if err == nil || f.did("plugin rm pgoverlay") || !f.plugin.Enabled || f.spare != nil || !f.containers["pgbranch-bx"].running {
			t.Errorf("%s: %v, calls %q", where, err, f.calls)
		}
	}
}

// Killed between the old plugin and the new: the next setup takes the settings from
// the spare, and not the defaults.
func TestSetupGoesOnWithAKilledUpgrade(t *testing.T) {
	f := inUse(t)
	f.spare, f.plugin = f.plugin, nil
	err := upgradeTo(f, "v2", SetupOptions{})
	if !needsBundle(t, f, err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if s := settingsOf(f.plugin); s.storeID() != "id" || f.spare != nil || !f.plugin.Enabled {
		t.Errorf("settings %+v, spare %v", s, f.spare)
	}
}

func TestSetupPointsThePluginBackToItsStore(t *testing.T) {
	upgraded := func() *fakeAPI {
		// What `docker plugin upgrade` leaves: the default in Config, the old in Settings.
		f := newFake()
		f.plugin.Enabled = false
		f.plugin.Settings.Mounts = []types.PluginMount{{Name: "data", Source: ptr("/srv/data")}}
		f.storeThere = "id"
		f.check = func(source, id string) error {
			if source == "/srv/data" || source == "/mnt/moved" {
				return nil
			}
			return fmt.Errorf("data root %s: is no store, but the plugin is set up with store %s", source, id)
		}
		return f
	}
	f := upgraded()
	if err := setup(f, SetupOptions{}); err != nil || settingsOf(f.plugin).data != "/srv/data" || !f.plugin.Enabled {
		t.Errorf("%v, data %s, enabled %v", err, settingsOf(f.plugin).data, f.plugin.Enabled)
	}
	f = upgraded()
	if err := setup(f, SetupOptions{Data: "/mnt/moved"}); err != nil || settingsOf(f.plugin).data != "/mnt/moved" {
		t.Errorf("%v, data %s", err, settingsOf(f.plugin).data)
	}
	// A folder that has another store is not taken, nor is anything moved under a plugin
	// that runs.
	f = upgraded()
	wantKind(t, setup(f, SetupOptions{Data: "/mnt/other"}), KindSetup)
	if f.plugin.Enabled || settingsOf(f.plugin).data == "/mnt/other" {
		t.Error("it was moved to another store")
	}
	f = upgraded()
	f.plugin.Enabled = true
	wantKind(t, setup(f, SetupOptions{Data: "/mnt/moved"}), KindConflict)
}

// A plugin that nobody has pinned had the store that lies in its former folder. One that
// never ran there has left none.
func TestSetupPointsAnUnpinnedPluginBack(t *testing.T) {
	for there, want := range map[string]string{"id": "/srv/data", "": "/var/lib/docker/plugins/"} {
		f := newFake()
		f.plugin.Enabled = false
		f.plugin.Settings.Env = nil
		f.plugin.Settings.Mounts = []types.PluginMount{{Name: "data", Source: ptr("/srv/data")}}
		f.storeThere = there
		if err := setup(f, SetupOptions{}); err != nil || settingsOf(f.plugin).data != want {
			t.Errorf("with %q there: %v, data %s", there, err, settingsOf(f.plugin).data)
		}
	}
}

func TestInstallOnAnUnfitFileSystemLeavesNothing(t *testing.T) {
	f := newFake()
	f.plugin = nil
	f.status.Unfit = "volume plugin pgoverlay: the data root is on nfs, which cannot hold branches\nmove it"
	err := setup(f, SetupOptions{Data: "/net/home"})
	if !needsBundle(t, f, err) {
		return
	}
	wantKind(t, err, KindSetup)
	if !strings.Contains(err.Error(), "nfs") || f.plugin != nil {
		t.Errorf("%v, plugin %v", err, f.plugin)
	}
}
