//go:build e2e

package faults

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// TestAnUpgradeAndADowngrade swaps the plugin by hand for one of a later store format,
// which works on this one's store, and back, once the later one has made the store its
// own: this one refuses that by name, dockerd comes up with it, and forgets nothing.
func TestAnUpgradeAndADowngrade(t *testing.T) {
	r := newRig(t)
	branch, store := r.branch(), r.Store("store.json")
	r.docker("volume", "create", "-d", r.Name, "--label", "kept=yes", "-o", "seed="+seedName, "labelled")
	good, err := os.ReadFile(store)
	r.ok(err)
	var meta map[string]any
	r.ok(json.Unmarshal(good, &meta))
	swap := func(build string) {
		t.Helper()
		_, _ = r.Try("plugin", "disable", "-f", r.Name) // it may be already
		r.docker("plugin", "rm", "-f", r.Name)
		r.docker("plugin", "create", r.Name, build)
		r.docker("plugin", "set", r.Name, "data.source="+r.Data, contract.EnvStoreID+"="+meta["id"].(string))
	}
	today := filepath.Join(r.Dir, "build")
	later := r.buildFormat(2)
	defer func() {
		r.ok(os.WriteFile(store, good, 0o600))
		swap(today)
		r.docker("plugin", "enable", r.Name)
	}()

	swap(later)
	r.docker("plugin", "enable", r.Name)
	assert.Equal(t, r.query(r.serve(branch), "update t set v = 'x' where id = 7; select count(*) from t"), "UPDATE 1\n50000")
	for _, id := range strings.Fields(r.docker("ps", "-aq")) {
		r.docker("rm", "-f", id)
	}
	meta["format"] = 2
	newer, err := json.Marshal(meta)
	r.ok(err)
	r.ok(os.WriteFile(store, newer, 0o600))

	swap(today)
	r.fails("plugin", "enable", r.Name)
	const refusal = "has format 2, and this plugin knows up to 1"
	assert.Check(t, is.Contains(r.logAll(), refusal))
	r.ok(r.Stop())
	r.ok(r.Boot())
	assert.Check(t, is.Contains(r.fails("volume", "inspect", branch), "disabled"))

	swap(later)
	r.docker("plugin", "enable", r.Name)
	assert.Equal(t, r.docker("volume", "inspect", "-f", "{{.Labels.kept}}", "labelled"), "yes")
	assert.Equal(t, r.query(r.serve(branch), "select v from t where id = 7"), "x")
	for _, id := range strings.Fields(r.docker("ps", "-aq")) {
		r.docker("rm", "-f", id)
	}
}

// buildFormat builds the plugin as one that knows a later format of the store.
func (r *rig) buildFormat(format int) (dir string) {
	r.t.Helper()
	dir = filepath.Join(r.t.TempDir(), "build")
	original, err := filepath.Abs("../../volumedriver/meta.go")
	r.ok(err)
	source, err := os.ReadFile(original)
	r.ok(err)
	const constant = "const storeFormat = 1\n"
	assert.Equal(r.t, strings.Count(string(source), constant), 1)
	changed, overlay := dir+".go", dir+".json"
	r.ok(os.WriteFile(changed, []byte(strings.Replace(string(source), constant, strings.Replace(constant, "1", string(rune('0'+format)), 1), 1)), 0o600))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	r.ok(err)
	r.ok(os.WriteFile(overlay, replace, 0o600))
	r.ok(BuildPlugin(dir, "-tags", "faults", "-overlay", overlay))
	return dir
}
