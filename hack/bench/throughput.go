package main

import "time"

// turns is how often each server of a round gets its turn.
const turns = 5

// runThroughput has a server of each variant up at once and lets them take turns of a
// few seconds, since on a machine of two cores runs a minute apart differ by more than
// what is looked for: a tenth. What is given of warm runs is the mean of the turns.
// Select-only is measured with nothing in memory too, and TPC-B at its first writes.
func runThroughput(r *Rig, variants []string) (map[string]map[string]float64, error) {
	var servers []*server
	defer func() {
		for _, s := range servers {
			s.drop()
		}
	}()
	found := map[string]map[string]float64{}
	for _, variant := range variants {
		s, _, err := r.start(variant, dataOne)
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
		found[variant] = map[string]float64{}
	}
	turn := r.size.BenchTime / turns
	run := func(metric string, times int, before func() error, args ...string) error {
		for i := range times {
			for at := range servers {
				s := servers[(at+i)%len(servers)]
				if before != nil {
					if err := before(); err != nil {
						return err
					}
				}
				tps, err := s.pgbench(max(turn, time.Second), args...)
				if err != nil {
					return err
				}
				found[s.variant][metric] += tps / float64(times)
			}
		}
		return nil
	}
	checkpoint := func() error {
		for _, s := range servers {
			took, err := s.exec("CHECKPOINT")
			if err != nil {
				return err
			}
			found[s.variant]["checkpoint_s"] = took.Seconds()
		}
		return nil
	}
	for _, step := range []func() error{
		func() error { return run("select_cold_tps", 1, dropCaches, "-S") },
		func() error { return run("select_warmup_tps", 1, nil, "-S") },
		func() error { return run("select_warm_tps", turns, nil, "-S") },
		// The first writes to the tables, which copy them up.
		func() error { return run("tpcb_cold_tps", 1, nil) },
		checkpoint,
		func() error { return run("tpcb_warm_tps", turns, nil) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return found, nil
}
