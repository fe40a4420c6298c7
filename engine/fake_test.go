package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// fakeAPI keeps volumes, containers and the plugin in maps, as far as the verbs
// look at them. A func field takes the place of its call.
type fakeAPI struct {
	API

	host       string
	info       system.Info
	infoErr    error
	plugin     *types.Plugin
	spare      *types.Plugin
	volumes    map[string]*volume.Volume
	containers map[string]*fakeContainer
	images     map[string]image.InspectResponse
	calls      []string
	// manifest is that of a branch's seed, nil for testManifest.
	manifest *contract.Manifest

	// mu guards calls, volumes and containers, where a verb is about several at once.
	mu             sync.Mutex
	onVolumeRemove func(name string)
	volumeCreate   func(volume.CreateOptions) error
	containerStart func(id string) error
	agent          func(verb string, request []byte) []contract.AgentEvent
	pull           func(ref string) error
	// pluginEnable is the outcome of enabling a plugin; check of what a helper
	// container says about a data root.
	pluginEnable func(name string) error
	check        func(source, id string) error
	// version is what the plugin says it is, next what one that is made says.
	version, next string
	// status is what else the plugin says, storeThere the id of a store that a check
	// finds.
	status     contract.PluginStatus
	storeThere string
}

type fakeContainer struct {
	config  *container.Config
	host    *container.HostConfig
	running bool
	// exit is the exit status, once done is closed.
	exit int64
	done chan struct{}
	// created is in seconds since 1970.
	created int64
}

func (f *fakeAPI) note(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
}

func newFake() *fakeAPI {
	return &fakeAPI{
		host: "unix:///var/run/docker.sock",
		info: system.Info{OSType: "linux", Architecture: "x86_64", DockerRootDir: "/var/lib/docker"},
		plugin: &types.Plugin{
			Enabled:  true,
			Settings: types.PluginSettings{Env: []string{contract.EnvStoreID + "=id"}},
			Config:   types.PluginConfig{Mounts: []types.PluginMount{{Name: "data", Source: ptr("/var/lib/docker/plugins/")}}},
		},
		volumes:    map[string]*volume.Volume{},
		containers: map[string]*fakeContainer{},
		version:    "v1", next: "v1",
		images: map[string]image.InspectResponse{"pgbranch-agent:v1": {}, "pgbranch-agent:v2": {}, "postgres:17": {ID: "sha256:17", Config: imageConfig(
			[]string{"PG_MAJOR=17", "PGDATA=/var/lib/postgresql/data"}, "/var/lib/postgresql/data")}},
	}
}

func newEngine(f *fakeAPI) *Engine {
	return New(f, "v1", func(string) (string, error) { return "", nil })
}

func ptr[T any](v T) *T { return &v }

func notFound(what string) error { return fmt.Errorf("no such %s: %w", what, cerrdefs.ErrNotFound) }

func statusMap(s contract.Status) map[string]any {
	raw, _ := json.Marshal(s)
	var m map[string]any
	_ = json.Unmarshal(raw, &m)
	return m
}

func (f *fakeAPI) addSeed(name string, generation int, branches ...string) {
	s := contract.Status{Kind: contract.KindSeed, Seed: name, Generation: generation, Branches: branches, Manifest: testManifest()}
	ref := Seed{Seed: name, Generation: generation}.Ref()
	f.volumes[ref] = &volume.Volume{Name: ref, Driver: contract.DriverNameInEngine, Status: statusMap(s)}
}

func testManifest() *contract.Manifest {
	return &contract.Manifest{
		Major: 17, Image: "postgres:17", ImageID: "sha256:17", MountPath: "/var/lib/postgresql/data", DataDir: ".",
		UID: 999, GID: 999, Superuser: "postgres", User: "app", Database: "shop",
	}
}

func (f *fakeAPI) DaemonHost() string                        { return f.host }
func (f *fakeAPI) ClientVersion() string                     { return "1.51" }
func (f *fakeAPI) Info(context.Context) (system.Info, error) { return f.info, f.infoErr }

// slot is where a plugin of that name is kept.
func (f *fakeAPI) slot(name string) **types.Plugin {
	if name == spareName {
		return &f.spare
	}
	return &f.plugin
}

func (f *fakeAPI) PluginInspectWithRaw(_ context.Context, name string) (*types.Plugin, []byte, error) {
	if *f.slot(name) == nil {
		return nil, nil, notFound("plugin")
	}
	return *f.slot(name), nil, nil
}

