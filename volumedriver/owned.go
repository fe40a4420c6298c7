package volumedriver

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// filesOwned lists what a branch owns, largest first. It takes no lock but to find the
// branch: what it does meanwhile may or may not be in it.
func (d *Driver) filesOwned(name string) ([]contract.FileUsage, error) {
	d.mu.Lock()
	v := d.volumes[name]
	if v == nil || v.kind != contract.KindBranch || v.phase == creating {
		d.mu.Unlock()
		return nil, refuse(named(contract.KindBranch, name), "does not exist", "see: docker pgbranch ls")
	}
	g := d.grounds(v)
	d.mu.Unlock()
	sums := map[string]int64{}
	err := eachOwned(d.store.root, g, func(path string, owned int64) {
		if owned > 0 {
			sums[path] += owned
		}
	})
	if err != nil {
		return nil, failed(v.object(), "measure it", err)
	}
	files := make([]contract.FileUsage, 0, len(sums))
	for path, owned := range sums {
		files = append(files, contract.FileUsage{Path: path, OwnedBytes: owned})
	}
	slices.SortFunc(files, func(a, b contract.FileUsage) int {
		return cmp.Or(cmp.Compare(b.OwnedBytes, a.OwnedBytes), strings.Compare(a.Path, b.Path))
	})
	return files, nil
}

// grounds are the folders below the data root that a volume's bytes lie in.
type grounds struct {
	// own are those whose content it shares with no other volume.
	own []string
	// below are those that it stands on with others, where the file system may share
	// blocks between their files and its own; nil where it may not.
	below []string
}

// eachOwned calls each with every file, folder and symbolic link of a volume and the
// bytes that it owns there: allocated on the file system and, where there may be clones,
// not shared with what it stands on. Hard links count once, and no link is followed. The
// path is below its tree, and may come more than once.
func eachOwned(root *os.Root, g grounds, each func(path string, owned int64)) error {
	w := usageWalk{clones: g.below != nil, linked: map[uint64]bool{}, each: each}
	err := w.trees(root, g.own)
	if !w.clones {
		return err
	}
	// Blocks that two files of the volume itself share, as a database that Postgres 18
	// copied does with its template, are shared and its own all the same.
	twice := coveredTwice(w.spans)
	if len(twice) == 0 {
		return err
	}
	below := usageWalk{clones: true, linked: map[uint64]bool{}, each: func(string, int64) {}}
	err = errors.Join(err, below.trees(root, g.below))
	for _, s := range without(twice, below.spans) {
		each(s.path, int64(s.end-s.start))
	}
	return err
}

type usageWalk struct {
	clones bool
	// linked are the inodes with several names that are counted.
	linked map[uint64]bool
	each   func(path string, owned int64)
	// spans are the shared blocks met.
	spans []span
}

func (w *usageWalk) trees(root *os.Root, trees []string) error {
	var errs []error
	for _, tree := range trees {
		dir, err := openBeneath(root, tree, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
			errs = append(errs, err, dir.Close())
			continue
		}
		w.each(".", st.Blocks*512)
		errs = append(errs, w.dir(dir, ""))
	}
	return errors.Join(errs...)
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
		owned = max(0, owned-w.shared(dir, name, path))
	}
	w.each(path, owned)
}

// shared gives how many of a file's bytes are others' as well. The file system's count
// of blocks has all that it keeps for the file: extents past its end, what it holds
// ready for the next write into shared blocks, blocks of attributes. So what is shared
// is taken off, rather than what is not shared added up. Dirty pages are not written
// out for this: a look must not slow a server down.
func (w *usageWalk) shared(dir int, name, path string) int64 {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0 // it vanished
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var bytes int64
	met := len(w.spans)
	err = extents(f, false, func(e fiemapExtent) {
		if e.Flags&fiemapExtentShared != 0 {
			bytes += int64(e.Length)
			w.spans = append(w.spans, span{e.Physical, e.Physical + e.Length, path})
		}
	})
	if err != nil {
		w.spans = w.spans[:met]
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

// span is a range of blocks of the file system, in bytes, with a file that has it.
type span struct {
	start, end uint64
	path       string
}

// coveredTwice gives what two or more spans cover, in order. It sorts its argument.
func coveredTwice(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	var twice []span
	// Up to once everything is covered at least once that ever will be, up to again twice.
	var once, again uint64
	for _, s := range spans {
		if from, to := max(s.start, again), min(s.end, once); from < to {
			twice = append(twice, span{from, to, s.path})
			again = to
		}
		once = max(once, s.end)
	}
	return twice
}

// without takes off what others cover. It sorts others.
func without(spans, others []span) []span {
	slices.SortFunc(others, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	var left []span
	first := 0
	for _, s := range spans {
		for first < len(others) && others[first].end <= s.start {
			first++
		}
		for _, o := range others[first:] {
			if o.start >= s.end {
				break
			}
			if o.start > s.start {
				left = append(left, span{s.start, o.start, s.path})
			}
			s.start = max(s.start, o.end)
			if s.start >= s.end {
				break
			}
		}
		if s.start < s.end {
			left = append(left, s)
		}
	}
	return left
}
