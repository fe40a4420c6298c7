package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// helper is one run of the agent in a container of its own.
type helper struct {
	// Seed is the seed that is being made, for the label and the messages; Object is
	// what the messages name instead, where it is set.
	Seed, Object string
	// Image runs it, and Agent is the agent's path there.
	Image, Agent string
	// Verb is one of the contract.Agent* verbs, Request its request.
	Verb    string
	Request any
	// Network is a network's name, "none" or "host"; empty is the default bridge.
	Network string
	// Stage is the staging volume, mounted at stagePath; empty mounts none.
	Stage string
	// ReadOnly mounts it so.
	ReadOnly bool
	// Hide is the image's own VOLUME, which nothing is written to.
	Hide string
}

// stagePath is where helper containers see the staging volume.
const stagePath = "/pgbranch"

// helperShm is the size of a helper's /dev/shm, bytes. Docker's default of 64 MiB
// stops a parallel VACUUM or index build in the settle.
const helperShm = 1 << 30

// run runs the agent and gives its last event. It leaves no container behind,
// whatever happens to ctx.
func (e *Engine) run(ctx context.Context, h helper, progress ProgressFunc) (contract.AgentEvent, error) {
	s, err := e.begin(ctx, h)
	if err != nil {
		return contract.AgentEvent{}, err
	}
	defer s.drop(ctx)
	return s.ask(ctx, h.Request, progress)
}

// runAndGo is run, but does not wait until the container is gone; going does.
func (e *Engine) runAndGo(ctx context.Context, going *sync.WaitGroup, h helper, progress ProgressFunc) (contract.AgentEvent, error) {
	s, err := e.begin(ctx, h)
	if err != nil {
		return contract.AgentEvent{}, err
	}
	defer going.Go(func() { s.drop(ctx) })
	return s.ask(ctx, h.Request, progress)
}

// session is a helper whose container runs and waits for its request.
type session struct {
	engine *Engine
	helper helper
	id     string
	conn   types.HijackedResponse
	exited <-chan container.WaitResponse
	failed <-chan error
	// sent, where it is set, is called when the request is on its way.
	sent func()
}

// begin starts a helper's container. Its agent waits for the request, and ends by
// itself should none come. Where begin fails it leaves no container behind; else drop must
// be called.
func (e *Engine) begin(ctx context.Context, h helper) (*session, error) {
	id, err := e.createContainer(ctx, "pgbranch-"+h.Verb+"-"+nonce(), h.config(), h.hostConfig(), nil)
	if err != nil {
		return nil, translate(err, h.object())
	}
	s := &session{engine: e, helper: h, id: id}
	if err := s.start(ctx); err != nil {
		s.drop(ctx)
		return nil, s.failure(ctx, contract.AgentEvent{}, err)
	}
	return s, nil
}

func (s *session) start(ctx context.Context) (err error) {
	if s.conn, err = s.engine.api.ContainerAttach(ctx, s.id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true}); err != nil {
		return err
	}
	s.exited, s.failed = s.engine.api.ContainerWait(ctx, s.id, container.WaitConditionNextExit)
	return s.engine.api.ContainerStart(ctx, s.id, container.StartOptions{})
}

// ask hands the agent its request, waits for its end and gives its last event.
func (s *session) ask(ctx context.Context, request any, progress ProgressFunc) (contract.AgentEvent, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return contract.AgentEvent{}, err
	}
	last, err := s.converse(ctx, text, progress)
	return last, s.failure(ctx, last, err)
}

// drop removes the container, and returns when it is gone.
func (s *session) drop(ctx context.Context) {
	if s.conn.Conn != nil {
		s.conn.Close()
	}
	s.engine.dropContainer(ctx, s.id)
}

// failure is the error of a run that ended with this last event and this err.
func (s *session) failure(ctx context.Context, last contract.AgentEvent, err error) error {
	h := s.helper
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case last.Error != nil:
		return h.failed(last.Error)
	case err == nil:
		return nil
	}
	if missing := networkMissing(err, h.Network); missing != nil {
		return missing
	}
	return &Error{Object: h.object(), Cause: "the helper container failed at " + h.Verb, Err: err}
}

func (h helper) object() string {
	if h.Object != "" {
		return h.Object
	}
	return seedObject(h.Seed)
}

