package settle

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// progressEvery bounds how often a stage reports its bytes: often enough for a
// bar that moves, too rarely for a busy pipe.
const progressEvery = 100 * time.Millisecond

// events writes the agent's events. It is safe for concurrent use. Write errors
// are not reported: they mean that the caller is gone, and the end of standard
// input says so.
type events struct {
	mu       sync.Mutex
	enc      *json.Encoder
	reported time.Time
	stage    string
}

func newEvents(w io.Writer) *events {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return &events{enc: enc}
}

// say reports one line for a person.
func (e *events) say(stage, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.enc.Encode(contract.AgentEvent{Stage: stage, Message: fmt.Sprintf(format, args...)})
}

// progress reports that done of total bytes of the stage are done. The first
// report of a stage and its last (done == total) always go out, others at most
// every progressEvery.
func (e *events) progress(stage string, done, total int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if stage == e.stage && done != total && time.Since(e.reported) < progressEvery {
		return
	}
	e.stage, e.reported = stage, time.Now()
	_ = e.enc.Encode(contract.AgentEvent{Stage: stage, Done: done, Total: total})
}

// last writes the answer.
func (e *events) last(answer contract.AgentEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.enc.Encode(answer)
}
