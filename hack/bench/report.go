package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/docker/go-units"
)

// Files beside the recordings that are written by hand, and taken into the report.
const (
	earlierFile     = "earlier.md"
	notMeasuredFile = "not-measured.md"
)

// reportScales are the sizes worth reporting, the best first.
var reportScales = []string{"full", "small"}

// result is what a report knows of one workload.
type result struct {
	Workload
	recording *Recording
	scale     string
}

// series gives a variant's values by round.
func (r result) series(variant, metric string) map[int]float64 {
	return r.recording.series(variant, metric, r.scale)
}

func (r result) summary(variant, metric string) summary {
	var list []float64
	for _, v := range r.series(variant, metric) {
		list = append(list, v)
	}
	return summarise(list)
}

// held gives what a budget holds against its limit.
func (r result) held(b Budget) []float64 {
	of := r.series(b.Variant, b.Metric)
	if b.Over == "" && b.OverMetric == "" {
		var list []float64
		for _, v := range of {
			list = append(list, v)
		}
		return list
	}
	over, metric := b.Over, b.OverMetric
	if metric == "" {
		metric = b.Metric
	}
	return paired(of, r.series(over, metric))
}

func readResults(dir string) ([]result, error) {
	var results []result
	for _, w := range workloads {
		recording, err := openRecording(dir, w.Name)
		if err != nil {
			return nil, err
		}
		r := result{Workload: w, recording: recording, scale: reportScales[0]}
		for _, scale := range reportScales {
			if slices.ContainsFunc(recording.Samples, func(s Sample) bool { return recording.Sessions[s.Session].Scale == scale }) {
				r.scale = scale
				break
			}
		}
		results = append(results, r)
	}
	return results, nil
}

// writeReport makes docs/benchmarks.md and the charts of the recordings in dir.
func writeReport(dir, to string) error {
	results, err := readResults(dir)
	if err != nil {
		return err
	}
	charts, err := drawCharts(results, dir)
	if err != nil {
		return err
	}
	earlier, err := readText(filepath.Join(dir, earlierFile))
	if err != nil {
		return err
	}
	missing, err := readText(filepath.Join(dir, notMeasuredFile))
	if err != nil {
		return err
	}
	below, err := filepath.Rel(filepath.Dir(to), dir)
	if err != nil {
		return err
	}
	return os.WriteFile(to, []byte(render(results, charts, below, earlier, missing)), 0o644)
}

func readText(name string) (string, error) {
	raw, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(raw)), err
}

