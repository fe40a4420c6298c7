package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// scrapeTimeout is that of one look at the engine; Prometheus gives up after 10 s
// unless told otherwise.
const scrapeTimeout = 9 * time.Second

func newMetricsCommand(dockerCLI command.Cli) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "metrics [OPTIONS]",
		Short: "Print what seeds and branches cost, as Prometheus text",
		Long: `Print metrics of the seeds and branches, and of the disk that they are on, in the text
format of Prometheus; with --listen, serve them under /metrics until interrupted.

Served, a look that fails gives pgbranch_up 0 and no more. Printed, it is an error.
` + exitHelp,
		Example: `  docker pgbranch metrics
  docker pgbranch metrics --listen 127.0.0.1:9187`,
		Args: cli.NoArgs,
		RunE: run(func(ctx context.Context, _ []string) error {
			if listen != "" {
				return serveMetrics(ctx, dockerCLI, listen)
			}
			return printMetrics(ctx, dockerCLI)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&listen, "listen", "", "Serve on this address, as 127.0.0.1:9187, instead of printing")
	return cmd
}

// reading is one look at the engine.
type reading struct {
	seeds    []engine.Seed
	branches []engine.Branch
	plugin   contract.PluginStatus
}

func takeReading(ctx context.Context, e *engine.Engine) (reading, error) {
	var r reading
	var err error
	if r.seeds, r.branches, err = e.All(ctx); err != nil {
		return r, err
	}
	r.plugin, err = e.PluginStatus(ctx)
	return r, err
}

func printMetrics(ctx context.Context, dockerCLI command.Cli) error {
	r, err := takeReading(ctx, newEngine(dockerCLI))
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{look: func() (reading, error) { return r, nil }, now: time.Now})
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(dockerCLI.Out(), family); err != nil {
			return err
		}
	}
	return nil
}

// serveMetrics serves until ctx ends, which is no failure.
func serveMetrics(ctx context.Context, dockerCLI command.Cli, address string) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return &engine.Error{Kind: engine.KindInvalid, Object: "--listen", Cause: err.Error(),
			Hint: "name a free address of this machine, such as 127.0.0.1:9187"}
	}
	e := newEngine(dockerCLI)
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{now: time.Now, look: func() (reading, error) {
		ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
		defer cancel()
		r, err := takeReading(ctx, e)
		if err != nil && ctx.Err() == nil {
			_, _ = fmt.Fprintln(dockerCLI.Err(), err)
		}
		return r, err
	}})
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	_, _ = fmt.Fprintf(dockerCLI.Err(), "serving http://%s/metrics, until interrupted\n", listener.Addr())
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// collector turns a look at the engine into metrics, at each scrape anew.
type collector struct {
	look func() (reading, error)
	now  func() time.Time
	// one lets one look happen at a time: those of several scrapers would be alike.
	one sync.Mutex
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("pgbranch_"+name, help, labels, nil)
}

var (
	upDesc           = desc("up", "Whether the last look at the engine and its volume plugin succeeded.")
	pluginDesc       = desc("plugin_info", "The volume plugin, and what a copy-up does on its data root.", "version", "file_system", "copy_up_mode", "kernel")
	freeDesc         = desc("data_root_free_bytes", "Bytes free on the file system of the data root.")
	totalDesc        = desc("data_root_size_bytes", "Size of the file system of the data root in bytes.")
	seedOwnedDesc    = desc("seed_owned_bytes", "Bytes that the seed has allocated.", "seed", "generation")
	seedAgeDesc      = desc("seed_age_seconds", "Time since the seed was sealed.", "seed", "generation")
	seedBranchesDesc = desc("seed_branches", "Branches that stand on the seed.", "seed", "generation")
	branchInfoDesc   = desc("branch_info", "The branch, and how it copies.", "branch", "seed", "generation", "cow_mode", "copy_up_mode")
	branchRunDesc    = desc("branch_running", "Whether a container runs the branch.", "branch")
	branchOwnedDesc  = desc("branch_owned_bytes", "Bytes that the branch has allocated and shares with nobody.", "branch")
	branchAgeDesc    = desc("branch_age_seconds", "Time since the branch was made.", "branch")
	branchExpiryDesc = desc("branch_expires_timestamp_seconds", "When the branch may be removed, as Unix time; absent without an expiry.", "branch")
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{upDesc, pluginDesc, freeDesc, totalDesc, seedOwnedDesc, seedAgeDesc, seedBranchesDesc,
		branchInfoDesc, branchRunDesc, branchOwnedDesc, branchAgeDesc, branchExpiryDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.one.Lock()
	r, err := c.look()
	c.one.Unlock()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	if err != nil {
		gauge(upDesc, 0)
		return
	}
	gauge(upDesc, 1)
	gauge(pluginDesc, 1, r.plugin.Version, r.plugin.FileSystem, r.plugin.CopyUpMode, r.plugin.Kernel)
	gauge(freeDesc, float64(r.plugin.FreeBytes))
	gauge(totalDesc, float64(r.plugin.TotalBytes))
	for _, s := range r.seeds {
		generation := strconv.Itoa(s.Generation)
		gauge(seedOwnedDesc, float64(s.OwnedBytes), s.Seed, generation)
		gauge(seedAgeDesc, c.now().Sub(s.CreatedAt).Seconds(), s.Seed, generation)
		gauge(seedBranchesDesc, float64(len(s.Branches)), s.Seed, generation)
	}
	for _, b := range r.branches {
		running := 0.0
		if b.State == engine.StateRunning {
			running = 1
		}
		gauge(branchInfoDesc, 1, b.Branch, b.Seed, strconv.Itoa(b.Generation), b.CowMode, b.CopyUpMode)
		gauge(branchRunDesc, running, b.Branch)
		gauge(branchOwnedDesc, float64(b.OwnedBytes), b.Branch)
		gauge(branchAgeDesc, c.now().Sub(b.CreatedAt).Seconds(), b.Branch)
		if b.ExpiresAt != nil {
			gauge(branchExpiryDesc, float64(b.ExpiresAt.Unix()), b.Branch)
		}
	}
}
