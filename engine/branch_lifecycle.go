package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Stop stops a branch's server as `docker stop` would; a branch that does not run
// is left alone.
func (e *Engine) Stop(ctx context.Context, name string, timeout *int) error {
	b, err := e.withContainer(ctx, name)
	if err != nil || b.State != StateRunning {
		return err
	}
	return translate(e.api.ContainerStop(ctx, b.containerID, container.StopOptions{Timeout: timeout}), branchObject(name))
}

// Start starts a branch's server and waits for its first answer; one that runs is
// only waited for.
func (e *Engine) Start(ctx context.Context, name string, timeout time.Duration) (Branch, error) {
	return e.startWith(ctx, name, "", timeout)
}

// startWith starts a branch. password is that of a branch with its own, empty for the
// one that it has; a reset while it was stopped leaves it without, and it gets another.
func (e *Engine) startWith(ctx context.Context, name, password string, timeout time.Duration) (Branch, error) {
	b, err := e.withContainer(ctx, name)
	if err != nil {
		return b, err
	}
	if b.State != StateRunning {
		if err := e.api.ContainerStart(ctx, b.containerID, container.StartOptions{}); err != nil {
			return b, startError(err, name, b.Port)
		}
	}
	if err := e.waitReady(ctx, name, b.containerID, b.Manifest, timeout); err != nil {
		return b, err
	}
	if b.OwnPassword {
		if _, err := e.login(ctx, name, b.containerID, b.Manifest, contract.LoginRequest{Password: password}); err != nil {
			return b, err
		}
	}
	return e.Branch(ctx, name)
}

// Reset puts a branch back to its seed. Name, container and port stay; a branch
// that ran runs again.
func (e *Engine) Reset(ctx context.Context, name string, timeout time.Duration) (Branch, error) {
	b, err := e.Branch(ctx, name)
	if err != nil {
		return b, err
	}
	if b.State == StateRunning && !b.managed {
		return b, &Error{Kind: KindConflict, Object: branchObject(name),
			Cause: fmt.Sprintf("the container %s, which is not ours, runs it", b.Container),
			Hint:  fmt.Sprintf("`docker stop %s` first", b.Container)}
	}
	var password string
	if b.State == StateRunning && b.OwnPassword {
		if password, err = e.login(ctx, name, b.containerID, b.Manifest, contract.LoginRequest{}); err != nil {
			return b, err
		}
	}
	if b.State == StateRunning {
		if err := e.api.ContainerStop(ctx, b.containerID, container.StopOptions{}); err != nil {
			return b, translate(err, branchObject(name))
		}
	}
	_, resetErr := e.ticket(ctx, contract.OpReset, branchObject(name), map[string]string{contract.OptVolume: name})
	if b.State != StateRunning {
		return b, resetErr
	}
	// Also after a refusal, and after an interrupt: what ran before shall run.
	ctx = context.WithoutCancel(ctx)
	after, err := e.startWith(ctx, name, password, timeout)
	if resetErr != nil {
		return b, resetErr
	}
	return after, err
}

// Remove removes a branch with its container. A running branch is refused with
// KindConflict unless force is set, and one that a container of someone else's
// uses is refused always, naming it.
func (e *Engine) Remove(ctx context.Context, name string, force bool) error {
	b, err := e.Branch(ctx, name)
	if err != nil {
		if force && KindOf(err) == KindNotFound && e.requirePlugin(ctx) == nil {
			return nil
		}
		return err
	}
	if err := e.mayRemove(ctx, b, force); err != nil {
		return err
	}
	if b.managed {
		if err := e.api.ContainerRemove(ctx, b.containerID, container.RemoveOptions{Force: force, RemoveVolumes: true}); err != nil && !isNotFound(err) {
			return translate(err, branchObject(name))
		}
	}
	if err := e.api.VolumeRemove(ctx, name, false); err != nil && !isNotFound(err) {
		return translate(err, branchObject(name))
	}
	return nil
}

func (e *Engine) mayRemove(ctx context.Context, b Branch, force bool) error {
	refuse := func(cause, hint string) error {
		return &Error{Kind: KindConflict, Object: branchObject(b.Branch), Cause: cause, Hint: hint}
	}
	if len(b.Branches) > 0 {
		return refuse("branches stand on it: "+strings.Join(b.Branches, ", "), "remove them first")
	}
	containers, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return translate(err, "docker engine")
	}
	if others := users(b.Branch, containers); len(others) > 0 {
		return refuse("containers use its volume: "+strings.Join(others, ", "),
			"remove them first with `docker rm`")
	}
	if b.State == StateRunning && !force {
		return refuse("it is running", fmt.Sprintf("stop it with `docker pgbranch stop %s`, or remove it with -f", b.Branch))
	}
	return nil
}

// withContainer gives a branch that has a container.
func (e *Engine) withContainer(ctx context.Context, name string) (Branch, error) {
	b, err := e.Branch(ctx, name)
	if err == nil && b.containerID == "" {
		err = &Error{Kind: KindNotFound, Object: branchObject(name), Cause: "has no container",
			Hint: fmt.Sprintf("run one over its volume: docker run -v %s:%s …", name, mountPath(b.Manifest))}
	}
	return b, err
}

func mountPath(m *contract.Manifest) string {
	if m == nil {
		return "/var/lib/postgresql/data"
	}
	return m.MountPath
}

// Running gives a branch that runs, for a verb that talks to its server.
//
// It fails with KindConflict for one that does not.
func (e *Engine) Running(ctx context.Context, name string) (Branch, error) {
	b, err := e.withContainer(ctx, name)
	if err == nil && b.State != StateRunning {
		err = &Error{Kind: KindConflict, Object: branchObject(name), Cause: "does not run",
			Hint: fmt.Sprintf("start it with `docker pgbranch start %s`", name)}
	}
	return b, err
}

// URL gives a branch's connection URL on the engine's host. It has a password only where
// the branch has one of its own, which is read from the running branch: otherwise roles
// keep those that they have in the source, and none is stored here.
func (e *Engine) URL(ctx context.Context, name string) (string, error) {
	b, err := e.Branch(ctx, name)
	if err != nil {
		return "", err
	}
	if b.Port == 0 {
		return "", &Error{Kind: KindConflict, Object: branchObject(b.Branch), Cause: "publishes no port",
			Hint: "reach it over a Docker network by its container's name"}
	}
	if !b.OwnPassword {
		return connectionURL(b, ""), nil
	}
	if b.State != StateRunning {
		return "", &Error{Kind: KindConflict, Object: branchObject(name), Cause: "does not run, and only the running branch tells its password",
			Hint: fmt.Sprintf("start it with `docker pgbranch start %s`", name)}
	}
	password, err := e.login(ctx, name, b.containerID, b.Manifest, contract.LoginRequest{})
	if err != nil {
		return "", err
	}
	return connectionURL(b, password), nil
}
