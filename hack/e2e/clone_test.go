//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// budgetOneRow is the most that a one-row UPDATE of a big table and the CHECKPOINT may
// add to a branch where a copy-up clones, in bytes.
const budgetOneRow = 64 << 10

// oneRow updates a row of the big table and gives by how much the branch grew. What the
// first session and the first transaction cost any branch comes before; no DDL, which
// makes the next session write the database's pg_internal.init anew, about 190 KiB.
func oneRow(t *testing.T, name string) int64 {
	t.Helper()
	owned := func() int64 {
		time.Sleep(200 * time.Millisecond) // a figure may be that old
		n, err := strconv.ParseInt(pgbranch(t, "inspect", "-f", "{{.ownedBytes}}", name), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	sql(t, name, "shop", "SELECT pg_current_xact_id()", "SELECT count(*) FROM big WHERE id = 7", "CHECKPOINT")
	command("", "sync", "-f", dataRoot(t))
	before := owned()
	sql(t, name, "shop", "UPDATE big SET grp = -7 WHERE id = 500000", "CHECKPOINT")
	command("", "sync", "-f", dataRoot(t))
	after := owned()
	t.Logf("owned %d KiB before, %d KiB after", before>>10, after>>10)
	return after - before
}

// On a disk that copies, the first write to a table costs its file, once, and not again.
func TestOneRowCopiesTheSegmentOnce(t *testing.T) {
	name := prefix + "onecopy"
	branch(t, name, mainSeed(t))
	size := func(of string) int64 {
		n, err := strconv.ParseInt(sql(t, name, "shop", "SELECT "+of+"('big')"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// The table's pages are full, so the new row goes to another, and into the index.
	segment, whole := size("pg_relation_size"), size("pg_total_relation_size")
	if mode := pgbranch(t, "ls", "--filter", "name="+name, "--format", "{{.CopyUp}}"); mode != "copy" {
		t.Fatalf("the data root of these tests lies on a disk that copies, and ls says %q", mode)
	}
	grown := oneRow(t, name)
	if grown < segment || grown > whole+budgetOneRow+whole/100 {
		t.Errorf("the update of a row of a table of %d KiB added %d KiB", segment>>10, grown>>10)
	}
	if again := oneRow(t, name); again > budgetOneRow {
		t.Errorf("the second update added %d KiB", again>>10)
	}
}

// Seeds and branches on a disk that clones: the plugin's data root lies there.
func TestOneRowOnADiskThatClones(t *testing.T) {
	seed := mainSeed(t)
	for line := range strings.Lines(docker(t, "volume", "ls", "-q", "--filter", "driver=pgoverlay:latest")) {
		if name := strings.TrimSpace(line); !strings.HasPrefix(name, prefix) && !strings.HasPrefix(name, "demo") {
			t.Fatalf("the volume %s is not of these tests, and the engine would forget its labels", name)
		}
	}
	remove := func() {
		docker(t, "plugin", "disable", "-f", "pgoverlay")
		docker(t, "plugin", "rm", "-f", "pgoverlay")
	}
	remove()
	t.Cleanup(func() {
		pgbranch(t, "setup")
		if seedRef(prefix+"shop") != seed {
			t.Error("the seed of the first data root is not back")
		}
	})
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			at := loopMount(t, kind)
			t.Cleanup(remove)
			if out := pgbranch(t, "setup", "--data", at); !strings.Contains(out, "data on "+kind) || !strings.Contains(out, "clone") {
				t.Errorf("setup says %q", out)
			}
			ref := makeSeed(t, startSource(t, "postgres:17", bigRows), prefix+"clones-"+kind)
			name := prefix + "onclone"
			branch(t, name, ref)
			if mode := pgbranch(t, "ls", "--filter", "name="+name, "--format", "{{.CopyUp}} {{.Cow}}"); mode != "clone lazyrw" {
				t.Errorf("ls says %q", mode)
			}
			if grown := oneRow(t, name); grown > budgetOneRow {
				list, _ := df(t, name)
				t.Errorf("the update of a row added %d KiB, the budget is %d\n%+v", grown>>10, budgetOneRow>>10, list)
			}
			pgbranch(t, "rm", "-f", name)
			pgbranch(t, "seed", "rm", ref)
		})
	}
}

// loopMount makes a file system of 2 GiB and mounts it.
func loopMount(t *testing.T, kind string) string {
	t.Helper()
	dir := t.TempDir()
	disk, at := filepath.Join(dir, "disk"), filepath.Join(dir, "mnt")
	for _, err := range []error{os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 2<<30), os.Mkdir(at, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if r := command("", "mkfs."+kind, "-q", "-f", disk); r.code != 0 {
		t.Fatal(r.stderr)
	}
	if r := command("", "mount", "-o", "loop", disk, at); r.code != 0 {
		t.Fatal(r.stderr)
	}
	t.Cleanup(func() {
		if r := command("", "umount", at); r.code != 0 {
			t.Errorf("umount: %s", r.stderr)
		}
	})
	return at
}
