package main

import (
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// Workload is one thing to measure, on several variants in turn.
type Workload struct {
	Name, Title string
	Variants    []string
	// Destroys says that it changes a plain volume, which is then copied anew.
	Destroys bool
	Run      func(r *Rig, variant string) (map[string]float64, error)
	// Together, in place of Run, measures all variants of a round at once, in the order
	// given, and gives the values by variant.
	Together func(r *Rig, variants []string) (map[string]map[string]float64, error)
	Budgets  []Budget
}

// Budget is one line of DESIGN's table of budgets.
type Budget struct {
	Text    string
	Metric  string
	Variant string
	// Over is the variant, and OverMetric, where set, another metric, that the value is
	// held against round by round; without either, the value itself is held.
	Over, OverMetric string
	Limit            float64
	AtLeast          bool
	// Counted is of bytes, where every single one must keep the limit.
	Counted bool
}

var (
	fiveVariants = []string{Plain, Eager, Lazy, LazyXF, LazyBt}
	allVariants  = append(slices.Clone(fiveVariants), PlainXF, PlainBt)
)

var workloads = []Workload{
	{
		Name: "create", Title: "Create to the first query", Variants: fiveVariants, Run: runCreate,
		Budgets: []Budget{
			{Text: "create over `docker run` on a plain volume", Metric: "first_query_s", Variant: Lazy, Over: Plain, Limit: 1.25},
			{Text: "a fresh branch, owned", Metric: "fresh_bytes", Variant: Lazy, Limit: 256 << 10, Counted: true},
			{Text: "after a full read of one database, owned", Metric: "read_bytes", Variant: Lazy, Limit: 512 << 10, Counted: true},
		},
	},
	{
		Name: "create-size", Title: "Create to the first query, by the seed's size", Variants: []string{Lazy}, Run: runCreateSize,
		Budgets: []Budget{
			{Text: "create from 10 GiB over create from 1 GiB", Metric: "first_query_big_s", OverMetric: "first_query_one_s", Variant: Lazy, Over: Lazy, Limit: 1.05},
		},
	},
	{
		Name: "throughput", Title: "pgbench", Variants: []string{Plain, Eager, Lazy}, Destroys: true, Together: runThroughput,
		Budgets: throughputBudgets(Lazy, Plain, ""),
	},
	{
		Name: "throughput-xfs", Title: "pgbench on XFS", Variants: []string{PlainXF, LazyXF}, Destroys: true, Together: runThroughput,
		Budgets: throughputBudgets(LazyXF, PlainXF, ", XFS"),
	},
	{
		Name: "throughput-btrfs", Title: "pgbench on btrfs", Variants: []string{PlainBt, LazyBt}, Destroys: true, Together: runThroughput,
		Budgets: throughputBudgets(LazyBt, PlainBt, ", btrfs"),
	},
	{
		Name: "one-row", Title: "The first one-row UPDATE of a segment of 949 MiB", Variants: fiveVariants, Destroys: true, Run: runOneRow,
		Budgets: []Budget{
			{Text: "one row of a whole segment, owned, XFS", Metric: "grown_bytes", Variant: LazyXF, Limit: 64 << 10, Counted: true},
			{Text: "one row of a whole segment, owned, btrfs", Metric: "grown_bytes", Variant: LazyBt, Limit: 64 << 10, Counted: true},
			{Text: "one row of a whole segment, owned over the segment, ext4", Metric: "grown_bytes", Variant: Lazy, Over: Lazy, OverMetric: "segment_bytes", Limit: 1.01, Counted: true},
		},
	},
	{Name: "one-percent", Title: "UPDATE of 1 % of the pages", Variants: fiveVariants, Destroys: true, Run: runOnePercent},
	{Name: "restart", Title: "kill -9 and restart, and reset", Variants: []string{Plain, Lazy, LazyXF, LazyBt}, Destroys: true, Run: runRestart},
	{Name: "many", Title: "20 branches at once", Variants: []string{Lazy, LazyXF, LazyBt}, Run: runMany},
	{
		Name: "create-database", Title: "CREATE DATABASE", Variants: []string{Plain, Lazy, LazyXF, LazyBt}, Destroys: true, Run: runCreateDatabase,
		Budgets: []Budget{
			{Text: "STRATEGY wal_log, bytes written over a plain volume", Metric: "wal_log_bytes", Variant: Lazy, Over: Plain, Limit: 1.1, Counted: true},
			{Text: "STRATEGY file_copy, bytes written over a plain volume", Metric: "file_copy_bytes", Variant: Lazy, Over: Plain, Limit: 1.1, Counted: true},
		},
	},
	{
		Name: "seed", Title: "Seed and settle over a bare base backup", Variants: []string{Lazy}, Run: runSeed,
		Budgets: []Budget{
			{Text: "seed and settle of a source that is not frozen, over `pg_basebackup`", Metric: "seed_s", OverMetric: "basebackup_s", Variant: Lazy, Over: Lazy, Limit: 1.5},
		},
	},
}

func throughputBudgets(variant, over, where string) []Budget {
	return []Budget{
		{Text: "select-only, warm, over a plain volume" + where, Metric: "select_warm_tps", Variant: variant, Over: over, Limit: 0.98, AtLeast: true},
		{Text: "TPC-B, warm, over a plain volume" + where, Metric: "tpcb_warm_tps", Variant: variant, Over: over, Limit: 0.97, AtLeast: true},
	}
}

// values joins metrics, so that a workload can stop at the first error.
type values struct {
	m   map[string]float64
	err error
}

func (v *values) seconds(name string, f func() (time.Duration, error)) {
	if v.err != nil {
		return
	}
	d, err := f()
	v.set(name, d.Seconds(), err)
}

func (v *values) bytes(name string, f func() (int64, error)) int64 {
	if v.err != nil {
		return 0
	}
	n, err := f()
	v.set(name, float64(n), err)
	return n
}

func (v *values) set(name string, value float64, err error) {
	if v.m == nil {
		v.m = map[string]float64{}
	}
	v.m[name], v.err = value, err
}

func (v *values) do(f func() error) {
	if v.err == nil {
		v.err = f()
	}
}

func (v *values) result() (map[string]float64, error) { return v.m, v.err }

// exec joins the time of statements.
func (v *values) exec(s *server, name string, statements ...string) {
	v.seconds(name, func() (time.Duration, error) { return s.exec(statements...) })
}

// readEverything reads every table of the database in full, TOAST and catalogs included.
const readEverything = `DO $$
DECLARE r record; n bigint;
BEGIN
  FOR r IN SELECT c.oid::regclass AS rel, c.relkind FROM pg_class c WHERE c.relkind IN ('r', 'm', 't') LOOP
    EXECUTE format(CASE r.relkind WHEN 't' THEN 'SELECT sum(length(chunk_data)) FROM %s'
      ELSE 'SELECT count(t::text) FROM %s t' END, r.rel) INTO n;
  END LOOP;
END $$`

func runCreate(r *Rig, variant string) (map[string]float64, error) {
	var v values
	s, took, err := r.start(variant, dataOne)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	v.set("first_query_s", took.Seconds(), nil)
	if variant == Plain {
		return v.result()
	}
	v.bytes("fresh_bytes", s.owned)
	v.exec(s, "read_s", readEverything, "CHECKPOINT")
	v.bytes("read_bytes", s.owned)
	return v.result()
}

// runCreateSize makes a branch of either seed twice, in an order in which what changes
// steadily meets both alike, and gives the means.
func runCreateSize(r *Rig, variant string) (map[string]float64, error) {
	took := map[string]float64{}
	for _, data := range []string{dataOne, dataBig, dataBig, dataOne} {
		s, t, err := r.start(variant, data)
		if err != nil {
			return nil, err
		}
		took["first_query_"+data+"_s"] += t.Seconds() / 2
		s.drop()
	}
	return took, nil
}

// runOneRow updates a row that fits into its page, and times the checkpoint that writes
// it to the file too: that is when the file is copied up.
func runOneRow(r *Rig, variant string) (map[string]float64, error) {
	var v values
	s, _, err := r.start(variant, dataOne)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	v.bytes("segment_bytes", func() (n int64, err error) {
		err = s.conn.QueryRow(ctx(), "SELECT pg_relation_size('seg')").Scan(&n)
		return n, err
	})
	// What the first transaction of any branch costs is not the row's. No DDL: it makes the
	// next session write the database's pg_internal.init anew, about 190 KiB.
	v.exec(s, "warmup_s", "SELECT pg_current_xact_id()", "CHECKPOINT")
	before := v.bytes("before_bytes", s.owned)
	v.exec(s, "update_s", fmt.Sprintf("UPDATE seg SET n = n + 1 WHERE id = %d", r.size.SegmentRows/2))
	v.exec(s, "checkpoint_s", "CHECKPOINT")
	after := v.bytes("after_bytes", s.owned)
	v.set("grown_bytes", float64(after-before), v.err)
	return v.result()
}

func runOnePercent(r *Rig, variant string) (map[string]float64, error) {
	var v values
	for _, c := range []struct{ name, where string }{
		{"contiguous", fmt.Sprintf("id <= %d", r.size.SegmentRows/100)},
		{"spread", "id % 100 = 7"},
	} {
		s, _, err := r.start(variant, dataOne)
		if err != nil {
			return nil, err
		}
		before := v.bytes(c.name+"_before_bytes", s.owned)
		v.exec(s, c.name+"_update_s", "UPDATE seg SET n = n + 1 WHERE "+c.where)
		v.exec(s, c.name+"_checkpoint_s", "CHECKPOINT")
		after := v.bytes(c.name+"_after_bytes", s.owned)
		v.set(c.name+"_grown_bytes", float64(after-before), v.err)
		s.drop()
	}
	return v.result()
}

// runRestart kills the server in the middle of writes and times it to its next answer,
// which has recovered; and a reset of the branch.
func runRestart(r *Rig, variant string) (map[string]float64, error) {
	var v values
	s, _, err := r.start(variant, dataOne)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	v.do(func() error { _, err := s.pgbench(r.size.BenchTime / 3); return err })
	v.do(func() error { return command("docker", "kill", "-s", "KILL", s.container) })
	v.seconds("restart_s", func() (time.Duration, error) {
		begin := time.Now()
		if err := command("docker", "start", s.container); err != nil {
			return 0, err
		}
		return time.Since(begin), s.reconnect()
	})
	if variant != Plain {
		v.seconds("reset_s", func() (time.Duration, error) {
			begin := time.Now()
			if err := command("docker", "pgbranch", "reset", "-f", s.branch); err != nil {
				return 0, err
			}
			err := s.reconnect()
			return time.Since(begin), err
		})
	}
	return v.result()
}

// atOnce is how many branches are made at the same time.
const atOnce = 20

func runMany(r *Rig, variant string) (map[string]float64, error) {
	if err := r.use(variant); err != nil {
		return nil, err
	}
	seed, err := r.seed(dataOne)
	if err != nil {
		return nil, err
	}
	var v values
	errs := make([]error, atOnce)
	names := make([]string, atOnce)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range atOnce {
		names[i] = fmt.Sprintf("%smany-%d", prefix, i)
		wg.Go(func() { errs[i] = command("docker", "pgbranch", "create", names[i], "--from", seed) })
	}
	wg.Wait()
	v.set("all_answer_s", time.Since(begin).Seconds(), nil)
	for _, err := range errs {
		v.do(func() error { return err })
	}
	_ = exec.Command("docker", append([]string{"pgbranch", "rm", "-f"}, names...)...).Run()
	return v.result()
}

func runCreateDatabase(r *Rig, variant string) (map[string]float64, error) {
	var v values
	for _, strategy := range []string{"wal_log", "file_copy"} {
		s, _, err := r.start(variant, dataOne)
		if err != nil {
			return nil, err
		}
		v.do(s.flush)
		before := v.bytes(strategy+"_before_bytes", s.written)
		v.exec(s, strategy+"_s", fmt.Sprintf("CREATE DATABASE by_%s TEMPLATE shelf STRATEGY %[1]s", strategy), "CHECKPOINT")
		v.do(s.flush)
		after := v.bytes(strategy+"_after_bytes", s.written)
		v.set(strategy+"_bytes", float64(after-before), v.err)
		s.drop()
	}
	return v.result()
}

// runSeed times a seed's making, and a bare pg_basebackup of the same source between two
// containers, as the helper does it.
func runSeed(r *Rig, variant string) (map[string]float64, error) {
	if err := r.use(variant); err != nil {
		return nil, err
	}
	source, err := r.source(dataOne)
	if err != nil {
		return nil, err
	}
	var v values
	v.seconds("basebackup_s", func() (time.Duration, error) {
		begin := time.Now()
		err := command("docker", "run", "--rm", "--name", prefix+"backup", "--network", prefix+"net", "-e", "PGPASSWORD="+password,
			"-v", prefix+"backup:/to", "-u", "0", "--entrypoint", "pg_basebackup", image,
			"-h", source, "-U", "postgres", "-D", "/to/data", "-X", "stream", "--checkpoint=fast")
		return time.Since(begin), err
	})
	_ = exec.Command("docker", "volume", "rm", prefix+"backup").Run()
	name := prefix + "timed-seed"
	v.seconds("seed_s", func() (time.Duration, error) {
		begin := time.Now()
		_, err := r.seedFrom(source, name)
		return time.Since(begin), err
	})
	_ = exec.Command("docker", "pgbranch", "seed", "rm", name).Run()
	return v.result()
}