func (h helper) config() *container.Config {
	return &container.Config{
		Image: h.Image,
		// The agent needs root only to hand folders to the image's postgres user and to
		// become it; its children never are root.
		User:       "0:0",
		Entrypoint: []string{h.Agent, "agent", h.Verb},
		// An empty command, or the image's own would be appended as arguments.
		Cmd:       []string{},
		OpenStdin: true, StdinOnce: true,
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Labels: map[string]string{LabelHelper: h.Seed},
	}
}

func (h helper) hostConfig() *container.HostConfig {
	host := &container.HostConfig{
		NetworkMode: container.NetworkMode(h.Network),
		ShmSize:     helperShm,
		// Nothing that passes through the agent's output belongs on the host's disk.
		LogConfig: container.LogConfig{Type: "none"},
		// When this program dies without a word, the agent sees its input end and exits.
		AutoRemove: true,
	}
	if h.Hide != "" {
		// Or the Engine makes an anonymous volume for it, which a kill could leave.
		host.Tmpfs = map[string]string{h.Hide: "size=1m"}
	}
	if h.Stage != "" {
		host.Mounts = []mount.Mount{ourVolume(h.Stage, stagePath)}
		host.Mounts[0].ReadOnly = h.ReadOnly
	}
	return host
}

func (h helper) failed(a *contract.AgentError) error {
	kind := KindSource
	switch a.Code {
	case contract.AgentErrFailed, contract.AgentErrInterrupted, "":
		kind = KindOther
	case contract.AgentErrMajor, contract.AgentErrImage:
		kind = KindInvalid
	}
	return &Error{Kind: kind, Object: h.object(), Cause: a.Message, Hint: a.Hint, Log: a.Log}
}

// converse hands the agent its request and reads its events until it exits. The input
// stays open till then: its end tells the agent that its caller is gone.
func (s *session) converse(ctx context.Context, request []byte, progress ProgressFunc) (contract.AgentEvent, error) {
	var last contract.AgentEvent
	// The hijacked connection knows nothing of ctx.
	stop := context.AfterFunc(ctx, s.conn.Close)
	defer stop()
	if _, err := s.conn.Conn.Write(append(request, '\n')); err != nil {
		return last, err
	}
	if s.sent != nil {
		s.sent()
	}
	stderr, err := readEvents(s.conn.Reader, func(ev contract.AgentEvent) {
		last = ev
		if ev.Stage != "" {
			progress(Progress{Stage: ev.Stage, Done: ev.Done, Total: ev.Total, Message: ev.Message, CPUSeconds: ev.CPUSeconds})
		}
	})
	if err != nil {
		return last, err
	}
	select {
	case status := <-s.exited:
		if status.StatusCode != 0 && last.Error == nil {
			return last, fmt.Errorf("exit status %d%s", status.StatusCode, stderr)
		}
		return last, nil
	case err := <-s.failed:
		return last, err
	}
}

// readEvents reads a container's multiplexed output: events on stdout, and the
// last line of stderr for a failure that is no event.
func readEvents(r io.Reader, each func(contract.AgentEvent)) (string, error) {
	out, in := io.Pipe()
	stderr := &lastLine{}
	var copyErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		_, copyErr = stdcopy.StdCopy(in, stderr, r)
		_ = in.Close()
	})
	scanner := bufio.NewScanner(out)
	scanner.Buffer(nil, 4<<20) // a manifest is one line
	var parseErr error
	for scanner.Scan() {
		var ev contract.AgentEvent
		if err := json.Unmarshal(scanner.Bytes(), &ev); err != nil {
			parseErr = fmt.Errorf("unexpected output %q", scanner.Text())
			continue
		}
		each(ev)
	}
	_ = out.CloseWithError(scanner.Err())
	wg.Wait()
	return stderr.String(), errors.Join(scanner.Err(), parseErr, copyErr)
}

// lastLine keeps the last line written to it.
type lastLine struct{ line string }

func (l *lastLine) Write(p []byte) (int, error) {
	for _, line := range strings.Split(strings.TrimSpace(string(p)), "\n") {
		if line != "" {
			l.line = line
		}
	}
	return len(p), nil
}

func (l *lastLine) String() string {
	if l.line == "" {
		return ""
	}
	return ": " + l.line
}
