package settle

import (
	"os"

	"golang.org/x/sys/unix"
)

// held keeps the staging volume's folder open as long as the process lives.
var held *os.File

// holdStage takes a lock on the staging volume, by which the plugin tells one that is
// being filled from one whose container is gone: an Unmount can be lost, and a bind
// mount cannot be probed. It is the volume's own folder on the host that is locked. Where
// there is no lock to be had the work goes on.
func holdStage(stage string) {
	f, err := os.Open(stage)
	if err != nil {
		return
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		f.Close()
		return
	}
	held = f
}
