package settle

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// writeback has the kernel begin to write what the freeze is through with, while it
// goes on: the disk would have nothing to do till the end, and then all of it. What the
// freeze has not reached is left alone, or it would be written twice. Nothing depends on
// it; the sync at the end is what makes the seed durable.
type writeback struct {
	root *os.Root // PGDATA
	// begun are the bytes of each relation that it has been asked for.
	begun map[string]int64
}

const (
	// behind is how far it stays behind VACUUM, whose pages are in its ring and in the
	// private server's shared_buffers for a while.
	behind = 16 << 20
	// segmentBytes is the size of a relation's files (RELSEG_SIZE); with another one nothing
	// is found or less is asked for.
	segmentBytes = 1 << 30
)

// upTo asks for the relation of that file below PGDATA to be written up to that byte.
func (w *writeback) upTo(path string, end int64) {
	end -= behind
	for at := w.begun[path]; at < end; {
		segment := at / segmentBytes
		stop := min(end, (segment+1)*segmentBytes)
		name := path
		if segment > 0 {
			name += "." + strconv.FormatInt(segment, 10)
		}
		f, err := w.root.Open(name)
		if err != nil {
			return
		}
		_ = unix.SyncFileRange(int(f.Fd()), at-segment*segmentBytes, stop-at, unix.SYNC_FILE_RANGE_WRITE)
		f.Close()
		at = stop
		w.begun[path] = at
	}
}
