//go:build e2e

package shimtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/jackc/pgx/v5"
)

// The rounds of a short run; LZ_KILLS and LZ_CUTS (on each file system) make it longer.
const (
	shortKills = 6
	shortCuts  = 2
)

func rounds(t *testing.T, name string, short int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s: %q is no number of rounds", name, text)
	}
	return n
}

// crashServers are those between which the rounds are divided.
func crashServers(t *testing.T) []server {
	if os.Getenv("LZ_LONG") == "" {
		return []server{debianServers(t)[0]}
	}
	return []server{debianServers(t)[0], debianRoot(t, 17, "amd64"), debianRoot(t, 18, "amd64")}
}

// TestKilled ends the whole server in the middle of TPC-B, again and again, on one branch a server.
func TestKilled(t *testing.T) {
	servers := crashServers(t)
	for i, s := range servers {
		n := rounds(t, "LZ_KILLS", shortKills)
		n = n*(i+1)/len(servers) - n*i/len(servers)
		t.Run(fmt.Sprintf("%s, %d times", s.name, n), func(t *testing.T) {
			c := newCrash(t, s, []string{"ext4", "xfs", "btrfs"}[i%3])
			for range n {
				c.round(t, func() { c.b.kill(t) })
			}
			c.report(t)
		})
	}
}

// TestPowerCut cuts the power of the file system that everything is on: what is not in its log is gone.
func TestPowerCut(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs"} {
		servers := crashServers(t)
		for i, s := range servers {
			n := rounds(t, "LZ_CUTS", shortCuts)
			n = n*(i+1)/len(servers) - n*i/len(servers)
			t.Run(fmt.Sprintf("%s on %s, %d times", s.name, fstype, n), func(t *testing.T) {
				c := newCrash(t, s, fstype)
				for range n {
					c.round(t, func() {
						c.r.cutPower(t)
						c.b.kill(t)
						c.r.restorePower(t)
					})
				}
				c.report(t)
			})
		}
	}
}

// fsShutdown is FS_IOC_SHUTDOWN (include/uapi/linux/fs.h; ext4 and XFS have their own names for the number), and noLogFlush its
// argument that keeps what the log has in memory from the disk.
const (
	fsShutdown = 0x8004587d
	noLogFlush = uint32(2)
)

// cutPower stops the file system as a loss of power does: from here on all its input and output fails.
func (r *rig) cutPower(t *testing.T) {
	t.Helper()
	dir, err := os.Open(r.disk)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }() // for reading only
	flags := noLogFlush
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, dir.Fd(), fsShutdown, uintptr(unsafe.Pointer(&flags))); errno != 0 {
		t.Fatalf("shut down %s: %v", r.disk, errno)
	}
}

// restorePower mounts the file system again, which replays its log, and the branch as it is there.
func (r *rig) restorePower(t *testing.T) {
	t.Helper()
	for _, at := range []string{r.volume, r.disk} {
		err := syscall.Unmount(at, 0)
		for end := time.Now().Add(30 * time.Second); err == syscall.EBUSY && time.Now().Before(end); err = syscall.Unmount(at, 0) {
			time.Sleep(50 * time.Millisecond) // the last of the killed is still on its way out
		}
		if err != nil {
			t.Fatalf("unmount %s: %v", at, err)
		}
	}
	run(t, "mount", "-o", "loop", filepath.Join(filepath.Dir(r.disk), "image"), r.disk)
	r.mountBranch(t)
}

// A crash is a branch that is ended again and again, and what is known of it.
type crash struct {
	r *rig
	b *cluster

	acked, counted int64 // transactions of the witness: the last that was acknowledged in time, and how many were
	ended          int   // rounds
	history        int64 // transactions of pgbench that survived
	checked        int   // relations, by pg_amcheck
	owned          int   // relation files in the upper, most
}

// The scale of pgbench: 2 makes 26 MB of accounts.
const scale = 2

func newCrash(t *testing.T, s server, fstype string) *crash {
	r, sockets := newRig(t, fstype), socketDir(t)
	makeSeed(t, r, s, sockets, func(c *cluster) {
		pgbench(t, c, "--initialize", "--quiet", "--scale", fmt.Sprint(scale))
		c.in(t, "postgres", "CREATE TABLE witness (id bigint PRIMARY KEY, pad text)", "CREATE TABLE untouched AS SELECT * FROM big")
	})
	r.branch(t)
	c := &crash{r: r, b: &cluster{server: s, data: dataDir(r.volume, s.major), sockets: sockets, preload: r.preload()}}
	c.b.start(t, c.settings()...)
	return c
}

// settings: small buffers write while transactions run; every other round has autovacuum, which writes by itself.
func (c *crash) settings() []string {
	settings := []string{"shared_buffers=4MB", "checkpoint_timeout=30s", "recovery_init_sync_method=syncfs"}
	if c.autovacuum() {
		settings = append(settings, "autovacuum=on", "autovacuum_naptime=1s")
	}
	return settings
}

func (c *crash) autovacuum() bool { return c.ended%2 == 1 }

// pgbench runs Debian's, of whatever major: it needs nothing of the server's but SQL.
func pgbench(t *testing.T, c *cluster, args ...string) {
	t.Helper()
	run(t, filepath.Join(debianServers(t)[0].bin, "pgbench"), append(args, "--host", c.sockets, "--username", "postgres", "postgres")...)
}

