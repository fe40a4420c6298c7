package main

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is where a session ran.
type Host struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	MemoryMiB int64  `json:"memoryMiB"`
	Kernel    string `json:"kernel"`
	OS        string `json:"os"`
	Engine    string `json:"engine"`
	Postgres  string `json:"postgres"`
	// Version is that of docker pgbranch.
	Version string `json:"version"`
	// DataRoot is the file system of the engine's own disk.
	DataRoot string `json:"dataRoot"`
}

func describeHost() (Host, error) {
	h := Host{Cores: runtime.NumCPU(), CPU: field("/proc/cpuinfo", "model name"), OS: osName()}
	kib, _ := strconv.ParseInt(strings.Fields(field("/proc/meminfo", "MemTotal") + " 0")[0], 10, 64)
	h.MemoryMiB = kib / 1024
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return h, err
	}
	h.Kernel = unix.ByteSliceToString(u.Release[:])
	var err error
	if h.Engine, err = output("docker", "version", "--format", "{{.Server.Version}}"); err != nil {
		return h, err
	}
	if h.Postgres, err = output("docker", "run", "--rm", "--entrypoint", "postgres", image, "--version"); err != nil {
		return h, err
	}
	if h.Version, err = output("docker", "pgbranch", "version"); err != nil {
		return h, err
	}
	root, err := output("docker", "info", "--format", "{{.DockerRootDir}}")
	if err != nil {
		return h, err
	}
	h.DataRoot, err = output("stat", "-f", "-c", "%T", root)
	return h, err
}

func osName() string {
	raw, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
	return runtime.GOOS
}

// field gives the first value of a name in a file of "name : value" lines.
func field(file, name string) string {
	raw, _ := os.ReadFile(file)
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// load is the load average of one minute.
func load() float64 {
	raw, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(raw), " ")
	l, _ := strconv.ParseFloat(first, 64)
	return l
}

// output runs a program and gives what it printed.
func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return "", commandError(err, name, args)
	}
	return strings.TrimSpace(string(out)), nil
}
