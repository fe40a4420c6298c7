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
	request, err := json.Marshal(h.Request)
	if err != nil {
		return contract.AgentEvent{}, err
	}
	id, err := e.createContainer(ctx, "pgbranch-"+h.Verb+"-"+nonce(), h.config(), h.hostConfig(), nil)
	if err != nil {
		return contract.AgentEvent{}, translate(err, h.object())
	}
	defer e.dropContainer(ctx, id)
	last, err := e.converse(ctx, id, request, progress)
	switch {
	case ctx.Err() != nil:
		return last, context.Cause(ctx)
	case last.Error != nil:
		return last, h.failed(last.Error)
	case err == nil:
		return last, nil
	}
	if missing := networkMissing(err, h.Network); missing != nil {
		return last, missing
	}
	return last, &Error{Object: h.object(), Cause: "the helper container failed at " + h.Verb, Err: err}
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

// converse starts the container, hands it the request and reads its events until
// it exits. The input stays open till then: its end tells the agent that its
// caller is gone.
func (e *Engine) converse(ctx context.Context, id string, request []byte, progress ProgressFunc) (contract.AgentEvent, error) {
	var last contract.AgentEvent
	conn, err := e.api.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return last, err
	}
	defer conn.Close()
	// The hijacked connection knows nothing of ctx.
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()

	exited, waitErr := e.api.ContainerWait(ctx, id, container.WaitConditionNextExit)
	if err := e.api.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return last, err
	}
	if _, err := conn.Conn.Write(append(request, '\n')); err != nil {
		return last, err
	}
	stderr, err := readEvents(conn.Reader, func(ev contract.AgentEvent) {
		last = ev
		if ev.Stage != "" {
			progress(Progress{Stage: ev.Stage, Done: ev.Done, Total: ev.Total, Message: ev.Message})
		}
	})
	if err != nil {
		return last, err
	}
	select {
	case status := <-exited:
		if status.StatusCode != 0 && last.Error == nil {
			return last, fmt.Errorf("exit status %d%s", status.StatusCode, stderr)
		}
		return last, nil
	case err := <-waitErr:
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
