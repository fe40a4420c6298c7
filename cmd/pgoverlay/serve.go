package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pgbranch/docker-pgbranch/shim"
	"github.com/pgbranch/docker-pgbranch/volumedriver"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Where config.json puts things. The data root is a folder of its own in the data
// mount, since that mount's default source is a folder of dockerd's that every engine
// has: a source that can be missing makes dockerd panic at boot.
const (
	defaultData   = contract.DataMount + "/pgoverlay"
	defaultMounts = "/mnt/volumes"
	defaultSocket = "/run/docker/plugins/pgoverlay.sock"
	// envLog is the log level: debug, info, warn or error.
	envLog = "PGOVERLAY_LOG"
)

// step is called between the steps of the driver's operations; nil outside of tests.
var step func(name string)

func serve(args []string) int {
	flags := flag.NewFlagSet("pgoverlay serve", flag.ContinueOnError)
	data := flags.String("data", defaultData, "data root")
	mounts := flags.String("mounts", defaultMounts, "folder to mount volumes in, propagated to the host")
	socket := flags.String("socket", defaultSocket, "unix socket to listen on")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 2
	}
	// dockerd logs a plugin's standard error at error level (plugin/manager.go).
	out := volumedriver.NewLossyWriter(os.Stdout)
	defer out.Close()
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: logLevel(), ReplaceAttr: withoutTime}))

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	driver, err := volumedriver.Open(volumedriver.Config{
		DataRoot: *data, MountRoot: filepath.Join(*mounts, "live"), StoreID: os.Getenv(contract.EnvStoreID),
		PinFile: filepath.Join(*mounts, "store"),
		Version: version, Shim: func() ([]byte, error) { return shim.Object(runtime.GOARCH) }, Agent: "/proc/self/exe",
		Mounter: volumedriver.KernelMounter{}, Log: log, Step: step,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgoverlay:", err)
		linger(ctx)
		return 1
	}
	defer driver.Close()
	var cutOff atomic.Bool
	if os.Getpid() == 1 { // else nobody starts it again
		go func() {
			if driver.AwaitCutOff(ctx) {
				cutOff.Store(true)
				stop()
			}
		}()
	}
	go driver.Background(ctx)
	if err := driver.Serve(ctx, *socket); err != nil {
		fmt.Fprintln(os.Stderr, "pgoverlay:", err)
		return 1
	}
	if cutOff.Load() {
		fmt.Fprintln(os.Stderr, "pgoverlay: its mounts do not reach the engine's host; ending, so that dockerd starts it again and binds them anew")
		return 1
	}
	return 0
}

// lingerAfterFailure is longer than dockerd tries to reach a plugin that does not
// listen, about nine seconds.
const lingerAfterFailure = 15 * time.Second

// linger keeps a plugin that cannot serve alive until dockerd gives it up. dockerd
// starts a plugin that exits while it is being enabled again and again, each time with
// another attempt to reach it, and each of those in the end sends SIGTERM to whatever
// runs under the plugin's id then, be it the next one, set up rightly
// (plugin/manager.go, HandleExitEvent; plugin/manager_linux.go, pluginPostStart).
func linger(ctx context.Context) {
	if os.Getpid() != 1 {
		return // no plugin, but somebody's shell
	}
	select {
	case <-ctx.Done():
	case <-time.After(lingerAfterFailure):
	}
}

func logLevel() slog.Level {
	var level slog.Level
	if level.UnmarshalText([]byte(os.Getenv(envLog))) != nil {
		return slog.LevelInfo
	}
	return level
}

// withoutTime drops the time, which dockerd adds to every line.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
