package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"
)

func TestEarlyStartsInTheLastHalfMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := 0
		e := (&Engine{}).early(t.Context(), helper{})
		e.begin = func() (*session, error) {
			started++
			return nil, &Error{Cause: "begun"}
		}
		e.startSoon(0, 100)
		time.Sleep(time.Minute)
		e.startSoon(50, 100) // another minute
		synctest.Wait()
		assert.Equal(t, started, 0)
		e.startSoon(70, 100) // 26 seconds
		e.startSoon(80, 100)
		synctest.Wait()
		assert.Equal(t, started, 1)
		_, err := e.take()
		assert.ErrorContains(t, err, "begun")
		e.drop(t.Context())
		assert.Equal(t, started, 1)

		never := (&Engine{}).early(t.Context(), helper{})
		never.drop(t.Context())
		assert.Assert(t, never.session == nil)
	})
}
