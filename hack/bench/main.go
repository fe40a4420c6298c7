// Command bench measures what a branch costs, against the budgets of the design, and
// writes docs/benchmarks.md from what it measured.
//
//	go run ./hack/bench                      measure what is not measured yet, then write the report
//	go run ./hack/bench -only create,many    some of the workloads
//	go run ./hack/bench -report              write the report only
//	go run ./hack/bench -clean               remove seeds, sources and disks of the benchmarks
//
// It runs as root on the engine's own host, on an engine that has no branches of anybody
// else. Each workload's variants take turns in rounds, in an order that rotates, so that
// what changes slowly meets all alike; ratios are of two variants in one round. Every
// measurement is kept in docs/benchmarks at once, and is not made again: a run that was
// interrupted goes on where it was.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// ctx is for calls that nothing cancels: an interrupt ends the program between two
// measurements.
func ctx() context.Context { return context.Background() }

type flags struct {
	rounds int
	// size names one of sizes; only, variants choose what to measure.
	size, only, variants string
	// out holds the recordings, docs is the report, dir holds the disks' images.
	out, docs, dir    string
	reportOnly, clean bool
}

func parseFlags() flags {
	var f flags
	flag.IntVar(&f.rounds, "rounds", 10, "rounds of each workload")
	flag.StringVar(&f.size, "size", "full", "full, small (one whole segment, little else) or tiny (to try this program)")
	flag.StringVar(&f.only, "only", "", "workloads, by commas; all without")
	flag.StringVar(&f.variants, "variants", "", "variants, as in ACD; all without")
	flag.StringVar(&f.out, "out", "docs/benchmarks", "where recordings and charts lie")
	flag.StringVar(&f.docs, "report-to", "docs/benchmarks.md", "the report")
	flag.StringVar(&f.dir, "disks", "/var/tmp/pgbranch-bench", "where the images of loop devices lie")
	flag.BoolVar(&f.reportOnly, "report", false, "measure nothing")
	flag.BoolVar(&f.clean, "clean", false, "remove all that the benchmarks made in the engine, and measure nothing")
	flag.Parse()
	return f
}

func run() error {
	f := parseFlags()
	size, ok := sizes[f.size]
	if !ok {
		return fmt.Errorf("-size %q is unknown: full, small or tiny", f.size)
	}
	chosen, err := choose(f.only)
	if err != nil {
		return err
	}
	if f.reportOnly {
		return writeReport(f.out, f.docs)
	}
	say := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
	}
	rig, err := openRig(f.dir, size, say)
	if err != nil {
		return err
	}
	if f.clean {
		return rig.remove()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = measure(ctx, rig, chosen, f, say)
	err = errors.Join(err, rig.sweep(false), rig.close())
	if err != nil {
		return err
	}
	return writeReport(f.out, f.docs)
}

func choose(only string) ([]Workload, error) {
	if only == "" {
		return workloads, nil
	}
	var chosen []Workload
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(workloads, func(w Workload) bool { return w.Name == name })
		if i < 0 {
			var known []string
			for _, w := range workloads {
				known = append(known, w.Name)
			}
			return nil, fmt.Errorf("no workload %q; there are: %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, workloads[i])
	}
	return chosen, nil
}

func measure(ctx context.Context, rig *Rig, chosen []Workload, f flags, say func(string, ...any)) error {
	if err := rig.sweep(false); err != nil {
		return err
	}
	host, err := describeHost()
	if err != nil {
		return err
	}
	session := Session{Host: host, Started: time.Now().UTC().Truncate(time.Second), Scale: rig.size.Name}
	for _, w := range chosen {
		recording, err := openRecording(f.out, w.Name)
		if err != nil {
			return err
		}
		for round := range f.rounds {
			if err := measureRound(ctx, rig, w, recording, session, round, f, say); err != nil {
				return err
			}
		}
	}
	return nil
}

// measureRound makes what is missing of a round: variant by variant, or, of a workload
// whose variants run together, all of them. There a round that is not new stays as it is: what
// ran without the others is no pair of theirs.
func measureRound(ctx context.Context, rig *Rig, w Workload, recording *Recording, session Session, round int, f flags, say func(string, ...any)) error {
	var missing []string
	order := rotated(w.Variants, round)
	for _, variant := range order {
		has := recording.has(variant, round, rig.size.Name)
		if has && w.Together != nil {
			return nil
		}
		if !has && (f.variants == "" || strings.Contains(f.variants, variant)) {
			missing = append(missing, variant)
		}
	}
	groups := [][]string{missing}
	if w.Together == nil {
		groups = slices.Collect(slices.Chunk(missing, 1))
	}
	for _, group := range groups {
		if len(group) == 0 {
			continue
		}
		if ctx.Err() != nil {
			return errors.New("interrupted; what is measured is kept, and the same command goes on")
		}
		s := Sample{Round: round, Load: load(), Started: time.Now().UTC().Truncate(time.Second)}
		found, err := runGroup(rig, w, group)
		if err != nil {
			return fmt.Errorf("%s, round %d, %s: %w", w.Name, round+1, strings.Join(group, " "), err)
		}
		for _, variant := range group {
			s.Variant, s.Turn, s.Values = variant, slices.Index(order, variant), found[variant]
			if err := recording.add(session, s); err != nil {
				return err
			}
			say("%s round %d of %d, %s: %s", w.Name, round+1, f.rounds, variantNames[variant], short(s.Values))
		}
	}
	return nil
}

func runGroup(rig *Rig, w Workload, group []string) (map[string]map[string]float64, error) {
	for _, variant := range group {
		if w.Destroys && isPlain(variant) {
			if _, err := rig.plainVolume(variant, dataOne, true); err != nil {
				return nil, err
			}
		}
	}
	if w.Together != nil {
		return w.Together(rig, group)
	}
	found, err := w.Run(rig, group[0])
	return map[string]map[string]float64{group[0]: found}, err
}

// rotated gives the variants in a round's order.
func rotated(variants []string, round int) []string {
	k := round % len(variants)
	return slices.Concat(variants[k:], variants[:k])
}

// short gives the values of one measurement on a line.
func short(values map[string]float64) string {
	var parts []string
	for _, metric := range slices.Sorted(maps.Keys(values)) {
		if !strings.Contains(metric, "before") && !strings.Contains(metric, "after") {
			parts = append(parts, describe(metric)+" "+show(metric, values[metric]))
		}
	}
	return strings.Join(parts, ", ")
}
