//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// manyTables is more than a server of default settings can lock at once: 64 locks for
// each of 100 connections, and some spare. No transaction could lock so many large objects.
const (
	manyTables  = 100_000
	manyObjects = 1_000_000
)

// Very many tables and large objects come over by a base backup, by a dump of all, and by
// one in a single transaction: the restore's server has locks for it. A source that has
// not for pg_dump is told of.
func TestLongManyTables(t *testing.T) {
	ready(t)
	name := prefix + "many"
	docker(t, "network", "create", name)
	run := func(locks int) {
		docker(t, "run", "-d", "--name", name, "--network", name, "-e", "POSTGRES_PASSWORD="+password, "-v", name+":/var/lib/postgresql/data",
			"-e", "POSTGRES_INITDB_ARGS=--no-sync", "postgres:17", "postgres", "-c", "fsync=off", "-c", fmt.Sprintf("max_locks_per_transaction=%d", locks))
		waitFor(t, 5*time.Minute, "the source answers over TCP", func() bool {
			return command("", "docker", "exec", name, "pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres").code == 0
		})
	}
	run(64)
	var fill strings.Builder
	fill.WriteString("CREATE DATABASE many;\n\\c many\n")
	for i := range manyTables {
		fmt.Fprintf(&fill, "CREATE TABLE t%d AS SELECT %d AS id;\n", i, i)
	}
	fmt.Fprintf(&fill, "SELECT count(lo_create(0)) FROM generate_series(1, %d);\n", manyObjects)
	if r := command(fill.String(), "docker", "exec", "-i", name, "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-U", "postgres"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	from := []string{"--from", "postgres://postgres@" + name + "/many", "--network", name, "--logical", "--password-stdin"}
	before := state(t)
	r := seedOfDump(t, password+"\n", prefix+"bad", from...)
	if r.code != 6 {
		t.Errorf("exit %d", r.code)
	}
	requireRefusal(t, r, before, []string{"out of shared memory", "raise max_locks_per_transaction on the source"})

	docker(t, "rm", "-f", name)
	run(2048)
	one := docker(t, "exec", name, "pg_dump", "-U", "postgres", "-d", "many", "--no-large-objects")
	const objects = "SELECT count(*) FROM pg_largeobject_metadata"
	for _, c := range []struct {
		way, stdin, objects string
		flags               []string
	}{
		{"backup", password + "\n", "1000000", []string{"--from", "postgres://postgres@" + name + "/many", "--network", name, "--password-stdin"}},
		{"logical", password + "\n", "1000000", from},
		{"transaction", "BEGIN;\n" + one + "\nCOMMIT;\n", "0", []string{"--from-dump", "-", "--database", "many"}},
	} {
		seed := prefix + "many-" + c.way
		began := time.Now()
		r = seedOfDump(t, c.stdin, seed, c.flags...)
		if r.code != 0 || strings.Contains(r.stderr, "failed") {
			t.Fatalf("%s: exit %d", c.way, r.code)
		}
		t.Logf("%s: %d tables and %s large objects in %s", c.way, manyTables, c.objects, time.Since(began))
		branch(t, seed+"-b", seed)
		if got := sql(t, seed+"-b", "many", "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", "SELECT id FROM t99999", objects); got != "100000\n99999\n"+c.objects {
			t.Errorf("%s: the branch holds %s", c.way, got)
		}
	}
}

// A dump of each major, in each format, goes into each image: restored whole where the
// image is as new as the dump, refused with the image to take where it is older. npm's
// majors have the clients of Debian's 17, whose archives no older pg_restore reads.
func TestLongDumpsOfEachMajor(t *testing.T) {
	images, clients := map[int]string{}, map[int]int{14: 17, 15: 15, 16: 17, 17: 17, 18: 18}
	for major := range clients {
		images[major] = fmt.Sprintf("postgres:%d", major)
		if clients[major] != major {
			images[major] = npmImage(t, "postgres:17", fmt.Sprint(major))
		}
	}
	// The archive formats of these clients (K_VERS_1_14 and K_VERS_1_16 in pg_backup_archiver.h).
	readers := map[int]int{15: 14, 17: 17, 18: 17}
	restored, refused := 0, 0
	for source := 14; source <= 18; source++ {
		s := startDumpSource(t, images[source])
		s.dump(t, "pg_dump", "-U", "postgres", "-d", "dumped", "-Fd", "-f", "/tmp/dir")
		dir := filepath.Join(t.TempDir(), "dir")
		docker(t, "cp", s.container+":/tmp/dir", dir)
		dumps := map[string]string{
			"plain":     writeDump(t, "shop.sql.gz", s.dump(t, "sh", "-c", "pg_dump -U postgres -d dumped -C | gzip")),
			"custom":    writeDump(t, "shop.dump", s.pgDump(t, "-Fc")),
			"tar":       writeDump(t, "shop.tar", s.pgDump(t, "-Ft")),
			"directory": dir,
		}
		for image := 14; image <= 18; image++ {
			for format, dump := range dumps {
				least := source
				if format != "plain" {
					least = max(source, readers[clients[source]])
				}
				name := fmt.Sprintf("%s%d-%s-in-%d", prefix, source, format, image)
				before := state(t)
				r := seedOfDump(t, "", name, "--from-dump", dump, "--image", images[image])
				if image < least {
					refused++
					if r.code != 2 {
						t.Errorf("%s: exit %d", name, r.code)
					}
					requireRefusal(t, r, before, []string{fmt.Sprintf("use --image postgres:%d", least)})
					continue
				}
				restored++
				if r.code != 0 {
					t.Errorf("%s: exit %d", name, r.code)
					continue
				}
				s.requireFacts(t, name)
				pgbranch(t, "rm", "-f", name+"-b")
				pgbranch(t, "seed", "rm", name)
			}
		}
		docker(t, "rm", "-f", "-v", s.container)
		delete(dumpSources.made, images[source])
	}
	t.Logf("%d restored, %d refused", restored, refused)
	if restored != 48 || refused != 52 {
		t.Error("48 were to be restored and 52 refused")
	}
}
