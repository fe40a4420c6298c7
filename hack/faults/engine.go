//go:build e2e

// Package faults runs a private Docker engine, with roots of its own, that a test may
// stop, kill and start again without harm to the engine that the machine uses, and in
// it a build of the plugin that dies or waits at a step of the test's choice.
//
// It needs root, dockerd and containerd in the PATH, and no service manager.
package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	// bootPatience is how long dockerd may take to answer. It gives each volume whose
	// driver is gone 15 s first (pkg/plugins/plugins.go).
	bootPatience = 60 * time.Second
	// stopPatience is how long a daemon may take to end after SIGTERM.
	stopPatience = 60 * time.Second
)

// Engine is a private dockerd with a containerd of its own. Containers in it have no
// network but none and their own loopback.
type Engine struct {
	// Dir holds everything of it on disk; run holds its sockets. The path of a plugin's
	// socket has the plugin's 64 digits in it, and a socket's path at most 107 bytes.
	Dir, run string
	// LiveRestore is for the next Boot: containers outlive dockerd.
	LiveRestore bool
	// Args are more flags of dockerd, and Wrap a command that runs it.
	Args, Wrap []string

	containerd, dockerd *exec.Cmd
	// ended is closed when dockerd has ended.
	ended chan struct{}
}

// New makes an engine that is not started yet. Close removes it.
func New() (*Engine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a private engine needs root")
	}
	for _, program := range []string{"dockerd", "containerd", "docker"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("a private engine needs %s: %w", program, err)
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "pgbranch-faults-")
	if err != nil {
		return nil, err
	}
	run, err := os.MkdirTemp("/run", "pgbf")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	e := &Engine{Dir: dir, run: run}
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\n  address = %q\n[ttrpc]\n  address = %q\n",
		filepath.Join(dir, "containerd"), filepath.Join(run, "cd"), e.containerdSocket(), e.containerdSocket()+".ttrpc")
	if err := os.WriteFile(filepath.Join(dir, "containerd.toml"), []byte(config), 0o600); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Engine) containerdSocket() string { return filepath.Join(e.run, "c.sock") }

// Host is what DOCKER_HOST is to be.
func (e *Engine) Host() string { return "unix://" + filepath.Join(e.run, "d.sock") }

// Root is dockerd's own folder.
func (e *Engine) Root() string { return filepath.Join(e.Dir, "docker") }

// daemons starts programs from a thread that lives as long as the test: the kernel
// sends Pdeathsig when the thread that started a child ends, not the process.
var daemons = func() chan func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		for job := range jobs {
			job()
		}
	}()
	return jobs
}()

// start starts a daemon in a session of its own, so that an interrupt of the test does
// not reach it, and with its output in a file. Its network namespace is its own too: a
// dockerd with --bridge=none removes docker0 (moby daemon/daemon_unix.go,
// removeDefaultBridgeInterface), which is that of the engine beside it.
func (e *Engine) start(name string, command ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(e.LogFile(name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM, Cloneflags: syscall.CLONE_NEWNET}
	done := make(chan error)
	daemons <- func() { done <- cmd.Start() }
	return cmd, <-done
}

// LogFile is where a daemon's output goes.
func (e *Engine) LogFile(name string) string { return filepath.Join(e.Dir, name+".log") }

// Boot starts what does not run and waits until dockerd answers.
func (e *Engine) Boot() error {
	var err error
	if e.containerd == nil {
		if e.containerd, err = e.start("containerd", "containerd", "--config", filepath.Join(e.Dir, "containerd.toml")); err != nil {
			return err
		}
		if err := e.await("containerd", func() bool { _, err := os.Stat(e.containerdSocket()); return err == nil }); err != nil {
			return err
		}
	}
	args := []string{
		"--host", e.Host(), "--data-root", e.Root(), "--exec-root", e.run, "--pidfile=", "--config-file=" + filepath.Join(e.Dir, "daemon.json"),
		"--containerd", e.containerdSocket(), "--bridge=none", "--iptables=false", "--ip6tables=false",
	}
	if e.LiveRestore {
		args = append(args, "--live-restore")
	}
	command := append(append(slices.Clone(e.Wrap), "dockerd"), append(args, e.Args...)...)
	if err := os.WriteFile(filepath.Join(e.Dir, "daemon.json"), []byte("{}"), 0o600); err != nil {
		return err
	}
	return e.serve(command)
}

// serve starts dockerd by this command and waits until it answers.
func (e *Engine) serve(command []string) (err error) {
	if e.dockerd, err = e.start("dockerd", command...); err != nil {
		return err
	}
	e.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) { _ = cmd.Wait(); close(ended) }(e.dockerd, e.ended)
	// Not "version": a rootless dockerd whose RootlessKit has no network driver falls over it
	// (moby daemon/info_unix.go, fillRootlessVersion).
	return e.await("dockerd", func() bool { _, err := e.Try("info"); return err == nil })
}

