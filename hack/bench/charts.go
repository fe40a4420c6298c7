package main

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

const (
	chartWidth  = 18 * vg.Centimeter
	chartHeight = 9 * vg.Centimeter
)

// chartNames are the variants on an axis.
var chartNames = map[string]string{
	Plain: "plain volume", Eager: "--cow off", Lazy: "lazyrw", LazyXF: "lazyrw, XFS", LazyBt: "lazyrw, btrfs",
	PlainXF: "plain, XFS", PlainBt: "plain, btrfs",
}

// ownedCharts are the metrics whose bytes are drawn, by workload.
var ownedCharts = map[string][]string{
	"create":      {"fresh_bytes", "read_bytes"},
	"one-row":     {"grown_bytes"},
	"one-percent": {"contiguous_grown_bytes", "spread_grown_bytes"},
}

// drawCharts draws what the recordings have, as SVG and PNG, and gives the names of the
// files without extension, by workload.
func drawCharts(results []result, dir string) (map[string][]string, error) {
	drawn := map[string][]string{}
	keep := func(workload, name string, p *plot.Plot, err error) error {
		if err != nil || p == nil {
			return err
		}
		for _, ext := range []string{".svg", ".png"} {
			if err := p.Save(chartWidth, chartHeight, filepath.Join(dir, name+ext)); err != nil {
				return err
			}
		}
		drawn[workload] = append(drawn[workload], name)
		return nil
	}
	for _, r := range results {
		if r.Name == "create-size" {
			p, err := sizeChart(r)
			if err := keep(r.Name, "create-over-size", p, err); err != nil {
				return nil, err
			}
		}
		if metrics := ownedCharts[r.Name]; metrics != nil {
			p, err := ownedChart(r, metrics)
			if err := keep(r.Name, "owned-"+r.Name, p, err); err != nil {
				return nil, err
			}
		}
		p, err := ratioChart(r)
		if err := keep(r.Name, "ratios-"+r.Name, p, err); err != nil {
			return nil, err
		}
	}
	return drawn, nil
}

// sizeChart draws the time of a create over the size of the seed, one point a round.
func sizeChart(r result) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "Create to the first query", "seed, GiB", "seconds"
	p.Y.Min, p.X.Min = 0, 0
	var medians plotter.XYs
	empty := true
	for _, data := range []struct {
		metric string
		gib    float64
	}{{"first_query_one_s", 1.4}, {"first_query_big_s", 10}} {
		var points plotter.XYs
		for _, v := range r.series(Lazy, data.metric) {
			points = append(points, plotter.XY{X: data.gib, Y: v})
		}
		if len(points) == 0 {
			continue
		}
		empty = false
		scatter, err := plotter.NewScatter(points)
		if err != nil {
			return nil, err
		}
		scatter.Color = plotutil.Color(0)
		p.Add(scatter)
		medians = append(medians, plotter.XY{X: data.gib, Y: r.summary(Lazy, data.metric).median})
	}
	if empty {
		return nil, nil
	}
	line, err := plotter.NewLine(medians)
	if err != nil {
		return nil, err
	}
	line.Color = plotutil.Color(0)
	p.Add(line, plotter.NewGrid())
	p.Legend.Add("median", line)
	return p, nil
}

// ownedTicks are the marks of a logarithmic axis of bytes.
func ownedTicks(_, top float64) []plot.Tick {
	var ticks []plot.Tick
	for power := 0.0; power <= top+2; power += 2 {
		ticks = append(ticks, plot.Tick{Value: power, Label: show("_bytes", 1024*math.Exp2(power))})
	}
	return ticks
}

// ownedChart draws the median of bytes owned, by variant. The axis is logarithmic by
// hand, in powers of two of a KiB: bars begin at zero, of which there is no logarithm.
func ownedChart(r result, metrics []string) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = r.Title + ": bytes owned"
	p.Y.Tick.Marker = plot.TickerFunc(ownedTicks)
	variants := slices.DeleteFunc(slices.Clone(r.Variants), func(v string) bool {
		return !slices.ContainsFunc(metrics, func(m string) bool { return len(r.series(v, m)) > 0 })
	})
	if len(variants) == 0 {
		return nil, nil
	}
	var names []string
	for _, v := range variants {
		names = append(names, chartNames[v])
	}
	p.NominalX(names...)
	width := vg.Points(60 / float64(len(metrics)))
	top := 0.0
	for i, metric := range metrics {
		var heights plotter.Values
		for _, v := range variants {
			height := 0.0
			if s := r.summary(v, metric); s.n > 0 && s.median > 1024 {
				height = math.Log2(s.median / 1024)
			}
			heights = append(heights, height)
			top = max(top, height)
		}
		bars, err := plotter.NewBarChart(heights, width)
		if err != nil {
			return nil, err
		}
		bars.LineStyle.Width, bars.Color = 0, plotutil.Color(i)
		bars.Offset = width * vg.Length(float64(i)-float64(len(metrics)-1)/2)
		p.Add(bars)
		if len(metrics) > 1 {
			p.Legend.Add(describe(metric), bars)
		}
	}
	p.Y.Min, p.Y.Max = 0, top+3
	p.X.Min, p.X.Max = -0.5, float64(len(variants))-0.5
	p.Legend.Top = true
	return p, nil
}

// ratioChart draws, for each budget that is a ratio, the ratio of every round and the
// limit.
func ratioChart(r result) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = r.Title+": ratios by round", "round", "ratio"
	empty := true
	for i, budget := range r.Budgets {
		if budget.Over == "" || budget.Counted {
			continue
		}
		ratios := r.held(budget)
		if len(ratios) == 0 {
			continue
		}
		empty = false
		points := make(plotter.XYs, len(ratios))
		for round, ratio := range ratios {
			points[round] = plotter.XY{X: float64(round + 1), Y: ratio}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		limit, err := plotter.NewLine(plotter.XYs{{X: 1, Y: budget.Limit}, {X: float64(max(2, len(ratios))), Y: budget.Limit}})
		if err != nil {
			return nil, err
		}
		line.Color, dots.Color, limit.Color = plotutil.Color(i), plotutil.Color(i), plotutil.Color(i)
		limit.Dashes = plotutil.Dashes(1)
		p.Add(line, dots, limit)
		p.Legend.Add(fmt.Sprintf("%s (limit %.2f)", budget.Text, budget.Limit), line)
	}
	if empty {
		return nil, nil
	}
	p.Add(plotter.NewGrid())
	p.Legend.Top = true
	return p, nil
}
