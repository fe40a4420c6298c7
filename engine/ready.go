package engine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// logLines is how much of a server's log a failure shows.
const logLines = "20"

// waitReady returns when the branch's server has answered a query. The agent asks
// from inside the container, over the unix socket, so that it needs no password
// and no route from here to a remote engine; it is started at once and waits
// there, since starting it takes as long as Postgres needs to come up.
//
// A server that does not come up is an error with the last lines of its log.
func (e *Engine) waitReady(ctx context.Context, name, id string, m *contract.Manifest, timeout time.Duration) error {
	agent := path.Join(m.MountPath, contract.RuntimeDir, contract.AgentFile)
	exec, err := e.api.ContainerExecCreate(ctx, id, container.ExecOptions{
		Cmd: []string{agent, "agent", contract.AgentReady,
			"--user", m.Superuser, "--database", m.Database, "--timeout", timeout.String()},
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return e.notReady(ctx, name, id, translate(err, branchObject(name)))
	}
	conn, err := e.api.ContainerExecAttach(ctx, exec.ID, container.ExecAttachOptions{})
	if err != nil {
		return e.notReady(ctx, name, id, translate(err, branchObject(name)))
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	var last contract.AgentEvent
	detail, err := readEvents(conn.Reader, func(ev contract.AgentEvent) { last = ev })
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case last.Error != nil:
		return e.notReady(ctx, name, id, last.Error)
	case last.Stage == contract.StageReady:
		return nil
	case err != nil:
		return e.notReady(ctx, name, id, err)
	}
	e.awaitExit(ctx, id)
	return e.notReady(ctx, name, id, fmt.Errorf("the wait ended without an answer%s", detail))
}

// awaitExit waits until the Engine knows of the end of a container, two seconds at most.
// An exec dies with the container's first process, and the Engine may close its stream
// before it has handled that process's exit (moby daemon/monitor.go, ProcessEvent).
func (e *Engine) awaitExit(ctx context.Context, id string) {
	for range 40 {
		c, err := e.api.ContainerInspect(ctx, id)
		if err != nil || c.State == nil || !c.State.Running {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// notReady says why a branch does not answer: mostly the server's own log knows.
func (e *Engine) notReady(ctx context.Context, name, id string, cause error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	failure := &Error{Object: branchObject(name), Cause: "Postgres does not answer", Err: cause,
		Hint: "the log above is the server's own", Log: e.tail(ctx, id)}
	c, err := e.api.ContainerInspect(ctx, id)
	if err == nil && c.State != nil && !c.State.Running {
		failure.Cause, failure.Err = fmt.Sprintf("its container exited with status %d", c.State.ExitCode), nil
	}
	if len(failure.Log) == 0 {
		failure.Hint = ""
	}
	return failure
}

func (e *Engine) tail(ctx context.Context, id string) []string {
	stream, err := e.api.ContainerLogs(ctx, id, container.LogsOptions{ShowStdout: true, ShowStderr: true, Tail: logLines})
	if err != nil {
		return nil
	}
	defer stream.Close()
	var buf bytes.Buffer
	if _, err := stdcopy.StdCopy(&buf, &buf, io.LimitReader(stream, 1<<20)); err != nil || buf.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSpace(buf.String()), "\n")
}
