// Package engine does what the verbs of `docker pgbranch` promise, over nothing
// but the Docker Engine API: no private socket and no file of the Engine's host,
// so that it works over any Docker context.
package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// API is the part of the Engine API that this package uses. *client.Client
// implements it; tests put a fake in its place.
type API interface {
	DaemonHost() string
	ClientVersion() string
	Info(ctx context.Context) (system.Info, error)

	PluginInspectWithRaw(ctx context.Context, name string) (*types.Plugin, []byte, error)
	PluginCreate(ctx context.Context, createContext io.Reader, options types.PluginCreateOptions) error
	PluginEnable(ctx context.Context, name string, options types.PluginEnableOptions) error
	PluginDisable(ctx context.Context, name string, options types.PluginDisableOptions) error
	PluginSet(ctx context.Context, name string, args []string) error
	PluginRemove(ctx context.Context, name string, options types.PluginRemoveOptions) error

	VolumeCreate(ctx context.Context, options volume.CreateOptions) (volume.Volume, error)
	VolumeInspect(ctx context.Context, volumeID string) (volume.Volume, error)
	VolumeList(ctx context.Context, options volume.ListOptions) (volume.ListResponse, error)
	VolumeRemove(ctx context.Context, volumeID string, force bool) error

	ContainerAttach(ctx context.Context, name string, options container.AttachOptions) (types.HijackedResponse, error)
	ContainerCreate(ctx context.Context, config *container.Config, hostConfig *container.HostConfig, networkingConfig *network.NetworkingConfig, platform *ocispec.Platform, name string) (container.CreateResponse, error)
	ContainerExecAttach(ctx context.Context, execID string, options container.ExecAttachOptions) (types.HijackedResponse, error)
	ContainerExecCreate(ctx context.Context, name string, options container.ExecOptions) (container.ExecCreateResponse, error)
	ContainerInspect(ctx context.Context, name string) (container.InspectResponse, error)
	ContainerList(ctx context.Context, options container.ListOptions) ([]container.Summary, error)
	ContainerLogs(ctx context.Context, name string, options container.LogsOptions) (io.ReadCloser, error)
	ContainerRemove(ctx context.Context, name string, options container.RemoveOptions) error
	ContainerStart(ctx context.Context, name string, options container.StartOptions) error
	ContainerStop(ctx context.Context, name string, options container.StopOptions) error
	ContainerWait(ctx context.Context, name string, condition container.WaitCondition) (<-chan container.WaitResponse, <-chan error)

	NetworkConnect(ctx context.Context, network, container string, config *network.EndpointSettings) error
	NetworkList(ctx context.Context, options network.ListOptions) ([]network.Summary, error)

	ImageImport(ctx context.Context, source image.ImportSource, ref string, options image.ImportOptions) (io.ReadCloser, error)
	ImageInspect(ctx context.Context, image string, options ...client.ImageInspectOption) (image.InspectResponse, error)
	ImageList(ctx context.Context, options image.ListOptions) ([]image.Summary, error)
	ImageRemove(ctx context.Context, image string, options image.RemoveOptions) ([]image.DeleteResponse, error)
	ImagePull(ctx context.Context, ref string, options image.PullOptions) (io.ReadCloser, error)
}

// Engine runs the verbs against one Docker engine. Its methods may be called
// concurrently.
type Engine struct {
	api API
	// version is the CLI's, which the volume plugin's must equal.
	version string
	// registryAuth gives the encoded credentials for an image's registry.
	registryAuth func(ref string) (string, error)
	// factsDir is where facts of images are kept, "" for nowhere.
	factsDir string
}

// New makes an Engine over an API connection. registryAuth gives the value of
// the X-Registry-Auth header for an image reference, "" for none.
func New(api API, version string, registryAuth func(ref string) (string, error)) *Engine {
	return &Engine{api: api, version: version, registryAuth: registryAuth}
}

// Labels of what this package creates. They are for finding it again; the truth
// about a branch is in its volume's Status.
const (
	// LabelBranch, on a container, names the branch that it runs.
	LabelBranch = "io.github.pgbranch.branch"
	// LabelHelper, on a container, names the seed that it helps to make.
	LabelHelper = "io.github.pgbranch.helper"
	// labelLogin, on a branch's container, is loginOwn where its user has a password of
	// the branch's own. The password is in the branch's volume only.
	labelLogin = "io.github.pgbranch.login"
	loginOwn   = "own"
	// labelCreation, on a volume, is a random word by which a caller knows whether
	// VolumeCreate made the volume or found it: the Engine answers both alike.
	labelCreation = "io.github.pgbranch.creation"
)

// cleanupTimeout bounds the undoing of a verb that failed or was interrupted.
const cleanupTimeout = 30 * time.Second

