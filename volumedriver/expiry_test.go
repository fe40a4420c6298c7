package volumedriver

import (
	"testing"
	"time"

	"gotest.tools/v3/assert"
)

func TestExpiry(t *testing.T) {
	made := moment{wall: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), boot: "first", up: time.Hour}
	m := &branchMeta{TTL: 24 * time.Hour, Created: made.wall, Boot: made.boot, Up: made.up}
	for name, c := range map[string]struct {
		wall time.Duration
		boot string
		up   time.Duration
		want bool
	}{
		"at once":                           {0, "first", 0, false},
		"an instant before":                 {24*time.Hour - 1, "first", 24*time.Hour - 1, false},
		"when it is over":                   {24 * time.Hour, "first", 24 * time.Hour, true},
		"the clock went backwards":          {-100 * time.Hour, "first", 48 * time.Hour, false},
		"the clock jumped ahead":            {1000 * time.Hour, "first", time.Minute, false},
		"the clock jumped, and it is over":  {1000 * time.Hour, "first", 25 * time.Hour, true},
		"after another boot":                {25 * time.Hour, "second", 0, true},
		"backwards, and after another boot": {-time.Hour, "second", 0, false},
	} {
		now := moment{wall: made.wall.Add(c.wall), boot: c.boot, up: made.up + c.up}
		assert.Equal(t, m.expired(now), c.want, name)
	}
	m.TTL = 0
	assert.Assert(t, !m.expired(moment{wall: made.wall.Add(1e6 * time.Hour)}), "one without a term")
}

// A plugin reads both clocks where it runs.
func TestClockNow(t *testing.T) {
	a := clockNow()
	time.Sleep(time.Millisecond)
	b := clockNow()
	assert.Assert(t, a.boot != "" && a.boot == b.boot && b.up > a.up && b.wall.After(a.wall), "%+v %+v", a, b)
}
