package main

import (
	"math"
	"testing"
)

func TestSignRank(t *testing.T) {
	// The table of the sign test, as in any book: n and the rank at 95 %.
	for n, want := range map[int]int{0: 0, 1: 0, 5: 0, 6: 1, 8: 1, 9: 2, 10: 2, 12: 3, 15: 4, 20: 6, 25: 8} {
		if got := signRank(n); got != want {
			t.Errorf("n=%d: rank %d, want %d", n, got, want)
		}
	}
}

func TestSummarise(t *testing.T) {
	s := summarise([]float64{3, 1, 2, 4})
	if s.n != 4 || s.median != 2.5 || s.min != 1 || s.max != 4 || !math.IsInf(s.high, 1) {
		t.Errorf("%+v", s)
	}
	s = summarise([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9})
	if s.median != 5 || s.low != 2 || s.high != 8 {
		t.Errorf("%+v", s)
	}
}

func TestJudge(t *testing.T) {
	tight := []float64{1.01, 1.02, 1.03, 1.02, 1.01, 1.02}
	wide := []float64{0.8, 1.4, 1.1, 0.9, 1.3, 1.2}
	for name, c := range map[string]struct {
		values           []float64
		limit            float64
		atLeast, counted bool
		want             string
	}{
		"below":           {tight, 1.05, false, false, Pass},
		"above":           {tight, 1.00, false, false, Fail},
		"across":          {wide, 1.05, false, false, Inconclusive},
		"too few":         {tight[:5], 1.05, false, false, Inconclusive},
		"at least, above": {tight, 0.98, true, false, Pass},
		"at least, below": {tight, 1.10, true, false, Fail},
		"bytes, one":      {[]float64{100}, 100, false, true, Pass},
		"bytes, one over": {[]float64{99, 101}, 100, false, true, Fail},
		"none":            {nil, 1, false, false, NotMeasured},
	} {
		if got := judge(summarise(c.values), c.limit, c.atLeast, c.counted); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestPairedTakesRoundsThatBothHave(t *testing.T) {
	got := paired(map[int]float64{0: 2, 1: 3, 3: 9}, map[int]float64{0: 1, 1: 2, 2: 5})
	if len(got) != 2 || got[0] != 2 || got[1] != 1.5 {
		t.Errorf("%v", got)
	}
}
