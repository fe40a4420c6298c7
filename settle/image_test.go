package settle

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func TestWhatAnImageCanLoad(t *testing.T) {
	dir := t.TempDir()
	assert.Assert(t, librariesIn(dir) == nil, "an empty folder says nothing")
	for _, name := range []string{"plpgsql.so", "pg_cron.so", "timescaledb-2.14.2.so", "bitcode"} {
		assert.NilError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	assert.DeepEqual(t, librariesIn(dir), []string{"pg_cron", "plpgsql", "timescaledb-2.14.2"})
}

func TestPreloaded(t *testing.T) {
	assert.DeepEqual(t, preloaded(map[string]string{
		"shared_preload_libraries": `pg_cron, "timescaledb"`, "session_preload_libraries": "auto_explain, pg_cron", "port": "1",
	}), []string{"auto_explain", "pg_cron", "timescaledb"})
}

func TestWhatDoesNotSuitIsRefusedUnlessOneInsists(t *testing.T) {
	found := func(u contract.Unfit) []contract.Unfit {
		return []contract.Unfit{{What: "collation version 2.42", Why: "warned of"}, u}
	}
	grave := found(contract.Unfit{What: "extension postgis", Why: "is not in the image", Grave: true})
	never := found(contract.Unfit{What: "Postgres 18", Why: "is another major", Never: true})
	assert.NilError(t, unsuited(grave[:1], false))
	assert.NilError(t, unsuited(grave, true))
	for _, c := range []struct {
		found      []contract.Unfit
		force      bool
		code, said string
	}{
		{grave, false, contract.AgentErrImage, "extension postgis: is not in the image"},
		{never, false, contract.AgentErrMajor, "Postgres 18: is another major"},
		{never, true, contract.AgentErrMajor, "Postgres 18: is another major"},
	} {
		err := unsuited(c.found, c.force)
		assert.ErrorContains(t, err, c.said)
		assert.Equal(t, err.(*contract.AgentError).Code, c.code)
	}
}
