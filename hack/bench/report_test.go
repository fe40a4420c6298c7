package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// record keeps rounds of a workload whose values each variant multiplies.
func record(t *testing.T, dir, workload, scale string, rounds int, values map[string]map[string]float64) {
	t.Helper()
	r, err := openRecording(dir, workload)
	if err != nil {
		t.Fatal(err)
	}
	session := Session{Started: time.Unix(1_800_000_000, 0).UTC(), Scale: scale, Host: Host{CPU: "test", Cores: 2, Kernel: "6.18"}}
	for round := range rounds {
		for variant, v := range values {
			if err := r.add(session, Sample{Variant: variant, Round: round, Values: v, Load: 0.5}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestReport(t *testing.T) {
	dir := t.TempDir()
	out, docs := filepath.Join(dir, "benchmarks"), filepath.Join(dir, "benchmarks.md")
	record(t, out, "create", "full", 8, map[string]map[string]float64{
		Plain: {"first_query_s": 0.7}, Lazy: {"first_query_s": 0.77, "fresh_bytes": 236 << 10, "read_bytes": 600 << 10},
	})
	record(t, out, "throughput", "full", 3, map[string]map[string]float64{
		Plain: {"select_warm_tps": 1000}, Lazy: {"select_warm_tps": 990},
	})
	record(t, out, "create-size", "full", 2, map[string]map[string]float64{
		Lazy: {"first_query_one_s": 0.7, "first_query_big_s": 0.71},
	})
	// A trial is no measurement.
	record(t, out, "many", "tiny", 1, map[string]map[string]float64{Lazy: {"all_answer_s": 9}})
	for name, text := range map[string]string{earlierFile: "## By hand\n\nold", notMeasuredFile: "- another machine\n"} {
		if err := os.WriteFile(filepath.Join(out, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeReport(out, docs); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for _, want := range []string{
		"| create over `docker run` on a plain volume | ≤ 1.250 | 1.100 | 1.100 to 1.100 | 8 | PASS |",
		"| a fresh branch, owned | ≤ 256 KiB | 236 KiB | 236 KiB to 236 KiB | 8 | PASS |",
		"| after a full read of one database, owned | ≤ 512 KiB | 600 KiB | 600 KiB to 600 KiB | 8 | FAIL |",
		"| select-only, warm, over a plain volume | ≥ 0.980 | 0.990 | 0.990 to 0.990 | 3 | INCONCLUSIVE |",
		"| TPC-B, warm, over a plain volume | ≥ 0.970 |  |  | 0 | not measured |",
		"| fresh, bytes |", "| first query, time |",
		"- 20 branches at once: `go run ./hack/bench -only many`.",
		"- another machine", "## By hand",
		"![Create to the first query](benchmarks/ratios-create.svg)", "benchmarks/owned-create.svg", "benchmarks/create-over-size.svg",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	for _, chart := range []string{"ratios-create", "owned-create", "create-over-size", "ratios-throughput"} {
		for _, ext := range []string{".svg", ".png"} {
			if info, err := os.Stat(filepath.Join(out, chart+ext)); err != nil || info.Size() < 1000 {
				t.Errorf("%s%s: %v", chart, ext, err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(out, "ratios-many.svg")); err == nil {
		t.Error("a trial was drawn")
	}
}

func TestAMeasurementIsNotMadeTwice(t *testing.T) {
	dir := t.TempDir()
	record(t, dir, "many", "full", 2, map[string]map[string]float64{Lazy: {"all_answer_s": 9}})
	r, err := openRecording(dir, "many")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		variant string
		round   int
		scale   string
		want    bool
	}{{Lazy, 1, "full", true}, {Lazy, 2, "full", false}, {LazyXF, 1, "full", false}, {Lazy, 1, "small", false}} {
		if got := r.has(c.variant, c.round, c.scale); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

func TestRotated(t *testing.T) {
	if got := strings.Join(rotated(fiveVariants, 7), ""); got != "CDEAB" {
		t.Error(got)
	}
}