func (f *fakeAPI) VolumeCreate(_ context.Context, o volume.CreateOptions) (volume.Volume, error) {
	f.calls = append(f.calls, "volume create "+o.Name)
	if v, ok := f.volumes[o.Name]; ok {
		return *v, nil
	}
	if f.volumeCreate != nil {
		if err := f.volumeCreate(o); err != nil {
			return volume.Volume{}, err
		}
	}
	s := contract.Status{Kind: contract.KindBranch, CowMode: contract.ModeLazyRW, Seed: o.DriverOpts[contract.OptSeed], Generation: 1, Manifest: testManifest()}
	if f.manifest != nil {
		s.Manifest = f.manifest
	}
	if o.DriverOpts[contract.OptCow] == contract.CowOff {
		s.CowMode = contract.ModeEager
	}
	switch {
	case o.DriverOpts[contract.OptStaging] != "":
		s = contract.Status{Kind: contract.KindStaging}
	case o.DriverOpts[contract.OptOp] == contract.OpSeal:
		f.addSeed("shop", 1)
		delete(f.volumes, o.DriverOpts[contract.OptVolume])
		s = contract.Status{Kind: contract.KindTicket, SealedAs: "shop@1"}
	case o.DriverOpts[contract.OptOp] == contract.OpStatus:
		s = contract.Status{Kind: contract.KindTicket, Plugin: f.pluginStatus()}
	case o.DriverOpts[contract.OptOp] != "":
		s = contract.Status{Kind: contract.KindTicket}
	}
	v := &volume.Volume{Name: o.Name, Driver: contract.DriverNameInEngine, Labels: o.Labels, Options: o.DriverOpts, Status: statusMap(s)}
	f.volumes[o.Name] = v
	return *v, nil
}

func (f *fakeAPI) pluginStatus() *contract.PluginStatus {
	s := f.status
	s.Version, s.StoreID = f.version, "id"
	return &s
}

func (f *fakeAPI) VolumeInspect(_ context.Context, name string) (volume.Volume, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, ok := f.volumes[name]
	if !ok {
		return volume.Volume{}, notFound("volume")
	}
	return *v, nil
}

func (f *fakeAPI) VolumeList(context.Context, volume.ListOptions) (volume.ListResponse, error) {
	var list volume.ListResponse
	for _, v := range f.volumes {
		list.Volumes = append(list.Volumes, v)
	}
	return list, nil
}

func (f *fakeAPI) VolumeRemove(_ context.Context, name string, _ bool) error {
	f.note("volume rm " + name)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.volumes, name)
	if f.onVolumeRemove != nil {
		f.onVolumeRemove(name)
	}
	return nil
}

func (f *fakeAPI) ContainerCreate(_ context.Context, c *container.Config, h *container.HostConfig, _ *network.NetworkingConfig, _ *ocispec.Platform, name string) (container.CreateResponse, error) {
	f.calls = append(f.calls, "container create "+name)
	if _, ok := f.containers[name]; ok {
		return container.CreateResponse{}, fmt.Errorf("the name is in use: %w", cerrdefs.ErrConflict)
	}
	f.containers[name] = &fakeContainer{config: c, host: h, done: make(chan struct{})}
	return container.CreateResponse{ID: name}, nil
}

func (f *fakeAPI) ContainerStart(_ context.Context, id string, _ container.StartOptions) error {
	f.calls = append(f.calls, "container start "+id)
	if f.containerStart != nil {
		if err := f.containerStart(id); err != nil {
			return err
		}
	}
	f.containers[id].running = true
	return nil
}

func (f *fakeAPI) ContainerStop(_ context.Context, id string, _ container.StopOptions) error {
	f.calls = append(f.calls, "container stop "+id)
	f.containers[id].running = false
	return nil
}

func (f *fakeAPI) ContainerRemove(_ context.Context, id string, _ container.RemoveOptions) error {
	f.note("container rm " + id)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.containers, id)
	return nil
}

func (f *fakeAPI) ContainerInspect(_ context.Context, id string) (container.InspectResponse, error) {
	c, ok := f.containers[id]
	if !ok {
		return container.InspectResponse{}, notFound("container")
	}
	var mounts []container.MountPoint
	for _, m := range c.host.Mounts {
		mounts = append(mounts, container.MountPoint{Name: m.Source, Destination: m.Target})
	}
	return container.InspectResponse{
		Mounts:            mounts,
		ContainerJSONBase: &container.ContainerJSONBase{ID: id, Image: "sha256:17", HostConfig: c.host, State: &container.State{Running: c.running, ExitCode: 1}},
		Config:            c.config,
	}, nil
}

func (f *fakeAPI) ContainerList(_ context.Context, o container.ListOptions) ([]container.Summary, error) {
	var list []container.Summary
	for id, c := range f.containers {
		if !c.running && !o.All {
			continue
		}
		if labels := o.Filters.Get("label"); len(labels) == 1 && !o.Filters.MatchKVList("label", c.config.Labels) {
			continue
		}
		s := container.Summary{ID: id, Names: []string{"/" + id}, Labels: c.config.Labels, State: container.StateExited, Created: c.created}
		if c.running {
			s.State = container.StateRunning
		}
		for _, m := range c.host.Mounts {
			s.Mounts = append(s.Mounts, container.MountPoint{Name: m.Source, Driver: contract.DriverNameInEngine})
		}
		list = append(list, s)
	}
	return list, nil
}

func (f *fakeAPI) ContainerLogs(context.Context, string, container.LogsOptions) (io.ReadCloser, error) {
	var buf bytes.Buffer
	_, _ = stdcopy.NewStdWriter(&buf, stdcopy.Stderr).Write([]byte("FATAL:  no luck\n"))
	return io.NopCloser(&buf), nil
}

