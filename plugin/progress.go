package plugin

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/docker/cli/cli/streams"
	"github.com/docker/go-units"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// Values of --progress.
const (
	progressAuto  = "auto"
	progressPlain = "plain"
	progressJSON  = "json"
	progressQuiet = "quiet"
	progressHelp  = `How to show progress, on standard error: auto, plain, json, quiet`
)

var progressModes = []string{progressAuto, progressPlain, progressJSON, progressQuiet}

// progress shows long work on standard error: bars on a terminal, else a line a
// stage.
type progress struct {
	report engine.ProgressFunc
	close  func()
}

func newProgress(out *streams.Out, mode string) (progress, error) {
	if !slices.Contains(progressModes, mode) {
		return progress{}, &engine.Error{Kind: engine.KindInvalid, Object: "--progress",
			Cause: fmt.Sprintf("%q is no mode of it", mode), Hint: "modes: " + strings.Join(progressModes, ", ")}
	}
	// A terminal of no size, as scripts make, has no room for a bar.
	if height, width := out.GetTtySize(); mode == progressAuto && (!out.IsTerminal() || height == 0 || width == 0) {
		mode = progressPlain
	}
	nothing := func() {}
	switch mode {
	case progressQuiet:
		return progress{func(engine.Progress) {}, nothing}, nil
	case progressJSON:
		enc := json.NewEncoder(out)
		enc.SetEscapeHTML(false)
		return progress{func(p engine.Progress) { _ = enc.Encode(p) }, nothing}, nil
	case progressPlain:
		plain := &plainProgress{out: out, now: time.Now}
		return progress{plain.report, nothing}, nil
	}
	// Not out, which is the same terminal: mpb draws only on an *os.File
	// (cupwriter.New).
	bars := &barProgress{pool: mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(40))}
	return progress{bars.report, bars.close}, nil
}

// plainEvery is the least time between two lines about one stage.
const plainEvery = 2 * time.Second

type plainProgress struct {
	out     io.Writer
	now     func() time.Time
	stage   string
	started time.Time
	printed time.Time
}

func (p *plainProgress) report(r engine.Progress) {
	now := p.now()
	fresh := r.Stage != p.stage
	if fresh {
		p.stage, p.started = r.Stage, now
	}
	complete := r.Total > 0 && r.Done >= r.Total
	if !fresh && r.Message == "" && !complete && now.Sub(p.printed) < plainEvery {
		return
	}
	p.printed = now
	line := r.Stage
	if r.Message != "" && r.Message != r.Stage {
		line += ": " + r.Message
	}
	if r.Done > 0 {
		line += ": " + units.BytesSize(float64(r.Done))
		if r.Total > 0 {
			line += " of " + units.BytesSize(float64(r.Total))
		}
		if d := now.Sub(p.started).Seconds(); d > 0.1 {
			line += fmt.Sprintf(", %s/s", units.BytesSize(float64(r.Done)/d))
		}
	}
	_, _ = fmt.Fprintln(p.out, line)
}

// barProgress has one line a stage: a bar with bytes and rate where the stage
// counts bytes, a spinner where it does not.
type barProgress struct {
	pool    *mpb.Progress
	stage   string
	bar     *mpb.Bar
	last    int64
	counted bool
}

func (b *barProgress) report(r engine.Progress) {
	counted := r.Total > 0
	if r.Stage != b.stage || counted && !b.counted {
		b.finish(r.Stage != b.stage)
		b.begin(r, counted)
	}
	if !counted {
		return
	}
	b.bar.SetTotal(max(r.Total, r.Done), false)
	b.bar.IncrInt64(r.Done - b.last)
	b.last = r.Done
}

func (b *barProgress) begin(r engine.Progress, counted bool) {
	b.stage, b.counted, b.last = r.Stage, counted, 0
	name := decor.Name(r.Stage, decor.WC{C: decor.DindentRight | decor.DextraSpace, W: 14})
	if !counted {
		b.bar = b.pool.New(0, mpb.SpinnerStyle().PositionLeft(), mpb.PrependDecorators(name),
			mpb.AppendDecorators(decor.OnComplete(decor.Elapsed(decor.ET_STYLE_GO), "done")))
		return
	}
	b.bar = b.pool.New(r.Total, mpb.BarStyle(), mpb.PrependDecorators(name), mpb.AppendDecorators(
		decor.CountersKibiByte("% .1f of % .1f"),
		decor.OnComplete(decor.AverageSpeed(decor.SizeB1024(0), "  % .1f"), "  done")))
}

func (b *barProgress) finish(done bool) {
	if b.bar == nil {
		return
	}
	if done {
		b.bar.SetTotal(-1, true)
	} else {
		b.bar.Abort(true)
	}
	b.bar = nil
}

// close ends the last line; the bars of a failed stage stay as they were.
func (b *barProgress) close() {
	b.finish(true)
	b.pool.Wait()
}