// await polls until ready or until dockerd has ended.
func (e *Engine) await(name string, ready func() bool) error {
	deadline := time.Now().Add(bootPatience)
	for !ready() {
		if e.ended != nil {
			select {
			case <-e.ended:
				return fmt.Errorf("%s ended: %s", name, e.LogTail(name))
			default:
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer: %s", name, e.LogTail(name))
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// LogTail is the end of a daemon's output.
func (e *Engine) LogTail(name string) string {
	data, _ := os.ReadFile(e.LogFile(name))
	lines := strings.Split(string(data), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// Kill ends dockerd with SIGKILL. Containers and plugins go on.
func (e *Engine) Kill() error { return e.end(syscall.SIGKILL) }

// Stop ends dockerd in order.
func (e *Engine) Stop() error { return e.end(syscall.SIGTERM) }

func (e *Engine) end(signal syscall.Signal) error {
	if e.ended == nil {
		return nil
	}
	if err := e.dockerd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-e.ended:
		e.ended = nil
		return nil
	case <-time.After(stopPatience):
		return fmt.Errorf("dockerd does not end: %s", e.LogTail("dockerd"))
	}
}

// Try runs docker against the engine and gives its output without the final newline.
func (e *Engine) Try(args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+e.Host(), "DOCKER_CONTEXT=")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSuffix(stdout.String(), "\n"), err
}

// LoadImage copies an image from the engine that the machine uses.
func (e *Engine) LoadImage(image string) error {
	save := exec.Command("docker", "save", image)
	load := exec.Command("docker", "load", "-q")
	load.Env = append(os.Environ(), "DOCKER_HOST="+e.Host(), "DOCKER_CONTEXT=")
	var said bytes.Buffer
	save.Stderr, load.Stderr = &said, &said
	var err error
	if load.Stdin, err = save.StdoutPipe(); err != nil {
		return err
	}
	if err := load.Start(); err != nil {
		return err
	}
	if err := errors.Join(save.Run(), load.Wait()); err != nil {
		return fmt.Errorf("copy image %s: %w: %s", image, err, said.String())
	}
	return nil
}

// Close removes the engine with all that is in it.
func (e *Engine) Close() error {
	var errs []error
	if e.ended != nil {
		if out, err := e.Try("ps", "-aq"); err == nil {
			for _, id := range strings.Fields(out) {
				_, _ = e.Try("rm", "-f", id)
			}
		}
		errs = append(errs, e.Stop())
	}
	if e.containerd != nil {
		errs = append(errs, e.containerd.Process.Signal(syscall.SIGTERM))
		_ = e.containerd.Wait()
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, e.Dir+"/") && !strings.HasPrefix(m.Mountpoint, e.run+"/"), false
	})
	errs = append(errs, err)
	slices.Reverse(mounts)
	for _, m := range mounts {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, fs.ErrInvalid) {
			errs = append(errs, &fs.PathError{Op: "unmount", Path: m.Mountpoint, Err: err})
		}
	}
	return errors.Join(append(errs, os.RemoveAll(e.Dir), os.RemoveAll(e.run))...)
}
