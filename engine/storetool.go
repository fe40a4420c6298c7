package engine

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// toolOutput bounds what is read of a tool's output, bytes.
const toolOutput = 64 << 10

// checkStore asks this build of the plugin, in a helper container, whether it would
// take the data root in the folder source of the Engine's host, and gives the store's
// id. The plugin itself cannot be asked: one that refuses its data root does not
// listen, and what it says goes to dockerd's log.
//
// A refusal is an Error with KindSetup and the plugin's own words.
func (e *Engine) checkStore(ctx context.Context, source, storeID string) (id string, err error) {
	return e.storeTool(ctx, contract.CommandCheck, source, storeID)
}

// wipeStore deletes the store of that id, and nothing else in source.
func (e *Engine) wipeStore(ctx context.Context, source, storeID string) error {
	_, err := e.storeTool(ctx, contract.CommandWipe, source, storeID)
	return err
}

func (e *Engine) storeTool(ctx context.Context, command, source, storeID string) (string, error) {
	const object = "volume plugin pgoverlay"
	image, err := e.ensureAgentImage(ctx)
	if err != nil {
		return "", err
	}
	config := &container.Config{
		Image: image, User: "0:0",
		Entrypoint:   []string{"/pgoverlay", command, "-id", storeID},
		Cmd:          []string{},
		AttachStdout: true, AttachStderr: true,
		Labels: map[string]string{LabelHelper: command},
	}
	host := &container.HostConfig{
		NetworkMode: "none",
		LogConfig:   container.LogConfig{Type: "none"},
		AutoRemove:  true,
		// SELinux would keep a container off a folder of the host that is not labelled.
		SecurityOpt: []string{"label=disable"},
		// A mount, since for a missing folder the Engine would make one as a bind.
		Mounts: []mount.Mount{{
			Type: mount.TypeBind, Source: source, Target: contract.DataMount,
			ReadOnly: command == contract.CommandCheck,
		}},
	}
	id, err := e.createContainer(ctx, "pgbranch-"+command+"-"+nonce(), config, host, nil)
	if err != nil {
		if strings.Contains(err.Error(), "bind source path does not exist") {
			return "", &Error{Kind: KindSetup, Object: object,
				Cause: fmt.Sprintf("the folder %s does not exist on the engine's host", source),
				Hint:  "the data folder must exist at every start of the engine: create it, or mount its disk, and run this again"}
		}
		return "", translate(err, object)
	}
	defer e.dropContainer(ctx, id)
	stdout, stderr, code, err := e.runTool(ctx, id)
	switch {
	case err != nil:
		return "", translate(err, object)
	case code != 0:
		cause, hint, _ := strings.Cut(stderr, "\n")
		return "", &Error{Kind: KindSetup, Object: object, Cause: cause, Hint: hint}
	}
	return stdout, nil
}

// runTool runs a container to its end.
func (e *Engine) runTool(ctx context.Context, id string) (stdout, stderr string, code int64, err error) {
	conn, err := e.api.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return "", "", 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	exited, waitErr := e.api.ContainerWait(ctx, id, container.WaitConditionNextExit)
	if err := e.api.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return "", "", 0, err
	}
	var out, errs strings.Builder
	if _, err := stdcopy.StdCopy(&out, &errs, io.LimitReader(conn.Reader, toolOutput)); err != nil {
		return "", "", 0, err
	}
	select {
	case status := <-exited:
		return strings.TrimSpace(out.String()), strings.TrimSpace(errs.String()), status.StatusCode, nil
	case err := <-waitErr:
		return "", "", 0, err
	}
}
