package engine

import (
	"context"
	"io"
	"net"
	"path"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// connect opens a session of the cluster's superuser on a branch that runs. It goes
// through `docker exec` to the server's unix socket, so that it needs no password, and
// no route from here to a remote engine.
func (e *Engine) connect(ctx context.Context, b Branch, database string) (*pgconn.PgConn, error) {
	config, err := pgconn.ParseConfig("sslmode=disable connect_timeout=10")
	if err != nil {
		return nil, err
	}
	// The host is never looked up: the agent knows the way.
	config.Host, config.Port = "localhost", 5432
	config.User, config.Database, config.Password = b.Manifest.Superuser, database, ""
	config.Fallbacks = nil
	config.RuntimeParams = map[string]string{"application_name": "docker pgbranch"}
	config.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"localhost"}, nil }
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return e.dial(ctx, b) }
	return pgconn.ConnectConfig(ctx, config)
}

// dial joins a connection to the socket of the server in a branch's container.
func (e *Engine) dial(ctx context.Context, b Branch) (net.Conn, error) {
	agent := path.Join(b.Manifest.MountPath, contract.RuntimeDir, contract.AgentFile)
	exec, err := e.api.ContainerExecCreate(ctx, b.containerID, container.ExecOptions{
		Cmd:         []string{agent, "agent", contract.AgentDial},
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, translate(err, branchObject(b.Branch))
	}
	stream, err := e.api.ContainerExecAttach(ctx, exec.ID, container.ExecAttachOptions{})
	if err != nil {
		return nil, translate(err, branchObject(b.Branch))
	}
	out, in := io.Pipe()
	go func() {
		stderr := &lastLine{}
		_, err := stdcopy.StdCopy(in, stderr, stream.Reader)
		if err == nil && stderr.line != "" {
			err = &Error{Object: branchObject(b.Branch), Cause: stderr.line}
		}
		_ = in.CloseWithError(err)
	}()
	return &execConn{Conn: stream.Conn, stream: stream, out: out}, nil
}

// execConn is the connection of a `docker exec`, whose output comes in frames.
type execConn struct {
	net.Conn
	stream types.HijackedResponse
	out    *io.PipeReader
}

func (c *execConn) Read(p []byte) (int, error) { return c.out.Read(p) }

func (c *execConn) Close() error {
	c.stream.Close()
	return c.out.Close()
}
