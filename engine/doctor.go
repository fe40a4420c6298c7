package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/go-units"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// States of a Check.
const (
	CheckOK      = "ok"
	CheckProblem = "problem"
	// CheckUnknown could not be looked at, because of a problem that is named elsewhere.
	CheckUnknown = "unknown"
)

// Check is one thing that a diagnosis looked at. Its JSON is what `doctor --format
// json` prints.
type Check struct {
	// Check names what was looked at: "engine", "plugin", "volume", …
	Check string `json:"check"`
	// State is one of the Check* constants.
	State string `json:"state"`
	// Detail is what was found, on one line.
	Detail string `json:"detail"`
	// Fix is the command that mends a problem.
	Fix string `json:"fix,omitempty"`
}

const (
	// doctorPatience is how long an engine may take to answer at all.
	doctorPatience = 20 * time.Second
	// lowSpace and lowShare are the free space below which a warning is due: one full
	// copy-up of a segment must fit, and so must what else is on the disk.
	lowSpace = 2 << 30
	lowShare = 0.05
)

// diagnosis collects checks.
type diagnosis struct{ checks []Check }

func (d *diagnosis) ok(check, detail string, args ...any) {
	d.checks = append(d.checks, Check{Check: check, State: CheckOK, Detail: fmt.Sprintf(detail, args...)})
}

func (d *diagnosis) unknown(check, detail string) {
	d.checks = append(d.checks, Check{Check: check, State: CheckUnknown, Detail: detail})
}

func (d *diagnosis) problem(check, fix, detail string, args ...any) {
	d.checks = append(d.checks, Check{Check: check, State: CheckProblem, Detail: fmt.Sprintf(detail, args...), Fix: fix})
}

// failed reports an error that kept a check from being made.
func (d *diagnosis) failed(check string, err error) {
	fix := ""
	if ours, ok := err.(*Error); ok {
		fix = ours.Hint
	}
	d.problem(check, fix, "%s", oneLine(err.Error()))
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Doctor looks at everything that branches depend on. It changes nothing, and says as
// much as can be said also where the engine does not answer or the plugin does not run.
// more gives what is known of a branch elsewhere, such as in Compose files; it may be nil.
func (e *Engine) Doctor(ctx context.Context, more func(context.Context, Branch) []Note) []Check {
	d := &diagnosis{}
	first, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	info, err := e.api.Info(first)
	if err != nil {
		d.doctorSilence(first, e.api.DaemonHost(), err)
		return d.checks
	}
	d.engine(info, e.api.DaemonHost(), e.api.ClientVersion())
	plugin, err := e.installed(ctx, contract.DriverName)
	if err != nil {
		d.failed("plugin", err)
		return d.checks
	}
	status, runs := e.doctorPlugin(ctx, d, plugin)
	if !runs {
		for _, check := range []string{"data", "volumes"} {
			d.unknown(check, "the volume plugin does not run")
		}
		e.doctorLeftovers(ctx, d, nil)
		return d.checks
	}
	d.data(status, settingsOf(plugin))
	e.doctorVolumes(ctx, d, status, more)
	return d.checks
}

func (d *diagnosis) doctorSilence(ctx context.Context, host string, err error) {
	cause := oneLine(translate(err, "docker engine").Error())
	if ctx.Err() != nil {
		cause = fmt.Sprintf("does not answer within %s", doctorPatience)
	}
	d.problem("engine", "docker context ls  # then start the engine, or choose another: docker context use NAME",
		"%s: %s", host, cause)
	for _, check := range []string{"plugin", "data", "volumes"} {
		d.unknown(check, "the engine does not answer")
	}
}

// engine looks at what the engine says of itself.
func (d *diagnosis) engine(info system.Info, host, api string) {
	detail := fmt.Sprintf("%s at %s, API %s, %s/%s", info.ServerVersion, host, api, info.OSType, info.Architecture)
	if err := supported(info); err != nil {
		ours := err.(*Error)
		d.problem("engine", "docker context use NAME  # "+ours.Hint, "%s: %s", detail, ours.Cause)
	} else {
		d.ok("engine", "%s", detail)
	}
	// openat2, with which the plugin keeps to its data root, came with 5.6.
	if older(info.KernelVersion, 5, 6) {
		d.problem("kernel", "uname -r  # upgrade the kernel of the engine's host", "%s is older than 5.6", info.KernelVersion)
	} else {
		d.ok("kernel", "%s", info.KernelVersion)
	}
}

// older reports whether a kernel release is below major.minor. One that cannot be read
// is not.
func older(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a < major || a == major && b < minor
}

// doctorPlugin looks at the plugin, and gives what it says of itself if it runs.
func (e *Engine) doctorPlugin(ctx context.Context, d *diagnosis, plugin *types.Plugin) (status contract.PluginStatus, runs bool) {
	if spare, err := e.installed(ctx, spareName); err == nil && spare != nil {
		d.problem("plugin", "docker pgbranch setup", "an upgrade was broken off: %s is still there", spareName)
	}
	if plugin == nil {
		d.problem("plugin", "docker pgbranch setup", "pgoverlay is not installed in this engine")
		return status, false
	}
	s := settingsOf(plugin)
	if !plugin.Enabled {
		detail := "pgoverlay is disabled"
		if _, err := e.checkStore(ctx, s.data, s.storeID()); err != nil {
			detail += " and would not start: " + strings.TrimPrefix(oneLine(err.Error()), pluginObject+": ")
		}
		fix := "docker pgbranch setup"
		if former := formerData(plugin); former != "" {
			detail += fmt.Sprintf("; its data was in %s before, and is now looked for in %s", former, s.data)
		}
		d.problem("plugin", fix, "%s", detail)
		return status, false
	}
	status, err := e.pluginStatus(ctx)
	if err != nil {
		d.failed("plugin", err)
		return status, false
	}
	switch {
	case status.Version != e.version:
		d.problem("plugin", "docker pgbranch setup", "pgoverlay is %s, and this program is %s", status.Version, e.version)
	case s.storeID() == "":
		d.problem("plugin", "docker pgbranch setup", "pgoverlay %s is not pinned to its data root: another disk there would make the engine forget its volumes", status.Version)
	default:
		d.ok("plugin", "pgoverlay %s, as this program", status.Version)
	}
	return status, true
}

// data looks at the data root.
func (d *diagnosis) data(status contract.PluginStatus, s settings) {
	detail := fmt.Sprintf("store %s in %s/pgoverlay, on %s, copy-up mode %s, %s free of %s", status.StoreID, strings.TrimRight(s.data, "/"),
		status.FileSystem, orNone(status.CopyUpMode), units.BytesSize(float64(status.FreeBytes)), units.BytesSize(float64(status.TotalBytes)))
	switch {
	case status.Unfit != "":
		cause, _, _ := strings.Cut(status.Unfit, "\n")
		d.problem("data", "docker pgbranch setup --data DIR  # after `docker plugin disable -f pgoverlay` and a move of the folder pgoverlay",
			"%s: %s", detail, strings.TrimPrefix(cause, pluginObject+": "))
	case status.FreeBytes < lowSpace || float64(status.FreeBytes) < lowShare*float64(status.TotalBytes):
		d.problem("data", "docker pgbranch df  # then remove branches: docker pgbranch rm BRANCH", "%s: little is left", detail)
	default:
		d.ok("data", "%s", detail)
	}
}

func orNone(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
