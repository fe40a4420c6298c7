//go:build e2e

package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Plugin is the managed plugin in a private engine, with its privileges and settings
// as they are shipped; only the program carries the fault switch.
type Plugin struct {
	*Engine
	// Name is its name in the engine; Data is the source of its data mount.
	Name, Data string
}

// BuildPlugin builds the plugin as `docker plugin create` wants it, in dir. The build
// flags are of go build: tags with the faults switch, or none for the plugin as it is
// shipped.
func BuildPlugin(dir string, flags ...string) error {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("go list -m: %w", err)
	}
	root := strings.TrimSpace(string(module))
	if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		return err
	}
	args := append([]string{"build", "-trimpath"}, flags...)
	build := exec.Command("go", append(args, "-o", filepath.Join(dir, "rootfs", "pgoverlay"), "./cmd/pgoverlay")...)
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	config, err := os.ReadFile(filepath.Join(root, "config.json"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}

// InstallPlugin makes and enables a plugin from what BuildPlugin left in dir.
func (e *Engine) InstallPlugin(name, dir, data string) (*Plugin, error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"plugin", "create", name, dir}, {"plugin", "set", name, "data.source=" + data}, {"plugin", "enable", name},
	} {
		if _, err := e.Try(args...); err != nil {
			return nil, err
		}
	}
	return &Plugin{Engine: e, Name: name, Data: data}, nil
}

// Remove takes the plugin out of the engine, after its containers and volumes: a volume
// of a plugin that is gone costs dockerd 15 s at every start.
func (p *Plugin) Remove() error {
	containers, err := p.Try("ps", "-aq")
	if err != nil {
		return err
	}
	for _, id := range strings.Fields(containers) {
		_, _ = p.Try("rm", "-f", "-v", id)
	}
	_, _ = p.Try("plugin", "enable", p.Name)
	for range 3 { // branches of branches, branches, seeds
		for _, name := range p.Volumes() {
			_, _ = p.Try("volume", "rm", name)
		}
	}
	left := p.Volumes()
	_, err = p.Try("plugin", "disable", "-f", p.Name)
	_, err2 := p.Try("plugin", "rm", "-f", p.Name)
	if len(left) > 0 {
		return errors.Join(err, err2, fmt.Errorf("volumes are left: %v", left))
	}
	return errors.Join(err, err2)
}

// Volumes names the plugin's volumes as docker lists them.
func (p *Plugin) Volumes() []string {
	out, _ := p.Try("volume", "ls", "-q", "--filter", "driver="+p.Name+":latest")
	return strings.Fields(out)
}

// Store is a path below the data root.
func (p *Plugin) Store(elem ...string) string {
	return filepath.Join(append([]string{p.Data, "pgoverlay"}, elem...)...)
}

// PID is the plugin's process, 0 where there is none.
func (p *Plugin) PID() int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if string(cmdline) != "/pgoverlay\x00serve\x00" {
			continue
		}
		// Its root lies in the engine's own folder; the process is of this plugin if its
		// mounts are. A process that is ending has none.
		if mounts, _ := os.ReadFile(filepath.Join(dir, "mountinfo")); strings.Contains(string(mounts), p.Root()+"/plugins/"+p.id()) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	return 0
}

func (p *Plugin) id() string {
	dirs, _ := filepath.Glob(p.Root() + "/plugins/*/config.json")
	for _, config := range dirs {
		var c struct {
			PluginObj struct{ Name, ID string } `json:"plugin"`
		}
		data, _ := os.ReadFile(config)
		if json.Unmarshal(data, &c) == nil && strings.TrimSuffix(c.PluginObj.Name, ":latest") == p.Name {
			return c.PluginObj.ID
		}
	}
	return "no such plugin"
}

// Signal sends the plugin's process a signal.
func (p *Plugin) Signal(signal syscall.Signal) error {
	pid := p.PID()
	if pid == 0 {
		return errors.New("the plugin does not run")
	}
	return syscall.Kill(pid, signal)
}

// Restarted waits until another process than old serves.
func (p *Plugin) Restarted(old int) error {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if pid := p.PID(); pid != 0 && pid != old {
			if _, err := p.Try("volume", "ls"); err == nil {
				return nil
			}
		}
	}
	return errors.New("dockerd does not start the plugin again")
}

// Order has the plugin fail at the n-th step from now: "abort", or "sleep 3s".
func (p *Plugin) Order(n int, what string) error {
	_ = os.Remove(filepath.Join(p.Data, filepath.Base(contract.FaultHit)))
	return os.WriteFile(filepath.Join(p.Data, filepath.Base(contract.FaultFile)), fmt.Appendf(nil, "%d %s", n, what), 0o600)
}

// Hit is the step at which the plugin failed as ordered, empty where it has not come
// so far; the order is then taken back.
func (p *Plugin) Hit() (step string) {
	name, err := os.ReadFile(filepath.Join(p.Data, filepath.Base(contract.FaultHit)))
	if errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(filepath.Join(p.Data, filepath.Base(contract.FaultFile)))
	}
	return string(name)
}

var volumeMount = regexp.MustCompile(`/propagated-mount/live/([0-9a-f]{16}) `)

// Mounted gives the ids of the volumes that are mounted on the host and in the plugin.
func (p *Plugin) Mounted() (host, plugin []string) {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	seen := map[string]bool{}
	for line := range strings.Lines(string(mounts)) {
		m := volumeMount.FindStringSubmatch(line)
		if m != nil && strings.Contains(line, p.Root()+"/plugins/"+p.id()) && !seen[m[1]] {
			seen[m[1]] = true
			host = append(host, m[1])
		}
	}
	mounts, _ = os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.PID()))
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], "/mnt/volumes/live/") {
			plugin = append(plugin, strings.TrimPrefix(fields[4], "/mnt/volumes/live/"))
		}
	}
	return host, plugin
}

// Refs sums up the counts of mounts that the plugin has on disk for a branch or staging
// volume, by the volume's name.
func (p *Plugin) Refs() map[string]int {
	all := map[string]int{}
	files, _ := filepath.Glob(p.Store("*/*/mounts.json"))
	for _, file := range files {
		var meta struct{ Name string }
		var m struct{ Refs map[string]int }
		data, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "meta.json"))
		_ = json.Unmarshal(data, &meta)
		data, _ = os.ReadFile(file)
		_ = json.Unmarshal(data, &m)
		for _, n := range m.Refs {
			all[meta.Name] += n
		}
	}
	return all
}
