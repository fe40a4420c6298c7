package volumedriver

import (
	"os"
	"sync"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

const (
	// usagePatience is how long Get waits for a fresh figure before it takes the last.
	usagePatience = 4 * time.Millisecond
	// usageRest is the shortest time between two walks of one tree; a walk that took
	// longer is followed by a rest of usageShare times that.
	usageRest  = 100 * time.Millisecond
	usageShare = 10
)

// usageCache keeps what each volume has allocated on disk. Walks run outside of every
// lock, one at a time for a tree.
type usageCache struct {
	root *os.Root
	mu   sync.Mutex
	// known is by volume id; guarded by mu.
	known map[string]*usage
}

type usage struct {
	bytes int64
	// walked is when the last walk ended, took what it took.
	walked time.Time
	took   time.Duration
	// walking is closed at the end of the walk that is under way; nil without one.
	walking chan struct{}
}

func newUsageCache(root *os.Root) *usageCache {
	return &usageCache{root: root, known: map[string]*usage{}}
}

// get gives the bytes that a volume owns: fresh where that takes a few
// milliseconds, else as of the last walk, and 0 before the first has ended.
func (c *usageCache) get(v *volume, g grounds) int64 {
	c.mu.Lock()
	u := c.known[v.id]
	if u == nil {
		u = &usage{}
		c.known[v.id] = u
	}
	rest := max(usageRest, usageShare*u.took)
	// A sealed tree never changes.
	fresh := !u.walked.IsZero() && (v.kind == contract.KindSeed || time.Since(u.walked) < rest)
	if !fresh && u.walking == nil {
		u.walking = make(chan struct{})
		go c.walk(u, g, u.walking)
	}
	walking := u.walking
	c.mu.Unlock()

	if !fresh {
		select {
		case <-walking:
		case <-time.After(usagePatience):
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return u.bytes
}

// forget drops what is known of a volume.
func (c *usageCache) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, id)
}

func (c *usageCache) walk(u *usage, g grounds, done chan struct{}) {
	start := time.Now()
	var bytes int64
	err := eachOwned(c.root, g, func(_ string, owned int64) { bytes += owned })
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		u.bytes = bytes
	}
	u.walked, u.took, u.walking = time.Now(), time.Since(start), nil
	close(done)
}
