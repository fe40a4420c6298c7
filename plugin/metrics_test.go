package plugin

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func TestMetrics(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	expires := now.Add(time.Hour)
	c := &collector{now: func() time.Time { return now }, look: func() (reading, error) {
		return reading{
			seeds: []engine.Seed{{Seed: "shop", Generation: 2, OwnedBytes: 300 << 20, CreatedAt: now.Add(-time.Minute), Branches: []string{"x"}}},
			branches: []engine.Branch{
				{Branch: "x", Seed: "shop", Generation: 2, State: engine.StateRunning, CowMode: contract.ModeLazyRW, CopyUpMode: contract.CopyUpClone,
					OwnedBytes: 1 << 20, CreatedAt: now.Add(-time.Second), ExpiresAt: &expires},
				{Branch: "y", Seed: "shop", Generation: 2, State: engine.StateStopped, CowMode: contract.ModeEager, CreatedAt: now},
			},
			plugin: contract.PluginStatus{Version: "v1", FileSystem: "xfs", CopyUpMode: contract.CopyUpClone, Kernel: "6.18", FreeBytes: 5, TotalBytes: 10},
		}, nil
	}}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 4+3+9 {
		t.Errorf("%d metrics, %v", n, err)
	}
	err = testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP pgbranch_branch_owned_bytes Bytes that the branch has allocated and shares with nobody.
# TYPE pgbranch_branch_owned_bytes gauge
pgbranch_branch_owned_bytes{branch="x"} 1.048576e+06
pgbranch_branch_owned_bytes{branch="y"} 0
# HELP pgbranch_branch_info The branch, and how it copies.
# TYPE pgbranch_branch_info gauge
pgbranch_branch_info{branch="x",copy_up_mode="clone",cow_mode="lazyrw",generation="2",seed="shop"} 1
pgbranch_branch_info{branch="y",copy_up_mode="",cow_mode="eager",generation="2",seed="shop"} 1
# HELP pgbranch_seed_age_seconds Time since the seed was sealed.
# TYPE pgbranch_seed_age_seconds gauge
pgbranch_seed_age_seconds{generation="2",seed="shop"} 60
# HELP pgbranch_branch_expires_timestamp_seconds When the branch may be removed, as Unix time; absent without an expiry.
# TYPE pgbranch_branch_expires_timestamp_seconds gauge
pgbranch_branch_expires_timestamp_seconds{branch="x"} 1.8000036e+09
# HELP pgbranch_up Whether the last look at the engine and its volume plugin succeeded.
# TYPE pgbranch_up gauge
pgbranch_up 1
`), "pgbranch_branch_owned_bytes", "pgbranch_branch_info", "pgbranch_seed_age_seconds", "pgbranch_branch_expires_timestamp_seconds", "pgbranch_up")
	if err != nil {
		t.Error(err)
	}
}

func TestMetricsOfAFailedLook(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&collector{now: time.Now, look: func() (reading, error) { return reading{}, errors.New("no engine") }})
	err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP pgbranch_up Whether the last look at the engine and its volume plugin succeeded.
# TYPE pgbranch_up gauge
pgbranch_up 0
`))
	if err != nil {
		t.Error(err)
	}
}
