package main

import (
	"math"
	"slices"
)

// Verdicts on a Budget.
const (
	Pass         = "PASS"
	Fail         = "FAIL"
	Inconclusive = "INCONCLUSIVE"
	NotMeasured  = "not measured"
)

// summary is of one list of numbers.
type summary struct {
	n                int
	median, min, max float64
	// low and high bound the median with a confidence of at least 95 %; with fewer than
	// six numbers there is no such bound, and they are infinite.
	low, high float64
}

func summarise(values []float64) summary {
	s := summary{n: len(values), low: math.Inf(-1), high: math.Inf(1)}
	if s.n == 0 {
		s.median, s.min, s.max = math.NaN(), math.NaN(), math.NaN()
		return s
	}
	v := slices.Clone(values)
	slices.Sort(v)
	s.median, s.min, s.max = (v[(s.n-1)/2]+v[s.n/2])/2, v[0], v[s.n-1]
	if k := signRank(s.n); k > 0 {
		s.low, s.high = v[k-1], v[s.n-k]
	}
	return s
}

// signRank gives the largest k for which the k-th smallest and k-th largest of n numbers
// hold the median between them with a confidence of 95 %: of a binomial distribution
// with p = 1/2, twice the lower tail below k must stay below 5 %. It is 0 where no k will.
func signRank(n int) int {
	tail, k := 0.0, 0
	for i := 0; i < n/2; i++ {
		tail += binomial(n, i) * math.Pow(0.5, float64(n))
		if 2*tail >= 0.05 {
			break
		}
		k = i + 1
	}
	return k
}

func binomial(n, k int) float64 {
	c := 1.0
	for i := range k {
		c = c * float64(n-i) / float64(i+1)
	}
	return c
}

// paired gives the ratios of two series, round by round, where both have one.
func paired(of, over map[int]float64) []float64 {
	var rounds []int
	for round := range of {
		if base, ok := over[round]; ok && base > 0 {
			rounds = append(rounds, round)
		}
	}
	slices.Sort(rounds)
	ratios := make([]float64, len(rounds))
	for i, round := range rounds {
		ratios[i] = of[round] / over[round]
	}
	return ratios
}

// judge holds a summary against a limit. Counts of bytes do not scatter by chance, so
// every single one must keep it; of times the bounds of the median must lie on one side.
func judge(s summary, limit float64, atLeast, counted bool) string {
	if s.n == 0 {
		return NotMeasured
	}
	low, high := s.low, s.high
	if counted {
		low, high = s.max, s.max
		if atLeast {
			low, high = s.min, s.min
		}
	}
	switch {
	case !atLeast && high <= limit, atLeast && low >= limit:
		return Pass
	case !atLeast && low > limit, atLeast && high < limit:
		return Fail
	}
	return Inconclusive
}