// cleanup gives a context for undoing: it outlives the cancellation of ctx,
// which is often the very reason for undoing.
func cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
}

// carryThrough gives a context for a request that makes something: an interrupt
// in the middle would leave it unknown whether the Engine has made it, and under
// what id. These requests take milliseconds; their caller looks at ctx afterwards.
func carryThrough(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), carryTimeout)
}

// carryTimeout is how long the Engine itself waits for a plugin that makes a
// volume (moby volume/drivers/proxy.go, longTimeout).
const carryTimeout = 2 * time.Minute

// createVolume makes a volume of ours. It fails where ctx is done, and the volume
// may then be there: the caller undoes by name.
func (e *Engine) createVolume(ctx context.Context, o volume.CreateOptions) (volume.Volume, error) {
	if ctx.Err() != nil {
		return volume.Volume{}, context.Cause(ctx)
	}
	request, cancel := carryThrough(ctx)
	defer cancel()
	o.Driver = contract.DriverName
	v, err := e.api.VolumeCreate(request, o)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return v, err
}

// createContainer makes a container and gives its id. Where ctx is done by then,
// it is removed again.
func (e *Engine) createContainer(ctx context.Context, name string, c *container.Config, h *container.HostConfig, n *network.NetworkingConfig) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	request, cancel := carryThrough(ctx)
	defer cancel()
	created, err := e.api.ContainerCreate(request, c, h, n, nil, name)
	if err == nil && ctx.Err() != nil {
		e.dropContainer(ctx, created.ID)
		err = context.Cause(ctx)
	}
	return created.ID, err
}

// ourVolume mounts a volume of ours. Its driver is named because the Engine makes a
// volume that is missing when a container wants it, and would make an empty local
// one; the plugin refuses to make one of nothing.
func ourVolume(name, target string) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: name, Target: target,
		VolumeOptions: &mount.VolumeOptions{
			DriverConfig: &mount.Driver{Name: contract.DriverName},
			// Or the Engine mounts the volume once more at create, to look whether it is
			// empty (moby daemon/create_unix.go).
			NoCopy: true,
		},
	}
}

// dropContainer removes a container of ours for good, and returns when it is gone:
// till then the Engine counts its volumes as in use. One that has exited may be on
// its way out already (AutoRemove), which makes the Engine refuse to begin again.
func (e *Engine) dropContainer(ctx context.Context, id string) {
	ctx, cancel := cleanup(ctx)
	defer cancel()
	for ctx.Err() == nil {
		err := e.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || isNotFound(err) {
			return
		}
		time.Sleep(removalPause)
	}
}

// removalPause is the time between two attempts to remove a container.
const removalPause = 20 * time.Millisecond

// inspect gives a volume and its Status. A volume of another driver is reported
// as not found.
func (e *Engine) inspect(ctx context.Context, name, object string) (volume.Volume, contract.Status, error) {
	v, err := e.api.VolumeInspect(ctx, name)
	if err != nil {
		return v, contract.Status{}, translate(err, object)
	}
	if v.Driver != contract.DriverNameInEngine {
		return v, contract.Status{}, &Error{
			Kind: KindNotFound, Object: object,
			Cause: fmt.Sprintf("does not exist (a volume of that name belongs to the driver %q)", v.Driver),
		}
	}
	status, err := decodeStatus(v)
	if err != nil {
		return v, status, &Error{Object: object, Cause: "the volume plugin's status cannot be read", Err: err}
	}
	return v, status, nil
}

func decodeStatus(v volume.Volume) (contract.Status, error) {
	var status contract.Status
	raw, err := json.Marshal(v.Status)
	if err != nil {
		return status, err
	}
	return status, json.Unmarshal(raw, &status)
}

// requirePlugin tells a missing or disabled volume plugin from an engine that
// merely has no volumes: a volume list leaves out, without a word, what belongs
// to a driver that does not run.
func (e *Engine) requirePlugin(ctx context.Context) error {
	p, _, err := e.api.PluginInspectWithRaw(ctx, contract.DriverName)
	switch {
	case isNotFound(err):
		return pluginMissing()
	case err != nil:
		return translate(err, "volume plugin pgoverlay")
	case !p.Enabled:
		return pluginDisabled(nil)
	}
	return nil
}

// besidePlugin asks the Engine about a volume, and gives up where the plugin is not
// there: the Engine waits 15 s for a driver that is gone (moby pkg/plugins/plugins.go).
func (e *Engine) besidePlugin(ctx context.Context, ask func(context.Context) error) error {
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.requirePlugin(gctx) })
	group.Go(func() error { return ask(gctx) })
	return group.Wait()
}
