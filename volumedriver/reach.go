package volumedriver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A plugin is cut off when what it mounts does not show up on the engine's host. dockerd
// does that to one that it starts while it still tidies up after the last process: an
// exit lets enable go on first and unmounts the propagated mount then (moby
// plugin/manager.go, HandleExitEvent), which takes the new process's only peer away.
// A process that dockerd starts because its predecessor ended has it bound anew, and
// nothing is unmounted on the way, so that to end is what mends it.

const (
	// reachRestarts is how often a plugin may end for being cut off within reachPeriod.
	// dockerd unmounts what it found one by one, so once may not do; and where a restart
	// does not help, a plugin that refuses to mount is better than one that never serves.
	reachRestarts = 3
	reachPeriod   = time.Minute
	// reachPatience is longer than dockerd looks whether a plugin listens.
	reachPatience = 15 * time.Second
)

// AwaitCutOff waits until the plugin's mounts do not reach the host and it may end for
// that, and gives false when the context ends first.
func (d *Driver) AwaitCutOff(ctx context.Context) bool {
	if !d.cutOff() && !d.awaitLoss(ctx) {
		return false
	}
	recent := d.noteRestart(time.Now())
	switch {
	case recent < 0 || recent >= reachRestarts:
		d.log.Error("mounts do not reach the host, and a start of the plugin has not mended it; nothing is mounted any more")
		return false
	case recent == 0:
		return true
	}
	// dockerd waits for this process where it hears of exits, and would hear of this one
	// only when it has given up and disabled the plugin (plugin/manager_linux.go,
	// pluginPostStart).
	select {
	case <-ctx.Done():
		return false
	case <-d.reached:
	case <-time.After(reachPatience):
	}
	return true
}

// cutOff reports whether the plugin's mounts do not reach the host, by trying it.
func (d *Driver) cutOff() bool {
	reaches, err := d.mounter.Reaches(d.cfg.MountRoot)
	if err != nil {
		d.log.Warn("cannot tell whether mounts reach the host", "error", err)
		return false
	}
	return !reaches
}

// awaitLoss waits until the driver's own mount is gone, which goes with that of the
// host, and gives false when the context ends first.
func (d *Driver) awaitLoss(ctx context.Context) bool {
	// Not an os.File: the runtime polls those itself, and each change is told once only.
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(table)
	}
	for err == nil && ctx.Err() == nil {
		if there, err := d.mounter.Mounted(d.cfg.MountRoot); err == nil && !there {
			return true
		}
		// The kernel says POLLPRI at each change of the table (fs/proc_namespace.c, mounts_poll).
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}}, int(reachPeriod.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			err = nil
		}
	}
	if err != nil {
		d.log.Warn("cannot watch the mounts", "error", err)
	}
	return false
}

// noteRestart notes, in the folder of the pin file, that the plugin is about to end in
// order to be started again, and gives how often it has within the last reachPeriod. That
// is negative where the note cannot be kept.
func (d *Driver) noteRestart(now time.Time) (recent int) {
	if d.cfg.PinFile == "" {
		return -1
	}
	name := filepath.Join(filepath.Dir(d.cfg.PinFile), "restarts")
	raw, _ := os.ReadFile(name)
	var kept []string
	for _, line := range strings.Fields(string(raw)) {
		at, err := strconv.ParseInt(line, 10, 64)
		// A clock that went backwards makes none of them recent.
		if age := now.Sub(time.Unix(at, 0)); err == nil && age >= 0 && age < reachPeriod {
			kept = append(kept, line)
		}
	}
	if len(kept) >= reachRestarts {
		return len(kept)
	}
	lines := append(kept, strconv.FormatInt(now.Unix(), 10))
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return -1
	}
	return len(kept)
}
