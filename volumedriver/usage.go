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

// get gives the bytes that a volume owns in its trees: fresh where that takes a few
// milliseconds, else as of the last walk, and 0 before the first has ended. clones says
// whether its files may share blocks with others.
func (c *usageCache) get(v *volume, trees []string, clones bool) int64 {
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
		go c.walk(u, trees, clones, u.walking)
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

func (c *usageCache) walk(u *usage, trees []string, clones bool, done chan struct{}) {
	start := time.Now()
	var bytes int64
	err := eachOwned(c.root, trees, clones, func(_ string, owned int64) { bytes += owned })
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		u.bytes = bytes
	}
	u.walked, u.took, u.walking = time.Now(), time.Since(start), nil
	close(done)
}

// eachOwned calls each with every file, folder and symbolic link of the trees and the
// bytes that it has allocated on its file system and, where there may be clones, shares
// with no other file. Hard links count once, and no link is followed. The path is below
// the tree, so it may come once for each tree.
func eachOwned(root *os.Root, trees []string, clones bool, each func(path string, owned int64)) error {
	var errs []error
	for _, tree := range trees {
		dir, err := openBeneath(root, tree, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		w := usageWalk{clones: clones, linked: map[uint64]bool{}, each: each}
		var st unix.Stat_t
		if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
			errs = append(errs, err, dir.Close())
			continue
		}
		each(".", st.Blocks*512)
		errs = append(errs, w.dir(dir, ""))
	}
	return errors.Join(errs...)
}

type usageWalk struct {
	clones bool
	// linked are the inodes with several names that are counted.
	linked map[uint64]bool
	each   func(path string, owned int64)
}

// add counts a file of an open folder.
func (w *usageWalk) add(dir int, name, path string, st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if w.linked[st.Ino] {
			return
		}
		w.linked[st.Ino] = true
	}
	owned := st.Blocks * 512
	if w.clones && owned > 0 && st.Mode&unix.S_IFMT == unix.S_IFREG {
		owned = max(0, owned-w.shared(dir, name))
	}
	w.each(path, owned)
}

// shared gives how many of a file's bytes are others' as well. The file system's count
// of blocks has all that it keeps for the file: extents past its end, what it holds
// ready for the next write into shared blocks, blocks of attributes. So what is shared
// is taken off, rather than what is not shared added up. Dirty pages are not written
// out for this: a look must not slow a server down.
func (w *usageWalk) shared(dir int, name string) int64 {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0 // it vanished
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	bytes, err := sharedBytes(f, false)
	if err != nil {
		return 0
	}
	return bytes
}

// dir adds what is in an open folder, and closes it. What vanishes meanwhile is not
// there.
func (w *usageWalk) dir(dir *os.File, path string) error {
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
		below := path + name
		w.add(fd, name, below, &st)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if err := w.dir(os.NewFile(uintptr(sub), name), below+"/"); err != nil {
			return err
		}
	}
	return nil
}
