package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	image = "postgres:17"
	// prefix is of everything that a benchmark makes in the engine.
	prefix   = "bench-"
	password = "bench-password"
)

// Variants, as DESIGN's benchmarks name them.
const (
	Plain  = "A" // a plain volume that holds the same cluster
	Eager  = "B" // a branch without the shim
	Lazy   = "C" // a branch, on the engine's own disk
	LazyXF = "D" // a branch on XFS with reflink, on a loop device
	LazyBt = "E" // a branch on btrfs, on a loop device
	// Plain volumes on the disks of D and E, which throughput there is held against.
	PlainXF = "F"
	PlainBt = "G"
)

var variantNames = map[string]string{
	Plain: "plain volume", Eager: "branch, --cow off", Lazy: "branch, lazyrw, engine's disk",
	LazyXF: "branch, lazyrw, XFS reflink (loop)", LazyBt: "branch, lazyrw, btrfs (loop)",
	PlainXF: "plain volume, XFS reflink (loop)", PlainBt: "plain volume, btrfs (loop)",
}

// plainBeside gives, of each variant that is a plain volume, the branches whose disk it
// is on.
var plainBeside = map[string]string{Plain: Lazy, PlainXF: LazyXF, PlainBt: LazyBt}

func isPlain(variant string) bool { return plainBeside[variant] != "" }

// diskOf gives the variant that a variant's disk goes by.
func diskOf(variant string) string {
	if isPlain(variant) {
		return plainBeside[variant]
	}
	return variant
}

// disks are the file systems beside the engine's own, by variant.
var disks = map[string][]string{
	LazyXF: {"mkfs.xfs", "-q", "-f", "-m", "reflink=1"},
	LazyBt: {"mkfs.btrfs", "-q", "-f"},
}

// Rig is the engine with what the benchmarks made in it.
type Rig struct {
	size Size
	dir  string
	// home is the data mount's source that the plugin has when nothing is measured, at
	// where it is now.
	home, at string
	say      func(format string, args ...any)
}

// openRig takes the engine over. It moves the plugin's data root between disks, at which
// docker forgets the labels of volumes elsewhere, so it refuses an engine with volumes
// of anybody else.
func openRig(dir string, size Size, say func(string, ...any)) (*Rig, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the benchmarks mount loop devices and read device counters: run them as root on the engine's host")
	}
	if err := command("docker", "pgbranch", "setup"); err != nil {
		return nil, err
	}
	list, err := output("docker", "volume", "ls", "-q", "--filter", "driver=pgoverlay:latest")
	if err != nil {
		return nil, err
	}
	for name := range strings.Lines(list) {
		if !strings.HasPrefix(name, prefix) {
			return nil, fmt.Errorf("the volume %s is not of the benchmarks, which move the plugin's data root: remove it, or use an engine of their own", strings.TrimSpace(name))
		}
	}
	r := &Rig{size: size, dir: dir, say: say}
	r.home, err = output("docker", "plugin", "inspect", "pgoverlay", "-f",
		`{{range .Config.Mounts}}{{if eq .Name "data"}}{{.Source}}{{end}}{{end}}`)
	if err != nil {
		return nil, err
	}
	r.at = r.home
	if kept, err := os.ReadFile(r.homeFile()); err == nil {
		r.home = string(kept)
	}
	return r, nil
}

// dataFolder gives the source of the plugin's data mount for a variant, on a disk that
// is made and mounted where need be. mounted tells that it was not mounted before.
func (r *Rig) dataFolder(variant string) (at string, mounted bool, err error) {
	variant = diskOf(variant)
	mkfs, ok := disks[variant]
	if !ok {
		return r.home, false, nil
	}
	base := filepath.Join(r.dir, r.size.Name+"-"+variant)
	disk, at := base+".img", base+".mnt"
	if err := os.MkdirAll(at, 0o755); err != nil {
		return "", false, err
	}
	if exec.Command("mountpoint", "-q", at).Run() == nil {
		return at, false, nil
	}
	if _, err := os.Stat(disk); err != nil {
		if err := command("truncate", "-s", fmt.Sprint(r.size.DiskBytes), disk); err != nil {
			return "", false, err
		}
		if err := command(mkfs[0], append(mkfs[1:], disk)...); err != nil {
			return "", false, err
		}
	}
	return at, true, command("mount", "-o", "loop", disk, at)
}