// round runs TPC-B and the witness, ends the server by end, starts it again, and looks at what is there.
func (c *crash) round(t *testing.T, end func()) {
	t.Helper()
	load := exec.Command(filepath.Join(debianServers(t)[0].bin, "pgbench"), "--client", "4", "--time", "60", "--no-vacuum",
		"--host", c.b.sockets, "--username", "postgres", "postgres")
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	var cut atomic.Bool
	var clients sync.WaitGroup
	witness, checkpointer := c.b.connect(t, "postgres"), c.b.connect(t, "postgres")
	clients.Go(func() { c.witness(witness, &cut) })
	if rand.IntN(2) == 0 {
		clients.Go(func() {
			_, _ = checkpointer.Exec(context.Background(), fmt.Sprintf("SELECT pg_sleep(%f)", rand.Float64())) // the end may come first
			_, _ = checkpointer.Exec(context.Background(), "CHECKPOINT")
		})
	}
	c.awaitLoad(t)
	time.Sleep(time.Duration(rand.Int64N(int64(time.Second))))
	before := c.r.relationsInUpper(t)
	cut.Store(true)
	end()
	_ = load.Wait() // "connection to server was lost"
	clients.Wait()
	for _, conn := range []*pgx.Conn{witness, checkpointer} {
		_ = conn.Close(context.Background()) // the server is gone
	}
	c.ended++
	c.b.start(t, c.settings()...)
	if !strings.Contains(c.b.log.String(), "not properly shut down") {
		t.Errorf("round %d: no recovery:\n%s", c.ended, c.b.log)
	}
	c.verify(t, before)
	if t.Failed() {
		t.Fatalf("round %d of %s; the server's log:\n%s", c.ended, c.b.server.name, c.b.log)
	}
}

// awaitLoad waits until pgbench is in the middle of its work, however busy the machine is.
func (c *crash) awaitLoad(t *testing.T) {
	t.Helper()
	conn := c.b.connect(t, "postgres")
	defer closeConn(t, conn)
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if query[int64](t, conn, "SELECT count(*) FROM pgbench_history") >= c.history+20 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("pgbench does no work")
		}
	}
}

// witness commits one row after the other. What was acknowledged before the end has begun must survive it; a commit that races
// the end need not, since an fsync in a race with the shutdown of its file system may return 0 with nothing on the disk.
func (c *crash) witness(conn *pgx.Conn, cut *atomic.Bool) {
	for id := c.acked + 1; ; id++ {
		_, err := conn.Exec(context.Background(), "INSERT INTO witness VALUES ($1, repeat('w', 300)) ON CONFLICT DO NOTHING", id)
		if err != nil || cut.Load() {
			return
		}
		c.acked = id
		c.counted++
	}
}

// verify: nothing that was acknowledged is lost, nothing is half there, the indexes fit the heaps, the branch is as lazy as it
// was, and the restart has copied no relation that nobody wrote.
func (c *crash) verify(t *testing.T, before map[string]int64) {
	t.Helper()
	requireShim(t, c.b)
	allowed := written(t, c.r, c.b, "pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history", "witness")
	conn := c.b.connect(t, "postgres")
	defer closeConn(t, conn)
	var catalogs []string
	if !c.autovacuum() { // the round before this start had it, and with it all that ANALYZE writes
		catalogs = written(t, c.r, c.b, "pg_statistic", "pg_class", "pg_index", "pg_database")
	}
	if n := query[int64](t, conn, "SELECT count(*) FROM untouched"); n != 20000 {
		t.Errorf("%d rows in a table that nobody wrote", n)
	}
	for name := range c.r.relationsInUpper(t) {
		_, was := before[name]
		if !was && !slices.ContainsFunc(append(allowed, catalogs...), func(w string) bool { return isFileOf(name, w) }) {
			t.Errorf("round %d: the restart has copied %s, which nobody wrote", c.ended, name)
		}
	}
	c.owned = max(c.owned, len(c.r.relationsInUpper(t)))
	if n := query[int64](t, conn, fmt.Sprintf("SELECT count(*) FROM witness WHERE id <= %d", c.acked)); n != c.acked {
		t.Errorf("round %d: %d rows acknowledged, %d there", c.ended, c.acked, n)
	}
	balances := query[string](t, conn, `SELECT format('%s %s %s %s', (SELECT sum(abalance) FROM pgbench_accounts),
		(SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history))`)
	if sums := strings.Fields(balances); len(slices.Compact(sums)) != 1 {
		t.Errorf("round %d: accounts, tellers, branches, history: %s", c.ended, balances)
	}
	c.history = query[int64](t, conn, "SELECT count(*) FROM pgbench_history")
	c.checked += amcheck(t, c.b, "--database", "postgres")
}

func (c *crash) report(t *testing.T) {
	t.Helper()
	if c.history == 0 || c.counted == 0 {
		t.Errorf("no work was done: %d transactions of pgbench, %d of the witness", c.history, c.counted)
	}
	c.b.stop(t)
	fmt.Printf("%s: %d ends, %d transactions survived, %d acknowledged and none lost, %d relations checked, at most %d relation files owned\n",
		t.Name(), c.ended, c.history, c.counted, c.checked, c.owned)
}
