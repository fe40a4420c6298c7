package volumedriver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// served runs a bench's Driver behind its socket and gives a client of it.
func (b *bench) served() (*http.Client, func() error) {
	b.t.Helper()
	dir, err := os.MkdirTemp("", "pgo") // short: a socket's path has 107 bytes at most
	assert.NilError(b.t, err)
	b.t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s.sock")
	assert.NilError(b.t, os.WriteFile(socket, nil, 0o600), "a socket that a crash left behind")
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.d.Serve(ctx, socket) }()
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) },
	}}
	for range 500 {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			break
		}
		time.Sleep(time.Millisecond)
	}
	end := func() error { stop(); return <-ended }
	b.t.Cleanup(func() { stop() })
	return client, end
}

// call posts a body to a verb and gives the status and the answer.
func call(t *testing.T, c *http.Client, verb, body string) (int, map[string]any) {
	t.Helper()
	resp, err := c.Post("http://plugin/"+verb, "application/json", strings.NewReader(body))
	assert.NilError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	assert.NilError(t, err)
	var answer map[string]any
	assert.NilError(t, json.Unmarshal(data, &answer), "%s", data)
	return resp.StatusCode, answer
}

func TestWire(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	c, end := b.served()
	_, answer := call(t, c, "Plugin.Activate", "")
	assert.DeepEqual(t, answer["Implements"], []any{"VolumeDriver"})
	code, answer := call(t, c, "VolumeDriver.Create", `{"Name":"b1","Opts":{"seed":"nope"}}`)
	assert.Equal(t, code, 500)
	assert.Equal(t, answer["Err"], "branch \"b1\": seed \"nope\" does not exist\nseeds here: shop")
	code, _ = call(t, c, "VolumeDriver.Create", `{"Name":"b1","Opts":{"seed":"shop"}}`)
	assert.Equal(t, code, 200)
	_, answer = call(t, c, "VolumeDriver.Mount", `{"Name":"b1","ID":"x"}`)
	assert.Check(t, is.Contains(answer["Mountpoint"], b.cfg.MountRoot+"/"))
	mountpoint := answer["Mountpoint"]
	_, answer = call(t, c, "VolumeDriver.Path", `{"Name":"b1"}`)
	assert.Equal(t, answer["Mountpoint"], mountpoint)
	_, answer = call(t, c, "VolumeDriver.Get", `{"Name":"b1"}`)
	v := answer["Volume"].(map[string]any)
	_, err := time.Parse(time.RFC3339, v["CreatedAt"].(string))
	assert.NilError(t, err)
	assert.Equal(t, v["Status"].(map[string]any)["mounted"], true)
	_, answer = call(t, c, "VolumeDriver.List", "")
	assert.Equal(t, len(answer["Volumes"].([]any)), 2)
	_, answer = call(t, c, "VolumeDriver.Capabilities", "{}")
	assert.DeepEqual(t, answer["Capabilities"], map[string]any{"Scope": "local"})
	code, answer = call(t, c, "VolumeDriver.Get", `{"Name":"nope"}`)
	assert.Equal(t, code, 500)
	assert.Check(t, is.Contains(answer["Err"], "does not exist here"))
	code, _ = call(t, c, "VolumeDriver.Unmount", `{"Name":"b1","ID":"x"}`)
	assert.Equal(t, code, 200)
	code, _ = call(t, c, "VolumeDriver.Remove", `{"Name":"b1"}`)
	assert.Equal(t, code, 200)
	assert.NilError(t, end())
}

// TestEmptyBody is dockerd's retry after the plugin died in the middle of a request.
func TestEmptyBody(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	_, err := b.d.Mount(t.Context(), "b1", "x")
	assert.NilError(t, err)
	c, _ := b.served()
	for _, verb := range []string{"Create", "Remove", "Mount", "Unmount"} {
		code, answer := call(t, c, "VolumeDriver."+verb, "")
		assert.Equal(t, code, 500)
		assert.Check(t, is.Contains(answer["Err"], "please retry"))
	}
	for _, verb := range []string{"Get", "Path"} {
		resp, err := c.Post("http://plugin/VolumeDriver."+verb, "application/json", strings.NewReader(""))
		if err == nil {
			resp.Body.Close()
		}
		var netErr net.Error
		assert.Check(t, errors.As(err, &netErr), "Docker takes any answer for absence: %v", err)
	}
	assert.DeepEqual(t, b.names(), []string{"b1", "shop@1"})
	assert.Check(t, b.status("b1").Mounted)
}

// TestMountOutlivesItsRequest has dockerd give up while the mount is under way; it will
// send no Unmount.
func TestMountOutlivesItsRequest(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	reached, gone := make(chan struct{}), make(chan struct{})
	b.d.cfg.Step = func(name string) {
		if name == "mount: mounted" {
			close(reached)
			<-gone
		}
	}
	c, end := b.served()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://plugin/VolumeDriver.Mount", strings.NewReader(`{"Name":"b1","ID":"x"}`))
	assert.NilError(t, err)
	go func() {
		<-reached
		cancel()
		time.Sleep(100 * time.Millisecond) // for the server to notice
		close(gone)
	}()
	_, err = c.Do(req)
	assert.ErrorIs(t, err, context.Canceled)
	assert.NilError(t, end(), "a shutdown waits for requests under way")
	assert.Equal(t, len(b.m.table()), 0)
	assert.Check(t, !b.status("b1").Mounted)
}

func TestMountWaitsOnlyAsLongAsItsRequest(t *testing.T) {
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	_, unlock, err := b.d.lockVolume(t.Context(), "b1")
	assert.NilError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = b.d.Mount(ctx, "b1", "x")
	assert.Check(t, is.ErrorContains(err, "wait for another request"))
	assert.Check(t, b.status("b1") != nil, "Get waits for no lock")
	unlock()
	assert.Equal(t, len(b.d.locks.held), 0)
}

func TestLossyWriterNeverWaits(t *testing.T) {
	r, w := io.Pipe() // nobody reads
	l := NewLossyWriter(w)
	done := make(chan struct{})
	go func() {
		for range 10 * logLines {
			_, _ = l.Write([]byte("line\n"))
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("it waits for a reader")
	}
	r.Close()
	l.Close()
}

// TestWhatDockerdGaveUpOnIsRolledBack ends the request in the midst of each operation.
func TestWhatDockerdGaveUpOnIsRolledBack(t *testing.T) {
	for name, opts := range map[string][]string{
		"a branch": {"seed", "shop"}, "a staging volume": {"staging", "other"}, "a branch of a branch": {"branch", "b1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.seal("shop")
			b.mustCreate("b1", "seed", "shop")
			ctx, giveUp := context.WithCancel(t.Context())
			b.d.cfg.Step = func(string) { giveUp() }
			assert.ErrorIs(t, b.d.Create(ctx, "v1", optionMap(opts)), context.Canceled)
			b.absent("v1")
			b.d.cfg.Step = nil
			b.restart()
			b.emptyTrash()
			b.checkNothingLeft()
			b.mustCreate("v1", opts...)
		})
	}
	b := newBench(t)
	b.seal("shop")
	b.mustCreate("b1", "seed", "shop")
	ctx, giveUp := context.WithCancel(t.Context())
	b.d.cfg.Step = func(string) { giveUp() }
	assert.ErrorIs(t, b.d.Remove(ctx, "b1"), context.Canceled)
	b.status("b1")
}
