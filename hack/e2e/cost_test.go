//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// budgetCreate is the most that a create may take to its first query, over docker run
// of the same image on a plain volume that holds the same cluster.
const budgetCreate = 1.25

// TestCreateOverDockerRun prints the ratio of medians of ten alternating runs and
// where the time of a create goes. A machine that is busy otherwise can spoil a series:
// only three of them over the budget are a failure.
func TestCreateOverDockerRun(t *testing.T) {
	seed := mainSeed(t)
	plain := prefix + "plainvol"
	plainCopy(t, seed, plain)

	for series := range 3 {
		if createRatio(t, seed, plain) <= budgetCreate {
			return
		}
		t.Logf("series %d is over the budget of %.2f", series+1, budgetCreate)
	}
	t.Error("no series of three is within the budget")
}

// plainCopy makes a plain volume that holds the same settled cluster as a seed, whole.
func plainCopy(t *testing.T, seed, volume string) {
	t.Helper()
	docker(t, "volume", "create", volume)
	t.Cleanup(func() { command("", "docker", "volume", "rm", volume) })
	from := filepath.Join(onDisk(t, "seeds", seed), "root")
	docker(t, "run", "--rm", "-u", "0", "--entrypoint", "cp", "-v", from+":/from:ro", "-v", volume+":/to", "postgres:17", "-a", "/from/.", "/to/")
}

// createRatio measures one series.
func createRatio(t *testing.T, seed, plain string) float64 {
	const rounds = 10
	var ours, theirs []time.Duration
	var splits []string
	for round := range rounds {
		first, second := func() { theirs = append(theirs, dockerRun(t, plain)) }, func() {
			d, split := create(t, seed)
			ours, splits = append(ours, d), append(splits, split)
		}
		if round%2 == 1 {
			first, second = second, first
		}
		first()
		second()
	}
	ratio := float64(median(ours)) / float64(median(theirs))
	for i, s := range splits {
		t.Logf("round %d: create %s (%s), docker run %s", i+1, ms(ours[i]), s, ms(theirs[i]))
	}
	t.Logf("RATIO create over docker run, to the first query: %.2f (medians %s and %s, budget %.2f)",
		ratio, ms(median(ours)), ms(median(theirs)), budgetCreate)
	return ratio
}

// create times a create to the end of its own wait, and one query more over the
// published port, as the other side has.
func create(t *testing.T, seed string) (time.Duration, string) {
	name := prefix + "timed"
	defer pgbranch(t, "rm", "-f", name)
	started := time.Now()
	r := try("create", name, "--from", seed, "-p", "20999", "--timings")
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	firstQuery(t, "20999")
	took := time.Since(started)
	lines := strings.Split(r.stderr, "\n")
	return took, lines[len(lines)-1]
}

// dockerRun times `docker run` on a plain volume until a query is answered over
// the published port, asked again every 5 ms.
func dockerRun(t *testing.T, volume string) time.Duration {
	name := prefix + "timed-plain"
	// Stopped clean, or the next start would recover, which a branch never has to.
	defer func() {
		docker(t, "stop", name)
		docker(t, "rm", name)
	}()
	started := time.Now()
	docker(t, "run", "-d", "--name", name, "-v", volume+":/var/lib/postgresql/data", "-p", "127.0.0.1:20998:5432", "postgres:17")
	firstQuery(t, "20998")
	return time.Since(started)
}

func firstQuery(t *testing.T, port string) {
	t.Helper()
	url := "postgres://postgres:" + password + "@127.0.0.1:" + port + "/shop"
	ctx := context.Background()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT 1")
			_ = conn.Close(ctx)
		}
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func median(d []time.Duration) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func ms(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// The whole command that makes a branch's volume takes less than a second with a
// seed that takes several to copy. How it grows with the seed is not shown here.
func TestAVolumeIsMadeAtOnce(t *testing.T) {
	seed := mainSeed(t)
	var took []time.Duration
	for i := range 10 {
		name := fmt.Sprintf("%sconst%d", prefix, i)
		started := time.Now()
		docker(t, "volume", "create", "-d", "pgoverlay", "-o", "seed="+seed, name)
		took = append(took, time.Since(started))
		defer docker(t, "volume", "rm", name)
	}
	t.Logf("docker volume create of a branch: median %s", ms(median(took)))
	if size := allocated(t, onDisk(t, "seeds", seed)); size < 250<<20 {
		t.Errorf("the seed has only %d MiB", size>>20)
	}
	if m := median(took); m > time.Second {
		t.Errorf("took %s", m)
	}
}
