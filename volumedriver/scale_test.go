package volumedriver

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
)

// populate puts n branches on disk without the fsyncs of a create.
func (b *bench) populate(n int) {
	b.t.Helper()
	seed := b.volume("shop@1")
	for i := range n {
		id := newID()
		dir := path.Join(branchesDir, id)
		assert.NilError(b.t, b.d.store.root.Mkdir(dir, 0o700))
		assert.NilError(b.t, b.d.store.makeUpper(dir, path.Join(seed.dir(), rootDir), ""))
		m := branchMeta{Format: storeFormat, ID: id, Name: fmt.Sprintf("branch-%04d", i), SeedID: seed.id, Seed: "shop",
			Generation: 1, Asked: "seed=shop", Cow: "auto", Created: time.Now().UTC()}
		assert.NilError(b.t, replaceFile(b.d.store.root, path.Join(dir, metaFile), m, false))
	}
}

// median runs f n times and gives the time in the middle.
func median(n int, f func()) time.Duration {
	var times []time.Duration
	for range n {
		start := time.Now()
		f()
		took := time.Since(start)
		at := 0
		for at < len(times) && times[at] < took {
			at++
		}
		times = append(times[:at], append([]time.Duration{took}, times[at:]...)...)
	}
	return times[n/2]
}

func TestThousandBranches(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	one := median(9, func() { b.mustCreate("c-"+newID(), "seed", "shop") })
	b.populate(1000)
	unix.Sync() // or the creates below wait for what populate left to write
	// The fastest of five: what else the machine does can only add.
	opened := time.Hour
	for range 5 {
		opened = min(opened, median(1, func() { b.restart() }))
	}
	assert.Check(t, opened < 500*time.Millisecond, "dockerd dials a plugin after half a second: %v", opened)
	list := median(9, func() { assert.Equal(t, len(b.d.List()), 1000+1+9) })
	assert.Check(t, list < 100*time.Millisecond, "%v", list)
	get := median(99, func() { b.status("branch-0500") })
	assert.Check(t, get < 5*time.Millisecond, "%v", get)
	seed := median(9, func() { b.status("shop@1") })
	assert.Check(t, seed < 5*time.Millisecond, "%v", seed)
	many := median(9, func() { b.mustCreate("c-"+newID(), "seed", "shop") })
	t.Logf("open %v, List %v, Get of a branch %v, of the seed %v, create with 1 branch %v, with 1000 %v", opened, list, get, seed, one, many)
}

// createRatioGate is the budget of a create among a thousand branches over one among few.
const createRatioGate = 1.1

// TestCreateAmongMany makes branches in a store with one and in a store with a thousand,
// in turns. A create is mostly fsync, which waits for whatever else the disk is given;
// what grows with the branches shows in every series, what the machine does not.
func TestCreateAmongMany(t *testing.T) {
	few, many := newBench(t), newBench(t)
	for _, b := range []*bench{few, many} {
		b.seal("shop")
	}
	many.populate(1000)
	unix.Sync()
	many.restart()
	idle := "c-" + newID()
	few.mustCreate(idle, "seed", "shop")
	ratio := 0.0
	for range 8 {
		unix.Sync()
		if ratio = createRatio(t, few, many); ratio < createRatioGate {
			break
		}
	}
	assert.Check(t, ratio < createRatioGate, "%.2f", ratio)

	// What an idle branch occupies, the WAL head that it is born with included.
	v := few.volume(idle)
	inodes, bytes := 0, int64(0)
	assert.NilError(t, filepath.WalkDir(few.path(v.dir()), func(name string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			inodes++
			err = unix.Lstat(name, &st)
			bytes += st.Blocks * 512
		}
		return err
	}))
	t.Logf("an idle branch has %d inodes and %d bytes", inodes, bytes)
	assert.Check(t, inodes <= 9 && bytes <= 64<<10)
}

// createRatio is the median time of a create in many over that in few, of 21 each.
func createRatio(t *testing.T, few, many *bench) float64 {
	t.Helper()
	times := map[*bench][]time.Duration{}
	for round := range 21 {
		order := []*bench{few, many}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, b := range order {
			start := time.Now()
			b.mustCreate("c-"+newID(), "seed", "shop")
			times[b] = append(times[b], time.Since(start))
		}
	}
	middle := func(b *bench) time.Duration {
		slices.Sort(times[b])
		return times[b][len(times[b])/2]
	}
	ratio := float64(middle(many)) / float64(middle(few))
	t.Logf("create among 1000 branches %v, among few %v: ratio %.2f", middle(many), middle(few), ratio)
	return ratio
}

// TestGetWaitsForNoWalk gives Get a volume whose size takes long to find out.
func TestGetWaitsForNoWalk(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	// The fastest of three: what else the machine does can only add.
	fastest := time.Hour
	for _, name := range []string{"b3", "b2", "b1"} {
		b.mustCreate(name, "seed", "shop")
		upper := b.path(b.volume(name).tree())
		for i := range 12 {
			dir := filepath.Join(upper, fmt.Sprint(i))
			assert.NilError(t, os.Mkdir(dir, 0o700))
			for j := range 500 {
				assert.NilError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), nil, 0o600))
			}
		}
		fastest = min(fastest, median(1, func() { b.status(name) }))
	}
	assert.Check(t, fastest < 50*time.Millisecond, "%v", fastest)
	for deadline := time.Now().Add(10 * time.Second); b.status("b1").OwnedBytes < 12*4096; {
		assert.Assert(t, time.Now().Before(deadline), "the figure never comes")
		time.Sleep(10 * time.Millisecond)
	}
}

// A hundred branches, each with the files that one owns after some work, are measured
// in less than a second.
func TestHundredBranchesAreMeasuredAtOnce(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.populate(100)
	b.restart()
	for i := range 100 {
		dir := filepath.Join(b.path(b.volume(fmt.Sprintf("branch-%04d", i)).tree()), "base")
		assert.NilError(t, os.Mkdir(dir, 0o700))
		for j := range 60 {
			assert.NilError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), []byte("x"), 0o600))
		}
	}
	took := median(3, func() {
		for i := range 100 {
			files, err := b.d.filesOwned(fmt.Sprintf("branch-%04d", i))
			assert.NilError(t, err)
			assert.Assert(t, len(files) > 60)
		}
	})
	t.Logf("100 branches in %v", took)
	assert.Check(t, took < time.Second, "%v", took)
}