// ContainerWait answers when it is read, by when the container has run.
func (f *fakeAPI) ContainerWait(_ context.Context, id string, _ container.WaitCondition) (<-chan container.WaitResponse, <-chan error) {
	exited := make(chan container.WaitResponse)
	c := f.containers[id]
	go func() {
		<-c.done
		exited <- container.WaitResponse{StatusCode: c.exit}
	}()
	return exited, nil
}

// ContainerAttach plays the agent: it answers the first line with the events of
// f.agent.
func (f *fakeAPI) ContainerAttach(_ context.Context, id string, _ container.AttachOptions) (types.HijackedResponse, error) {
	c := f.containers[id]
	if verb := c.config.Entrypoint[1]; verb == contract.CommandCheck || verb == contract.CommandWipe {
		return f.converseRaw(func(out, errs io.Writer) {
			defer close(c.done)
			if verb == contract.CommandWipe {
				f.calls = append(f.calls, "wipe "+c.host.Mounts[0].Source+" "+c.config.Entrypoint[3])
				return
			}
			if f.check != nil {
				if err := f.check(c.host.Mounts[0].Source, c.config.Entrypoint[3]); err != nil {
					_, _ = fmt.Fprintln(errs, err)
					c.exit = 1
					return
				}
			}
			_, _ = fmt.Fprintln(out, f.storeThere)
		}), nil
	}
	close(c.done)
	verb := c.config.Entrypoint[2]
	return f.converse(func(conn net.Conn) []contract.AgentEvent {
		line := make([]byte, 64<<10)
		n, _ := conn.Read(line)
		return f.agent(verb, line[:n])
	}), nil
}

func (f *fakeAPI) converseRaw(answer func(out, errs io.Writer)) types.HijackedResponse {
	here, there := net.Pipe()
	go func() {
		answer(stdcopy.NewStdWriter(there, stdcopy.Stdout), stdcopy.NewStdWriter(there, stdcopy.Stderr))
		_ = there.Close()
	}()
	return types.NewHijackedResponse(here, "")
}

func (f *fakeAPI) converse(answer func(net.Conn) []contract.AgentEvent) types.HijackedResponse {
	here, there := net.Pipe()
	go func() {
		events := answer(there)
		out := stdcopy.NewStdWriter(there, stdcopy.Stdout)
		for _, ev := range events {
			raw, _ := json.Marshal(ev)
			_, _ = out.Write(append(raw, '\n'))
		}
		_ = there.Close()
	}()
	return types.NewHijackedResponse(here, "")
}

func (f *fakeAPI) ContainerExecCreate(context.Context, string, container.ExecOptions) (container.ExecCreateResponse, error) {
	return container.ExecCreateResponse{ID: "exec"}, nil
}

func (f *fakeAPI) ContainerExecAttach(context.Context, string, container.ExecAttachOptions) (types.HijackedResponse, error) {
	return f.converse(func(net.Conn) []contract.AgentEvent {
		if f.agent != nil {
			return f.agent(contract.AgentReady, nil)
		}
		return []contract.AgentEvent{{Stage: contract.StageReady}}
	}), nil
}

func (f *fakeAPI) ImageInspect(_ context.Context, ref string, _ ...client.ImageInspectOption) (image.InspectResponse, error) {
	img, ok := f.images[ref]
	if !ok {
		return img, notFound("image")
	}
	return img, nil
}

func (f *fakeAPI) ImageList(context.Context, image.ListOptions) ([]image.Summary, error) {
	var list []image.Summary
	for ref := range f.images {
		if strings.HasPrefix(ref, agentRepository) {
			list = append(list, image.Summary{ID: ref})
		}
	}
	return list, nil
}

func (f *fakeAPI) ImageRemove(_ context.Context, ref string, _ image.RemoveOptions) ([]image.DeleteResponse, error) {
	f.calls = append(f.calls, "image rm "+ref)
	delete(f.images, ref)
	return nil, nil
}

func (f *fakeAPI) ImageImport(_ context.Context, _ image.ImportSource, ref string, _ image.ImportOptions) (io.ReadCloser, error) {
	f.calls = append(f.calls, "image import "+ref)
	f.images[ref] = image.InspectResponse{}
	return io.NopCloser(strings.NewReader("")), nil
}

func (f *fakeAPI) ImagePull(_ context.Context, ref string, _ image.PullOptions) (io.ReadCloser, error) {
	f.calls = append(f.calls, "pull "+ref)
	if f.pull == nil {
		return nil, notFound("manifest")
	}
	return io.NopCloser(bytes.NewReader(nil)), f.pull(ref)
}

func wantKind(t *testing.T, err error, kind Kind) {
	t.Helper()
	if err == nil || KindOf(err) != kind {
		t.Fatalf("got error %v of kind %d, want kind %d", err, KindOf(err), kind)
	}
}

func imageConfig(env []string, volumes ...string) *dockerspec.DockerOCIImageConfig {
	c := &dockerspec.DockerOCIImageConfig{}
	c.Env = env
	c.Volumes = map[string]struct{}{}
	for _, v := range volumes {
		c.Volumes[v] = struct{}{}
	}
	return c
}
