package volumedriver

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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

// get gives the allocated bytes of a volume's trees: fresh where that takes a few
// milliseconds, else as of the last walk, and 0 before the first has ended.
func (c *usageCache) get(v *volume, trees []string) int64 {
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
		go c.walk(u, trees, u.walking)
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

func (c *usageCache) walk(u *usage, trees []string, done chan struct{}) {
	start := time.Now()
	var bytes int64
	var err error
	for _, tree := range trees {
		n, walkErr := allocated(c.root, tree)
		bytes, err = bytes+n, errors.Join(err, walkErr)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		u.bytes = bytes
	}
	u.walked, u.took, u.walking = time.Now(), time.Since(start), nil
	close(done)
}

// allocated gives the bytes that a tree has allocated on its file system: files,
// folders and symbolic links, hard links once. It follows no link.
func allocated(root *os.Root, name string) (int64, error) {
	dir, err := openBeneath(root, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return 0, err
	}
	w := usageWalk{linked: map[uint64]bool{}}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		dir.Close()
		return 0, err
	}
	w.add(&st)
	err = w.dir(dir)
	return w.bytes, err
}

type usageWalk struct {
	bytes int64
	// linked are the inodes with several names that are counted.
	linked map[uint64]bool
}

func (w *usageWalk) add(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if w.linked[st.Ino] {
			return
		}
		w.linked[st.Ino] = true
	}
	w.bytes += st.Blocks * 512
}

// dir adds what is in an open folder, and closes it. What vanishes meanwhile is not
// there.
func (w *usageWalk) dir(dir *os.File) error {
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	fd := int(dir.Fd())
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		w.add(&st)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if err := w.dir(os.NewFile(uintptr(sub), name)); err != nil {
			return err
		}
	}
	return nil
}
