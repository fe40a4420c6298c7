package volumedriver

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// A branch's own settings lie in its upper and nowhere else, come back with a reset,
// and go on to a branch of the branch.
func TestSettingsOfABranch(t *testing.T) {
	for _, dataDir := range []string{".", "18/docker"} {
		t.Run(dataDir, func(t *testing.T) {
			b := newBench(t)
			tree := b.stage("s1", "shop", func(m *contract.Manifest) { m.DataDir, m.MountPath = dataDir, "/var/lib/postgresql" })
			place := filepath.Join(tree, rootDir, dataDir, contract.BranchConf)
			assert.NilError(t, os.WriteFile(place, []byte("# nothing\n"), 0o600))
			b.sealStaging("s1")
			b.mustCreate("b1", "seed", "shop", "conf.log_line_prefix", `it's \ %m `, "conf.Work_Mem", "8MB")
			b.mustCreate("b1", "seed", "shop", "conf.log_line_prefix", `it's \ %m `, "conf.work_mem", "8MB")
			assert.ErrorContains(t, b.create("b1", "seed", "shop", "conf.work_mem", "9MB"), "exists already")

			file := func(branch string) string {
				return b.path(b.volume(branch).tree(), dataDir, contract.BranchConf)
			}
			check := func(branch, want string) {
				t.Helper()
				text, err := os.ReadFile(file(branch))
				assert.NilError(t, err)
				assert.Check(t, is.Contains(string(text), want))
			}
			check("b1", "\nlog_line_prefix = 'it''s \\\\ %m '\nwork_mem = '8MB'\n")
			assert.DeepEqual(t, b.status("b1").Settings, map[string]string{"log_line_prefix": `it's \ %m `, "work_mem": "8MB"})

			assert.NilError(t, os.WriteFile(file("b1"), nil, 0o600))
			b.mustCreate("t1", contract.OptOp, contract.OpReset, contract.OptVolume, "b1")
			check("b1", "\nwork_mem = '8MB'\n")

			b.mustCreate("b2", "branch", "b1", "conf.work_mem", "16MB")
			check("b2", "\nlog_line_prefix = 'it''s \\\\ %m '\nwork_mem = '16MB'\n")
			b.restart()
			assert.Equal(t, b.status("b2").Settings["work_mem"], "16MB")

			b.mustCreate("b4", "seed", "shop", "conf.shared_preload_libraries", "auto_explain")
			check("b4", "lazyrw.so,auto_explain'")

			b.mustCreate("b3", "seed", "shop")
			_, err := os.Lstat(file("b3"))
			assert.Assert(t, os.IsNotExist(err), "a branch without settings owns a file for them")
			seed, err := os.ReadFile(b.path(b.volume("shop@1").tree(), dataDir, contract.BranchConf))
			assert.NilError(t, err)
			assert.Equal(t, string(seed), "# nothing\n")
		})
	}
}

// Nothing would read the settings of a branch whose seed does not include them.
func TestSettingsNeedAPlaceInTheSeed(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	assert.ErrorContains(t, b.create("b1", "seed", "shop", "conf.work_mem", "8MB"), "make it anew")
	b.absent("b1")
	b.checkNothingLeft()
}
