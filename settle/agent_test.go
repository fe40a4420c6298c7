package settle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func lastEvent(t *testing.T, out string) contract.AgentEvent {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var ev contract.AgentEvent
	assert.NilError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &ev), out)
	return ev
}

func TestRunUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"nonsense"}, {"probe", "extra"}, {"ready", "extra"}, {"dial", "--nonsense"}} {
		var stderr bytes.Buffer
		assert.Equal(t, Run(args, strings.NewReader(""), io.Discard, &stderr), exitUsage, fmt.Sprint(args))
	}
}

func TestRunBadRequest(t *testing.T) {
	var out bytes.Buffer
	code := Run([]string{"probe"}, strings.NewReader(`{"source":{"password":"hunter2"`), &out, io.Discard)
	assert.Equal(t, code, exitFailed)
	ev := lastEvent(t, out.String())
	assert.Assert(t, ev.Error != nil)
	assert.Assert(t, !strings.Contains(out.String(), "hunter2"))
}

// The end of standard input must end a probe of a server that never answers.
func TestRunEndsWithItsCaller(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NilError(t, err)
	defer silent.Close()
	in, caller := io.Pipe()
	go func() {
		fmt.Fprintf(caller, `{"source":{"url":"postgres://app@%s/x?sslmode=disable"}}`, silent.Addr())
		time.Sleep(50 * time.Millisecond)
		caller.Close()
	}()
	var out bytes.Buffer
	began := time.Now()
	assert.Equal(t, Run([]string{"probe"}, in, &out, io.Discard), exitFailed)
	assert.Assert(t, time.Since(began) < 3*time.Second)
	assert.Equal(t, lastEvent(t, out.String()).Error.Code, contract.AgentErrInterrupted)
}

func TestProgressIsThrottled(t *testing.T) {
	var out bytes.Buffer
	ev := newEvents(&out)
	for done := range int64(1000) {
		ev.progress("freeze", done, 1000)
	}
	ev.progress("freeze", 1000, 1000)
	assert.Equal(t, strings.Count(out.String(), "\n"), 2, out.String())
	assert.Equal(t, lastEvent(t, out.String()).Done, int64(1000))
}

// What the server still says after its client is done must arrive.
func TestDialHalfClose(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	assert.NilError(t, err)
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		text, _ := io.ReadAll(conn) // until the client's half is closed
		fmt.Fprintf(conn, "got %s", text)
		conn.Close()
	}()
	var out, stderr bytes.Buffer
	assert.Equal(t, Run([]string{"dial", "--socket", socket}, strings.NewReader("hello"), &out, &stderr), exitOK, stderr.String())
	assert.Equal(t, out.String(), "got hello")
}

func TestDialWithoutServer(t *testing.T) {
	var stderr bytes.Buffer
	code := Run([]string{"dial", "--socket", filepath.Join(t.TempDir(), "none")}, strings.NewReader(""), io.Discard, &stderr)
	assert.Equal(t, code, exitFailed)
	assert.Assert(t, strings.Contains(stderr.String(), "no such file"), stderr.String())
}

func TestReadyTimesOut(t *testing.T) {
	var out bytes.Buffer
	code := Run([]string{"ready", "--timeout", "900ms", "--socket-dir", t.TempDir()}, nil, &out, io.Discard)
	assert.Equal(t, code, exitFailed)
	ev := lastEvent(t, out.String())
	assert.Equal(t, ev.Error.Code, contract.AgentErrNoServer)
	assert.Assert(t, strings.Contains(ev.Error.Message, "after 900ms"), ev.Error.Message)
	assert.Assert(t, strings.Contains(ev.Error.Message, "no such file"), ev.Error.Message)
}

func TestARequestIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		caller, agent := net.Pipe()
		defer caller.Close()
		began := time.Now()
		go func() {
			for range 5 { // white space is a sign of life
				time.Sleep(contract.RequestWithin / 2)
				_, _ = caller.Write([]byte("\n"))
			}
		}()
		var req contract.ProbeRequest
		err := (&input{r: agent, ended: func() {}}).request(&req)
		assert.ErrorContains(t, err, "no valid request")
		assert.Equal(t, time.Since(began), contract.RequestWithin*7/2)
		agent.Close()
	})
}
