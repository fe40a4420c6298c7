//go:build e2e

package faults

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"gotest.tools/v3/assert"
)

// TestFiftyAtOnce makes fifty branches at the same time, each twice, and then removes
// their seed while others are made of it.
func TestFiftyAtOnce(t *testing.T) {
	r := newRig(t)
	prefix := fresh("b")
	var all sync.WaitGroup
	errs := make(chan error, 200)
	for i := range 50 {
		for range 2 {
			all.Go(func() {
				_, err := r.Try(createArgs(fmt.Sprintf("%s-%d", prefix, i), "seed="+seedName)...)
				errs <- err
			})
		}
	}
	all.Wait()
	close(errs)
	for err := range errs {
		assert.Check(t, err, "a repeated create is no error")
	}
	assert.Equal(t, len(r.Volumes()), 51)
	r.check()

	// Of two that give one name other options, one wins; docker answers the loser as if
	// it had, and only the plugin's own Status tells.
	name := fresh("b")
	for _, ttl := range []string{"1h", "2h"} {
		all.Go(func() { _, _ = r.Try(createArgs(name, "seed="+seedName, "ttl="+ttl)...) })
	}
	all.Wait()
	assert.Check(t, r.status(name).ExpiresAt != nil)

	// A seed that is removed while branches are made of it.
	seed, staging := fresh("gone"), fresh("s")
	r.create(staging, "staging="+seed)
	r.fill(staging)
	r.create(fresh("tk"), "op=seal", "volume="+staging)
	var made []string
	var mu sync.Mutex
	var removed error
	for range 8 {
		all.Go(func() {
			branch := fresh("b")
			if _, err := r.Try(createArgs(branch, "seed="+seed)...); err == nil {
				mu.Lock()
				defer mu.Unlock()
				made = append(made, branch)
			}
		})
	}
	all.Go(func() { _, removed = r.Try("volume", "rm", seed+"@1") })
	all.Wait()
	assert.Check(t, (removed == nil) == (len(made) == 0), "%v, and removed: %v", made, removed)
	for _, branch := range made {
		r.docker("run", "--rm", "--network", "none", "-v", branch+":/v", "--entrypoint", "cat", testImage, "/v/PG_VERSION")
	}
	if len(made) > 0 {
		r.docker(append([]string{"volume", "rm"}, made...)...)
		r.docker("volume", "rm", seed+"@1")
	}
	assert.Check(t, !strings.Contains(strings.Join(r.Volumes(), " "), seed))
}
