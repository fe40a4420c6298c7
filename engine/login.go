package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"path"

	"github.com/docker/docker/api/types/container"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// login has the agent in a running branch's container set or tell the password that only
// the branch has. It passes through the exec's own streams, which the Engine keeps
// nowhere: no argument, no environment and no log holds it.
func (e *Engine) login(ctx context.Context, name, id string, m *contract.Manifest, req contract.LoginRequest) (string, error) {
	req.Root, req.User, req.Superuser, req.Database = m.MountPath, m.User, m.Superuser, m.Database
	last, err := e.execAgent(ctx, id, m, contract.AgentLogin, req)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case last.Error != nil:
		return "", &Error{Object: branchObject(name), Cause: last.Error.Message, Hint: last.Error.Hint, Log: last.Error.Log}
	case err != nil:
		return "", &Error{Object: branchObject(name), Cause: "its password cannot be asked for", Err: err}
	case last.Login == nil || last.Login.Password == "":
		return "", &Error{Object: branchObject(name), Cause: "the agent tells no password"}
	}
	return last.Login.Password, nil
}

// execAgent runs a verb of the agent that takes a request in a running branch's
// container, and gives its last event.
func (e *Engine) execAgent(ctx context.Context, id string, m *contract.Manifest, verb string, request any) (contract.AgentEvent, error) {
	var last contract.AgentEvent
	body, err := json.Marshal(request)
	if err != nil {
		return last, err
	}
	exec, err := e.api.ContainerExecCreate(ctx, id, container.ExecOptions{
		Cmd:         []string{path.Join(m.MountPath, contract.RuntimeDir, contract.AgentFile), "agent", verb},
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return last, err
	}
	conn, err := e.api.ContainerExecAttach(ctx, exec.ID, container.ExecAttachOptions{})
	if err != nil {
		return last, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	if _, err := conn.Conn.Write(append(body, '\n')); err != nil {
		return last, err
	}
	detail, err := readEvents(conn.Reader, func(ev contract.AgentEvent) { last = ev })
	if err == nil && last.Error == nil && last.Login == nil {
		err = fmt.Errorf("the agent ended without an answer%s", detail)
	}
	return last, err
}
