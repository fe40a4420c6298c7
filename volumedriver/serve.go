package volumedriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// shutdownPatience is how long a shutdown waits for requests under way. dockerd kills
// a plugin ten seconds after SIGTERM (plugin/manager_linux.go, shutdownPlugin).
const shutdownPatience = 8 * time.Second

// Serve listens on the unix socket and serves until the context ends. Then it stops
// accepting, lets requests under way end, and unmounts nothing.
func (d *Driver) Serve(ctx context.Context, socket string) error {
	listener, err := listen(socket)
	if err != nil {
		return failed("socket "+socket, "listen on it", err)
	}
	w := &wire{driver: d, log: d.log}
	ended := make(chan error, 1)
	handler := w.handler()
	go func() { ended <- handler.Serve(dialListener{listener, sync.OnceFunc(func() { close(d.reached) })}) }()
	d.log.Info("serving", "socket", socket, "store", d.StoreID(), "volumes", len(d.List()))
	select {
	case err := <-ended:
		return fmt.Errorf("serve %s: %w", socket, err)
	case <-ctx.Done():
	}
	d.log.Info("shutting down; mounts stay")
	if err := listener.Close(); err != nil {
		d.log.Warn("cannot close the socket", "error", err)
	}
	done := make(chan struct{})
	go func() { w.busy.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-time.After(shutdownPatience):
		return errors.New("requests were still under way at shutdown")
	}
}

// dialListener has told called at the end of a connection that asked nothing: dockerd
// makes such a one to see whether a plugin that it has started listens.
type dialListener struct {
	net.Listener
	told func()
}

func (l dialListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &dialConn{Conn: conn, told: l.told}, nil
}

type dialConn struct {
	net.Conn
	asked atomic.Bool
	told  func()
}

func (c *dialConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.asked.Store(true)
	}
	return n, err
}

func (c *dialConn) Close() error {
	if !c.asked.Load() {
		c.told()
	}
	return c.Conn.Close()
}

// listen makes the socket. One that a crash left behind is removed first: the plugin's
// root file system outlives the plugin's process.
func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o660); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// logLines is how many lines the log holds back while nobody reads its pipe.
const logLines = 1024

// LossyWriter writes to a pipe that nobody may be reading: dockerd reads a plugin's
// output only while it is up, and with live-restore the plugin runs on without it. It
// drops what does not fit, so that no request ever waits for the log.
type LossyWriter struct {
	lines chan []byte
	done  chan struct{}
}

// NewLossyWriter starts a writer to w.
func NewLossyWriter(w io.Writer) *LossyWriter {
	l := &LossyWriter{lines: make(chan []byte, logLines), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for line := range l.lines {
			_, _ = w.Write(line) // nowhere to report it
		}
	}()
	return l
}

// Write implements io.Writer. It never fails and never waits.
func (l *LossyWriter) Write(line []byte) (int, error) {
	select {
	case l.lines <- append([]byte(nil), line...):
	default:
	}
	return len(line), nil
}

// Close writes out what is held back, for at most a second. Nothing may be written
// after it.
func (l *LossyWriter) Close() {
	close(l.lines)
	select {
	case <-l.done:
	case <-time.After(time.Second):
	}
}
