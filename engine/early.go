package engine

import (
	"context"
	"sync"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// early is a helper whose container starts while the work before it still goes on: a
// container takes some tenths of a second to start, as long as the settle of a small
// seed takes.
type early struct {
	begin func() (*session, error)
	once  sync.Once
	// wanted is closed when the helper is to be taken or dropped, begun when session and
	// err are set and nothing else uses them.
	wanted, begun chan struct{}
	want          sync.Once
	// session is nil where err is not.
	session *session
	err     error
	began   time.Time
}

func (e *Engine) early(ctx context.Context, h helper) *early {
	return &early{
		begin:  func() (*session, error) { return e.begin(ctx, h) },
		wanted: make(chan struct{}), begun: make(chan struct{}), began: time.Now(),
	}
}

func (e *early) start() {
	e.once.Do(func() {
		go func() {
			defer close(e.begun)
			if e.session, e.err = e.begin(); e.err == nil {
				e.session.live(e.wanted)
			}
		}()
	})
}

// soonBefore is how early a helper starts. A connection that is silent for longer may
// not outlive what lies between here and the engine.
const soonBefore = 30 * time.Second

// live tells the agent that there is a caller, until done is closed.
func (s *session) live(done <-chan struct{}) {
	ticker := time.NewTicker(contract.RequestWithin / 6)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			// White space before the request. Where this fails, so will the request.
			_, _ = s.conn.Conn.Write([]byte("\n"))
		}
	}
}

// startSoon starts the helper when the work before it, of which done of total bytes are
// done, will end within soonBefore at the rate that it has had.
func (e *early) startSoon(done, total int64) {
	if done <= 0 || total <= 0 {
		return
	}
	left := time.Duration(float64(time.Since(e.began)) * float64(total-done) / float64(done))
	if left < soonBefore {
		e.start()
	}
}

// take starts the helper unless it has started, and waits until it has.
func (e *early) take() (*session, error) {
	e.start()
	e.want.Do(func() { close(e.wanted) })
	<-e.begun
	return e.session, e.err
}

// drop removes the helper's container, if there is one.
func (e *early) drop(ctx context.Context) {
	e.once.Do(func() { close(e.begun) })
	e.want.Do(func() { close(e.wanted) })
	<-e.begun
	if e.session != nil {
		e.session.drop(ctx)
		e.session = nil
	}
}
