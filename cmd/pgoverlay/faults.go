//go:build faults

package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// A build with the tag "faults" is for tests: it dies, or waits, at a step of an
// operation. No other build carries any of this.
func init() { step = faultAt }

// faultAt obeys the order in contract.FaultFile: "N abort", or "N sleep DURATION", at
// the N-th step from now. The step's name is left in contract.FaultHit, and the order is
// taken away first, so that the plugin that dockerd starts next does not obey it too.
func faultAt(name string) {
	order, err := os.ReadFile(contract.FaultFile)
	if err != nil {
		return
	}
	count, what, _ := strings.Cut(strings.TrimSpace(string(order)), " ")
	var n int
	if _, err := fmt.Sscan(count, &n); err != nil {
		panic(fmt.Sprintf("%s: %q: %v", contract.FaultFile, order, err))
	}
	if n > 1 {
		must(os.WriteFile(contract.FaultFile, fmt.Appendf(nil, "%d %s", n-1, what), 0o600))
		return
	}
	must(os.Remove(contract.FaultFile))
	must(os.WriteFile(contract.FaultHit, []byte(name), 0o600))
	if wait, ok := strings.CutPrefix(what, "sleep "); ok {
		d, err := time.ParseDuration(wait)
		must(err)
		time.Sleep(d)
		return
	}
	// The first process of a pid namespace gets no signal from inside, not even SIGKILL.
	os.Exit(137)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
