package volumedriver

import (
	"context"
	"sync"
)

// keyLock is a set of mutexes by name. dockerd's VolumesService.Mount and Unmount
// (volume/service/service.go) hold no lock while they call the plugin, so two
// requests for one volume do run at the same time.
type keyLock struct {
	mu   sync.Mutex
	held map[string]*keyEntry
}

type keyEntry struct {
	// token holds the one permission to go on.
	token chan struct{}
	// users counts who holds or waits; guarded by keyLock.mu.
	users int
}

// lock waits for the key until the context ends, and gives what releases it.
func (k *keyLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	if k.held == nil {
		k.held = map[string]*keyEntry{}
	}
	e := k.held[key]
	if e == nil {
		e = &keyEntry{token: make(chan struct{}, 1)}
		k.held[key] = e
	}
	e.users++
	k.mu.Unlock()

	leave := func() {
		k.mu.Lock()
		if e.users--; e.users == 0 {
			delete(k.held, key)
		}
		k.mu.Unlock()
	}
	select {
	case e.token <- struct{}{}:
		return func() { <-e.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
