package engine

import (
	"testing"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func TestOwners(t *testing.T) {
	list := owners("17/docker", []contract.FileUsage{
		{Path: ".", OwnedBytes: 1},
		{Path: "17/docker", OwnedBytes: 2},
		{Path: "17/docker/base/16384/16390", OwnedBytes: 100},
		{Path: "17/docker/base/16384/16390.1", OwnedBytes: 1000},
		{Path: "17/docker/base/16384/16390_fsm", OwnedBytes: 10000},
		{Path: "17/docker/base/16384/16391_init", OwnedBytes: 6},
		{Path: "17/docker/base/16384/t3_16390", OwnedBytes: 50},
		{Path: "17/docker/base/pgsql_tmp/pgsql_tmp12.0", OwnedBytes: 60},
		{Path: "17/docker/base/16384/pg_internal.init", OwnedBytes: 30},
		{Path: "17/docker/global/pg_internal.init", OwnedBytes: 31},
		{Path: "17/docker/global/1262", OwnedBytes: 70},
		{Path: "17/docker/global/pg_control", OwnedBytes: 4},
		{Path: "17/docker/pg_tblspc/16385/PG_17_202406281/16384/16392_vm", OwnedBytes: 80},
		{Path: "17/docker/pg_wal/000000010000000000000004", OwnedBytes: 500},
		{Path: "17/docker/pg_wal/archive_status", OwnedBytes: 5},
		{Path: "17/docker/pg_multixact/members/0000", OwnedBytes: 8},
	})
	want := []Owner{
		{Name: "base/16384/16390", Kind: OwnerRelation, Path: "base/16384/16390", Files: 3, OwnedBytes: 11100},
		{Name: "WAL", Kind: OwnerWAL, Path: "pg_wal", Files: 2, OwnedBytes: 505},
		{Name: "temporary files", Kind: OwnerTemp, Path: "base/pgsql_tmp", Files: 2, OwnedBytes: 110},
		{Name: "pg_tblspc/16385/PG_17_202406281/16384/16392", Kind: OwnerRelation, Path: "pg_tblspc/16385/PG_17_202406281/16384/16392", Files: 1, OwnedBytes: 80},
		{Name: "global/1262", Kind: OwnerRelation, Path: "global/1262", Files: 1, OwnedBytes: 70},
		{Name: "pg_internal.init", Kind: OwnerCache, Path: "global/pg_internal.init", Files: 2, OwnedBytes: 61},
		{Name: "pg_multixact", Kind: OwnerStatus, Path: "pg_multixact", Files: 1, OwnedBytes: 8},
		{Name: "server files", Kind: OwnerServer, Path: ".", Files: 3, OwnedBytes: 7},
		{Name: "base/16384/16391", Kind: OwnerRelation, Path: "base/16384/16391", Files: 1, OwnedBytes: 6},
	}
	if len(list) != len(want) {
		t.Fatalf("%d owners: %+v", len(list), list)
	}
	for i := range want {
		if list[i] != want[i] {
			t.Errorf("got %+v, want %+v", list[i], want[i])
		}
	}
	for path, database := range map[string]string{
		"base/16384/16390": "16384", "global/1262": "", "pg_tblspc/16385/PG_17_202406281/5/16392": "5",
	} {
		if got := databaseOf(path); got != database {
			t.Errorf("%s is of database %q", path, got)
		}
	}
}