// use points the plugin at a variant's disk. Nothing may run on it.
func (r *Rig) use(variant string) error {
	at, mounted, err := r.dataFolder(variant)
	if err != nil || (at == r.at && !mounted) {
		return err
	}
	return r.point(at)
}

// homeFile keeps the plugin's own data folder while the plugin is elsewhere: a program
// that is killed meanwhile must not take a loop device for the engine's disk when it
// goes on.
func (r *Rig) homeFile() string { return filepath.Join(r.dir, "home") }

func (r *Rig) point(at string) error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(r.homeFile(), []byte(r.home), 0o644); err != nil {
		return err
	}
	// From here on the plugin may be elsewhere, whatever fails, and close puts it back.
	r.at = at
	for _, args := range [][]string{
		{"plugin", "disable", "-f", "pgoverlay"},
		{"plugin", "set", "pgoverlay", "data.source=" + at, "PGOVERLAY_STORE_ID="},
	} {
		if err := command("docker", args...); err != nil {
			return err
		}
	}
	if err := forgetStore(); err != nil {
		return err
	}
	return command("docker", "plugin", "enable", "pgoverlay")
}

// forgetStore has the plugin forget which store it served (volumedriver.Config.PinFile):
// it would refuse every other disk.
func forgetStore() error {
	root, err := output("docker", "info", "-f", "{{.DockerRootDir}}")
	if err != nil {
		return err
	}
	id, err := output("docker", "plugin", "inspect", "pgoverlay", "-f", "{{.ID}}")
	if err != nil {
		return err
	}
	err = os.Remove(filepath.Join(root, "plugins", id, "propagated-mount", "store"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// close puts the plugin back. Disks and seeds stay for the next session; remove drops
// them.
func (r *Rig) close() error {
	if r.at != r.home {
		// setup pins the data root's id again.
		if err := errors.Join(r.point(r.home), command("docker", "pgbranch", "setup")); err != nil {
			return err
		}
	}
	if err := os.Remove(r.homeFile()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (r *Rig) remove() error {
	var errs []error
	for variant := range disks {
		base := filepath.Join(r.dir, r.size.Name+"-"+variant)
		at := base + ".mnt"
		if exec.Command("mountpoint", "-q", at).Run() == nil {
			if err := r.use(variant); err != nil {
				errs = append(errs, err)
				continue
			}
			errs = append(errs, r.sweep(true), r.point(r.home), command("umount", at))
		}
		errs = append(errs, os.RemoveAll(base+".img"), os.RemoveAll(at))
	}
	errs = append(errs, r.close(), r.sweep(true))
	_ = exec.Command("docker", "network", "rm", prefix+"net").Run() // it need not be there
	return errors.Join(errs...)
}

// sweep removes containers and branches of the benchmarks, and seeds, sources and plain
// volumes too if all is set.
func (r *Rig) sweep(all bool) error {
	ids, err := output("docker", "ps", "-aq", "--filter", "name="+prefix)
	if err != nil {
		return err
	}
	for _, id := range strings.Fields(ids) {
		if err := command("docker", "rm", "-f", "-v", id); err != nil {
			return err
		}
	}
	list, err := output("docker", "volume", "ls", "-q", "--filter", "name="+prefix)
	if err != nil {
		return err
	}
	var later []string
	for _, name := range strings.Fields(list) {
		if keep := strings.Contains(name, "@") || strings.HasPrefix(name, prefix+"plain-"); keep {
			later = append(later, name)
			continue
		}
		if err := command("docker", "volume", "rm", name); err != nil {
			return err
		}
	}
	if all {
		for _, name := range later {
			if err := command("docker", "volume", "rm", name); err != nil {
				return err
			}
		}
	}
	return nil
}

// seed gives the seed of that size on the disk that is in use, made where it is missing.
func (r *Rig) seed(kind string) (string, error) {
	name := prefix + r.size.Name + "-" + kind
	ref, err := output("docker", "pgbranch", "seed", "ls", "-q", "--filter", "name="+name)
	if err != nil || ref != "" {
		return strings.TrimSpace(ref), err
	}
	r.say("making the seed %s on %s", name, r.at)
	source, err := r.source(kind)
	if err != nil {
		return "", err
	}
	return r.seedFrom(source, name)
}

func (r *Rig) seedFrom(source, name string) (string, error) {
	cmd := exec.Command("docker", "pgbranch", "seed", "create", name, "--from", "postgres://postgres@"+source+"/bench",
		"--network", prefix+"net", "--password-stdin", "--progress", "quiet")
	cmd.Stdin = strings.NewReader(password + "\n")
	out, err := cmd.Output()
	if err != nil {
		return "", commandError(err, "docker", cmd.Args[1:])
	}
	return strings.TrimSpace(string(out)), nil
}

// source gives a running server that holds a data set. It is kept for the session.
func (r *Rig) source(kind string) (string, error) {
	name := prefix + "source-" + kind
	if state, _ := output("docker", "inspect", "-f", "{{.State.Running}}", name); state == "true" {
		return name, nil
	}
	_ = exec.Command("docker", "rm", "-f", "-v", name).Run()
	if exec.Command("docker", "network", "inspect", prefix+"net").Run() != nil {
		if err := command("docker", "network", "create", prefix+"net"); err != nil {
			return "", err
		}
	}
	err := command("docker", "run", "-d", "--name", name, "--network", prefix+"net", "--shm-size", "1g",
		"-e", "POSTGRES_PASSWORD="+password, "-e", "POSTGRES_DB=bench", image)
	if err != nil {
		return "", err
	}
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if exec.Command("docker", "exec", name, "pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres").Run() == nil {
			break
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("the source %s does not come up", name)
		}
	}
	r.say("filling the source %s", name)
	cmd := exec.Command("docker", "exec", "-i", name, "bash", "-e", "-c", r.size.fill(kind))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("filling the source: %w\n%s", err, out)
	}
	return name, nil
}

// plainVolume gives a local volume on a plain variant's disk with a copy of a seed's
// cluster, made anew if fresh is set: the cluster that it runs is the settled one, bit by
// bit.
func (r *Rig) plainVolume(variant, kind string, fresh bool) (string, error) {
	if err := r.use(variant); err != nil {
		return "", err
	}
	ref, err := r.seed(kind)
	if err != nil {
		return "", err
	}
	name := r.plainName(variant, kind)
	if exec.Command("docker", "volume", "inspect", name).Run() == nil {
		if !fresh {
			return name, nil
		}
		if err := command("docker", "volume", "rm", name); err != nil {
			return "", err
		}
	}
	from, err := r.onDisk("seeds", ref)
	if err != nil {
		return "", err
	}
	create := []string{"volume", "create"}
	if variant != Plain {
		dir := filepath.Join(r.at, "plain-"+kind)
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			return "", err
		}
		create = append(create, "-o", "type=none", "-o", "o=bind", "-o", "device="+dir)
	}
	if err := command("docker", append(create, name)...); err != nil {
		return "", err
	}
	// A copy that shares its blocks with the seed would pay at the first write, as a branch.
	return name, command("docker", "run", "--rm", "-u", "0", "--entrypoint", "bash", "-v", filepath.Join(from, "root")+":/from:ro",
		"-v", name+":/to", image, "-c", "cp -a --reflink=never /from/. /to/ && sync -f /to")
}

func (r *Rig) plainName(variant, kind string) string {
	name := prefix + "plain-" + r.size.Name + "-" + kind
	if variant != Plain {
		name += "-" + strings.ToLower(variant)
	}
	return name
}

// onDisk gives the folder of a branch or of a seed generation below the data root.
func (r *Rig) onDisk(kind, name string) (string, error) {
	metas, err := filepath.Glob(filepath.Join(r.at, "pgoverlay", kind, "*", "meta.json"))
	if err != nil {
		return "", err
	}
	for _, meta := range metas {
		raw, err := os.ReadFile(meta)
		if err != nil {
			return "", err
		}
		var m struct {
			Name       string
			Generation int
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			return "", err
		}
		if kind == "seeds" {
			m.Name = fmt.Sprintf("%s@%d", m.Name, m.Generation)
		}
		if m.Name == name {
			return filepath.Dir(meta), nil
		}
	}
	return "", fmt.Errorf("no %s/%s below %s", kind, name, r.at)
}

// command runs a program that must succeed.
func command(name string, args ...string) error {
	var errs bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return nil
}

// commandError adds to an error of exec what the program said.
func commandError(err error, name string, args []string) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(exit.Stderr)))
	}
	return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
}
