//go:build e2e

package shimtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cloned is FILE_COPY with 18's file_copy_method=clone: copy_file_range, which XFS and btrfs do without copying.
const cloned = "FILE_COPY by cloning"

// The database that is copied: its table, and the catalogs of any.
const copiedBytes = 16 << 20

// bytesWritten is what has gone to the block device that the rig's disk is on.
func (r *rig) bytesWritten(t *testing.T) int64 {
	t.Helper()
	run(t, "sync", "-f", r.disk)
	device := filepath.Base(strings.TrimSpace(run(t, "findmnt", "-no", "SOURCE", r.disk)))
	text, err := os.ReadFile("/sys/block/" + device + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text))
	var sectors int64
	if _, err := fmt.Sscan(fields[6], &sectors); err != nil { // Documentation/block/stat.rst: write sectors, of 512 bytes
		t.Fatal(err)
	}
	return sectors * 512
}

// testCreateDatabase (also case C99): the copy of a database whose rows have changed since the seed is that database, by each
// strategy, and has a branch write at most a tenth more than a plain directory. The short form does not count: it fsyncs nothing.
func testCreateDatabase(t *testing.T, p pair, strategies ...string) {
	for _, c := range p.both() {
		c.in(t, "other", "UPDATE rows SET v = v + 1 WHERE id % 100 = 0", "CHECKPOINT")
	}
	inBranch := map[string]int64{}
	for n, strategy := range strategies {
		name := fmt.Sprintf("copy_%d", n)
		var written [2]int64
		for i, c := range p.both() {
			do := []string{"CREATE DATABASE " + name + " TEMPLATE other STRATEGY " + strategy, "CHECKPOINT"}
			if strategy == cloned {
				do = []string{"SET file_copy_method = clone", "CREATE DATABASE " + name + " TEMPLATE other STRATEGY FILE_COPY", "CHECKPOINT"}
			}
			before := p.r.bytesWritten(t)
			c.in(t, "postgres", do...)
			written[i] = p.r.bytesWritten(t) - before
		}
		if long() {
			boundWritten(t, strategy, written[0], written[1])
			inBranch[strategy] = written[0]
		}
		p.requireEqual(t, name)
		if digest(t, p.branch, name) != digest(t, p.branch, "other") {
			t.Errorf("%s is not its template", name)
		}
	}
	// btrfs writes 33 MB of its trees for 305 clones, each fsynced by itself; what a clone spares is the data.
	if by, ok := inBranch[cloned]; ok && inBranch["FILE_COPY"]-by < copiedBytes {
		t.Errorf("a branch is written %d bytes by a clone, and %d by a copy", by, inBranch["FILE_COPY"])
	}
}

func boundWritten(t *testing.T, strategy string, branch, twin int64) {
	t.Helper()
	ratio := float64(branch) / float64(twin)
	fmt.Printf("  %-32s wrote %d KiB in the branch, %d in the twin: %.3f\n", strategy, branch/1024, twin/1024, ratio)
	if ratio > 1.1 {
		t.Errorf("%s: %.3f times what a plain directory writes", strategy, ratio)
	}
	if strategy != cloned && twin < copiedBytes {
		t.Errorf("%s: the plain directory was written %d bytes, less than the database has", strategy, twin)
	}
}
