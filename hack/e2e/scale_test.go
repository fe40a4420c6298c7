//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
)

const hundred = 100

// A hundred branches are accounted for in less than a second, by df and by a scrape of
// the metrics.
func TestAHundredBranchesAreMeasuredAtOnce(t *testing.T) {
	seed := anySeed(t)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range hundred {
		name := fmt.Sprintf("%sidle-%03d", prefix, i)
		t.Cleanup(func() { wg.Wait(); command("", "docker", "volume", "rm", name) })
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if r := command("", "docker", "volume", "create", "-d", "pgoverlay", "-o", "seed="+seed, name); r.code != 0 {
				t.Error(r.stderr)
			}
		})
	}
	wg.Wait()
	least := time.Hour
	for range 5 {
		begin := time.Now()
		out := pgbranch(t, "df")
		least = min(least, time.Since(begin))
		if n := strings.Count(out, prefix+"idle-"); n != hundred {
			t.Fatalf("df has %d of %d branches", n, hundred)
		}
	}
	t.Logf("df over %d branches: at best %s", hundred, least.Round(time.Millisecond))
	if least > time.Second {
		t.Errorf("df took %s", least)
	}
	scrape(t, prefix+"idle-")
}

// scrape serves the metrics and reads them as Prometheus does; an interrupt ends it, and
// is no failure.
func scrape(t *testing.T, branches string) {
	t.Helper()
	cmd := exec.Command("docker", "pgbranch", "metrics", "--listen", "127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 200)
	n, err := stderr.Read(said)
	if err != nil {
		t.Fatalf("metrics --listen says nothing: %v", err)
	}
	url, _, _ := strings.Cut(strings.TrimPrefix(string(said[:n]), "serving "), ",")
	begin := time.Now()
	response, err := http.Get(url)
	if err != nil {
		t.Fatalf("%q: %v", said[:n], err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close() // read to its end
	t.Logf("a scrape of %d branches: %s, %d bytes", hundred, time.Since(begin).Round(time.Millisecond), len(body))
	text := string(body)
	for _, want := range []string{"pgbranch_up 1\n", "pgbranch_data_root_free_bytes ", `copy_up_mode="`, `pgbranch_seed_branches{`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the metrics:\n%.2000s", want, text)
		}
	}
	if n := strings.Count(text, `pgbranch_branch_owned_bytes{branch="`+branches); n != hundred {
		t.Errorf("owned bytes of %d branches, want %d", n, hundred)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
	if r := try("metrics", "--listen", "192.0.2.1:1"); r.code != 2 || !strings.Contains(r.stderr, "127.0.0.1:9187") {
		t.Errorf("an address of nobody here: exit %d, %s", r.code, r.stderr)
	}
}

const (
	// atRest and atWork are the branches of TestLongTwentyAmongAThousand.
	atRest, atWork = 1000, 20
	// createGate is how much longer a create among a thousand branches may take.
	createGate = 1.1
)

// Twenty servers run, and a thousand branches lie beside them: the plugin answers as fast
// as without these, a volume is made as fast, and ls takes a time that people wait for.
func TestLongTwentyAmongAThousand(t *testing.T) {
	seed := anySeed(t)
	for i := range atWork {
		branch(t, fmt.Sprintf("%swork-%02d", prefix, i), seed)
	}
	plugin, engine := dialPlugin(t), dialEngine(t)
	report := func(what string) (create time.Duration) {
		t.Helper()
		list := plugin.median(t, 21, "List", "")
		get := plugin.median(t, 101, "Get", prefix+"work-07")
		version := medianOf(5, func() { pgbranch(t, "version") })
		ls := medianOf(5, func() { pgbranch(t, "ls") })
		// The fastest of many: what else the machine does can only add.
		create = time.Hour
		for range 100 {
			begin := time.Now()
			engine.create(t, prefix+"timed", seed)
			create = min(create, time.Since(begin))
			engine.remove(t, prefix+"timed")
		}
		t.Logf("%s: List %v, Get %v, ls %v (version %v), volume create at best %v", what, list, get, ls, version, create)
		if list > 100*time.Millisecond || get > 5*time.Millisecond {
			t.Errorf("List %v, Get %v", list, get)
		}
		return create
	}
	few := report("20 running among few")
	engine.makeIdle(t, seed, atRest)
	many := report("20 running among a thousand")
	ratio := float64(many) / float64(few)
	t.Logf("volume create among a thousand over few: %.2f", ratio)
	if ratio > createGate {
		t.Errorf("a volume create among a thousand takes %.2f of one among few", ratio)
	}
}

// engineClient speaks to the Engine without a process for each request.
type engineClient struct{ *client.Client }

func dialEngine(t *testing.T) engineClient {
	t.Helper()
	c, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return engineClient{c}
}

func (c engineClient) create(t *testing.T, name, seed string) {
	t.Helper()
	_, err := c.VolumeCreate(context.Background(), volume.CreateOptions{Driver: "pgoverlay", Name: name, DriverOpts: map[string]string{"seed": seed}})
	if err != nil {
		t.Error(err)
	}
}

func (c engineClient) remove(t *testing.T, name string) {
	t.Helper()
	if err := c.VolumeRemove(context.Background(), name, true); err != nil {
		t.Error(err)
	}
}

// makeIdle makes n branches that nothing runs on, for as long as the test lasts.
func (c engineClient) makeIdle(t *testing.T, seed string, n int) {
	t.Helper()
	each := func(do func(name string)) {
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := worker; i < n; i += 8 {
					do(fmt.Sprintf("%sidle-%04d", prefix, i))
				}
			})
		}
		wg.Wait()
	}
	t.Cleanup(func() { each(func(name string) { c.remove(t, name) }) })
	each(func(name string) { c.create(t, name, seed) })
}

// pluginClient speaks to the plugin itself, as dockerd does.
type pluginClient struct{ http.Client }

func dialPlugin(t *testing.T) *pluginClient {
	t.Helper()
	id := docker(t, "plugin", "inspect", "-f", "{{.Id}}", "pgoverlay")
	c := &pluginClient{}
	c.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", "/run/docker/plugins/"+id+"/pgoverlay.sock")
	}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func (c *pluginClient) median(t *testing.T, n int, verb, name string) time.Duration {
	t.Helper()
	return medianOf(n, func() {
		response, err := c.Post("http://plugin/VolumeDriver."+verb, "application/json", strings.NewReader(fmt.Sprintf(`{"Name":%q}`, name)))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(response.Body)
		_ = response.Body.Close() // read to its end
		if err != nil || !strings.Contains(string(answer), prefix) {
			t.Fatalf("%s: %v, %.200s", verb, err, answer)
		}
	})
}

// medianOf runs f n times and gives the time in the middle.
func medianOf(n int, f func()) time.Duration {
	var times []time.Duration
	for range n {
		begin := time.Now()
		f()
		times = append(times, time.Since(begin))
	}
	return median(times)
}