// render gives the report. charts are file names without extension, by workload; below is
// the folder of the recordings as seen from the report.
func render(results []result, charts map[string][]string, below, earlier, missing string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Benchmarks

<!-- Written by go run ./hack/bench -report from the recordings in %s. Edit %s or %s there. -->

Ratios of two things measured in one round, the order rotated. Times alone say little. A *verdict* on a time holds the limit
against the median's bounds of 95 %% confidence (sign test), so that fewer than six rounds, or rounds that scatter across the
limit, are INCONCLUSIVE; of a count of bytes every single measurement must keep the limit.

| variant | what it is |
|---|---|
`, below, earlierFile, notMeasuredFile)
	for _, v := range allVariants {
		fmt.Fprintf(&b, "| %s | %s |\n", v, variantNames[v])
	}
	renderVerdicts(&b, results)
	var absent []string
	for _, r := range results {
		if len(r.recording.Samples) == 0 || !hasScale(r) {
			absent = append(absent, "- "+r.Title+": `go run ./hack/bench -only "+r.Name+"`.")
			continue
		}
		renderWorkload(&b, r, charts[r.Name], below)
	}
	renderSessions(&b, results)
	if earlier != "" {
		b.WriteString("\n" + earlier + "\n")
	}
	b.WriteString("\n## Not measured\n\n")
	for _, line := range absent {
		b.WriteString(line + "\n")
	}
	b.WriteString(missing + "\n")
	return b.String()
}

func hasScale(r result) bool {
	return slices.ContainsFunc(r.recording.Samples, func(s Sample) bool { return r.recording.Sessions[s.Session].Scale == r.scale })
}

func renderVerdicts(b *strings.Builder, results []result) {
	b.WriteString("\n## Budgets\n\n| budget | limit | median | range | rounds | verdict |\n|---|---|---|---|---|---|\n")
	for _, r := range results {
		for _, budget := range r.Budgets {
			s := summarise(r.held(budget))
			format := func(v float64) string { return show("", v) }
			if budget.Over == "" && budget.OverMetric == "" {
				format = func(v float64) string { return show(budget.Metric, v) }
			}
			sign := "≤"
			if budget.AtLeast {
				sign = "≥"
			}
			fmt.Fprintf(b, "| %s | %s %s | %s | %s | %d | %s |\n", budget.Text, sign, format(budget.Limit),
				format(s.median), span(s, format), s.n, judge(s, budget.Limit, budget.AtLeast, budget.Counted))
		}
	}
}

func renderWorkload(b *strings.Builder, r result, charts []string, below string) {
	fmt.Fprintf(b, "\n## %s\n\nWorkload `%s`, size %s. Medians, and ranges in brackets.\n\n", r.Title, r.Name, r.scale)
	var metrics []string
	for _, s := range r.recording.Samples {
		for name := range s.Values {
			if !slices.Contains(metrics, name) && !strings.Contains(name, "before") && !strings.Contains(name, "after") && !strings.Contains(name, "warmup") {
				metrics = append(metrics, name)
			}
		}
	}
	slices.Sort(metrics)
	b.WriteString("| |")
	for _, v := range r.Variants {
		b.WriteString(" " + v + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(r.Variants)) + "\n")
	for _, metric := range metrics {
		b.WriteString("| " + describe(metric) + " |")
		for _, v := range r.Variants {
			s := r.summary(v, metric)
			format := func(v float64) string { return show(metric, v) }
			if s.n == 0 {
				b.WriteString(" |")
				continue
			}
			fmt.Fprintf(b, " %s (%s) |", format(s.median), span(s, format))
		}
		b.WriteString("\n")
	}
	for _, chart := range charts {
		fmt.Fprintf(b, "\n![%s](%s/%s.svg)\n", r.Title, below, chart)
	}
}

func renderSessions(b *strings.Builder, results []result) {
	b.WriteString("\n## Where and when\n\n| workload | begun | size | samples | load | host |\n|---|---|---|---|---|---|\n")
	for _, r := range results {
		for i, session := range r.recording.Sessions {
			if session.Scale != r.scale {
				continue
			}
			var loads []float64
			for _, s := range r.recording.Samples {
				if s.Session == i {
					loads = append(loads, s.Load)
				}
			}
			l, h := summarise(loads), session.Host
			fmt.Fprintf(b, "| %s | %s | %s | %d | %.1f to %.1f | %s, %d cores, %d MiB, %s, kernel %s, engine %s on %s, %s, pgbranch %s |\n",
				r.Name, session.Started.Format("2006-01-02 15:04"), session.Scale, l.n, l.min, l.max,
				h.CPU, h.Cores, h.MemoryMiB, h.OS, h.Kernel, h.Engine, h.DataRoot, h.Postgres, h.Version)
		}
	}
}

func span(s summary, format func(float64) string) string {
	if s.n == 0 {
		return ""
	}
	return format(s.min) + " to " + format(s.max)
}

// show prints a metric's value in its unit.
func show(metric string, v float64) string {
	switch {
	case math.IsNaN(v):
		return ""
	case strings.HasSuffix(metric, "_bytes"):
		return units.CustomSize("%.4g %s", v, 1024, []string{"B", "KiB", "MiB", "GiB", "TiB"})
	case strings.HasSuffix(metric, "_s"):
		return fmt.Sprintf("%.3f s", v)
	case strings.HasSuffix(metric, "_tps"):
		return fmt.Sprintf("%.0f tps", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// metricUnits are the ends of metrics' names.
var metricUnits = map[string]string{"s": "time", "bytes": "bytes", "tps": "transactions"}

// describe gives a metric's name for a person.
func describe(metric string) string {
	cut := strings.LastIndex(metric, "_")
	if cut < 0 {
		return metric
	}
	return strings.ReplaceAll(metric[:cut], "_", " ") + ", " + metricUnits[metric[cut+1:]]
}
