package volumedriver

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// moment is a point in time by two clocks: the wall's, which a person or NTP may
// set, and the time since boot, which nobody can.
type moment struct {
	wall time.Time
	// boot is the kernel's id of this boot, empty if it cannot be read.
	boot string
	// up is the time since boot, suspended time included (CLOCK_BOOTTIME).
	up time.Duration
}

// clockNow reads both clocks.
func clockNow() moment {
	m := moment{wall: time.Now().UTC()}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var ts unix.Timespec
	if err == nil && unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) == nil {
		m.boot, m.up = strings.TrimSpace(string(boot)), time.Duration(ts.Nano())
	}
	return m
}

// expires is when the branch may be reaped by the wall clock, nil for never.
func (m *branchMeta) expires() *time.Time {
	if m.TTL == 0 {
		return nil
	}
	t := m.Created.Add(m.TTL)
	return &t
}

// expired reports whether the branch's time has come. A wall clock that went
// backwards expires nothing. One that jumped ahead, as when NTP first sets it on a
// machine without a battery, expires nothing either before the time is really over,
// as long as it is the boot in which the branch was made.
func (m *branchMeta) expired(now moment) bool {
	if m.TTL == 0 || now.wall.Before(m.Created.Add(m.TTL)) {
		return false
	}
	return m.Boot == "" || m.Boot != now.boot || now.up-m.Up >= m.TTL
}
