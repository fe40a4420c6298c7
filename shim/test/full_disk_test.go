//go:build e2e

package shimtest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A VACUUM that truncates a seed's table needs a copy of the file first. On a full disk that is a PANIC, which recovery
// repeats (catalog/storage.c, smgr_redo), so the server stays down until there is space. This shows that nothing is lost
// by it: the log says whose space is wanted, and with it the branch starts again and has its rows.
func TestNoSpaceToTruncate(t *testing.T) {
	s := debianServers(t)[0]
	r := newRig(t, "ext4")
	sockets := t.TempDir()
	for dir := sockets; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	makeSeed(t, r, s, sockets)
	seed := &cluster{server: s, data: dataDir(r.path("seed"), s.major), sockets: sockets}
	seed.start(t, "shared_buffers=64MB")
	seed.in(t, "postgres",
		"CREATE TABLE tail WITH (vacuum_truncate = off) AS SELECT * FROM big",
		"DELETE FROM tail WHERE id > 1000",
		"VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) tail",
		"VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) tail",
		"ALTER TABLE tail RESET (vacuum_truncate)",
		"VACUUM (FREEZE) pg_class", "CHECKPOINT")
	seed.stop(t)

	b := &cluster{server: s, data: dataDir(r.volume, s.major), sockets: sockets, preload: r.preload()}
	r.branch(t)
	b.start(t)
	conn := b.connect(t, "postgres")
	if n := query[int64](t, conn, "SELECT count(*) FROM tail"); n != 1000 {
		t.Fatalf("%d rows before", n)
	}
	file := query[string](t, conn, "SELECT pg_relation_filepath('tail')")
	exe(t, conn, "CREATE TABLE mine AS SELECT 1", "CHECKPOINT") // so that the WAL is the branch's own, as in a branch of the plugin's
	filler := fillDisk(t, r, 6<<20)
	_, err := conn.Exec(context.Background(), "VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) tail")
	if err == nil {
		t.Fatal("a truncation that had no space for its copy went well")
	}
	waitEnd(t, b)
	log := b.log.String()
	if !strings.Contains(log, "PANIC") || !strings.Contains(log, `lazyrw: no space to copy "`+filepath.Join(b.data, file)+`"`) {
		t.Errorf("the log says neither what failed nor whose space is wanted:\n%s", log)
	}

	again := *b
	again.log = &bytes.Buffer{}
	again.cmd = again.command(t, "postgres", again.settings()...)
	again.cmd.Stdout, again.cmd.Stderr = again.log, again.log
	if err := again.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitEnd(t, &again)
	if !strings.Contains(again.log.String(), "lazyrw: no space to copy") {
		t.Errorf("a start without space: %s", again.log)
	}

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	b.start(t)
	conn = b.connect(t, "postgres")
	if n := query[int64](t, conn, "SELECT count(*) FROM tail"); n != 1000 {
		t.Errorf("%d rows after", n)
	}
	if size, was := query[int64](t, conn, "SELECT pg_relation_size('tail')"), int64(2<<20); size >= was {
		t.Errorf("the table has %d bytes: it was not truncated", size)
	}
	closeConn(t, conn)
	b.stop(t)
}

// fillDisk leaves that many bytes free for an ordinary user.
func fillDisk(t *testing.T, r *rig, leave int64) string {
	t.Helper()
	var disk syscall.Statfs_t
	if err := syscall.Statfs(r.disk, &disk); err != nil {
		t.Fatal(err)
	}
	name := r.path("filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// The kernel copies up with the mounter's own powers, and so into what is reserved for root, but nobody gets what
	// ext4 keeps for itself (4096 clusters at most; fs/ext4/super.c, ext4_calculate_resv_clusters).
	const reserved = 4096 * 4096
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(disk.Bfree)*disk.Bsize-reserved-leave); err != nil {
		t.Fatal(err)
	}
	return name
}

// waitEnd waits for a server that ends by itself.
func waitEnd(t *testing.T, c *cluster) {
	t.Helper()
	done := make(chan struct{})
	go func() { _ = c.cmd.Wait(); close(done) }() // it ends with an error: that is what is waited for
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		killTree(c.cmd.Process.Pid)
		t.Fatalf("the server goes on:\n%s", c.log)
	}
}
