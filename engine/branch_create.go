package engine

import (
	"context"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/go-connections/nat"
	"golang.org/x/sync/errgroup"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// CreateOptions say what a branch is made of.
type CreateOptions struct {
	Name string
	// Git is the git branch that the branch is named for; empty is none.
	Git string
	// From is the seed, NAME or NAME@GEN.
	From string
	// Cow is one of the contract.Cow* requests; empty is auto.
	Cow string
	// TTL is how long the branch is wanted; 0 is for ever.
	TTL time.Duration
	// Publish is where 5432 is published.
	Publish Publish
	// Network is a network to join besides the default one, on which the branch's
	// name is its address; empty joins none.
	Network string
	// Aliases are more addresses of the branch on Network, and Labels more labels of its
	// container.
	Aliases []string
	Labels  map[string]string
	// Image runs the branch; empty is the one that settled the seed. Force accepts one that
	// does not suit the seed as far as a user may know better.
	Image string
	Force bool
	// RotatePassword gives the source's user a password that only the branch has.
	RotatePassword bool
	// Settings are Postgres settings of the branch's own, by name in lower case.
	Settings map[string]string
	// Timeout bounds the wait for the first query.
	Timeout time.Duration
	// Progress is told of a pull. It may be nil.
	Progress ProgressFunc
}

// Split says where the time of a create went.
type Split struct {
	Volume    time.Duration `json:"volume"`
	Container time.Duration `json:"container"`
	Start     time.Duration `json:"start"`
	Ready     time.Duration `json:"ready"`
}

// Create makes a branch and a container that runs it, and returns when Postgres
// has answered a query. It leaves nothing behind unless it succeeds.
//
// It fails with KindConflict where the name is in use, and KindNotFound for an
// unknown seed.
func (e *Engine) Create(ctx context.Context, opts CreateOptions) (Branch, Split, error) {
	var split Split
	if opts.Progress == nil {
		opts.Progress = func(Progress) {}
	}
	if err := checkName("branch", opts.Name); err != nil {
		return Branch{}, split, err
	}
	if _, _, err := ParseSeedRef(opts.From); err != nil {
		return Branch{}, split, err
	}
	switch opts.Cow {
	case "", contract.CowAuto, contract.CowFile, contract.CowOff:
	default:
		return Branch{}, split, &Error{Kind: KindInvalid, Object: "--cow", Cause: fmt.Sprintf("%q is no way of it", opts.Cow),
			Hint: "ways: " + strings.Join([]string{contract.CowAuto, contract.CowFile, contract.CowOff}, ", ")}
	}
	clock := time.Now()
	// What needs no volume is asked for beside it: each request costs the user its time.
	var beside errgroup.Group
	var ports []int
	beside.Go(func() (err error) { ports, err = e.ports(ctx, opts.Name, opts.Publish); return err })
	status, undo, err := e.createBranchVolume(ctx, opts)
	portsErr := beside.Wait()
	if err != nil {
		return Branch{}, split, err
	}
	split.Volume = lap(&clock)
	var id, password string
	img, unfit, err := e.suitableImage(ctx, opts, status)
	if err == nil {
		err = portsErr
	}
	if err == nil {
		id, err = e.createRunning(ctx, opts, status, img, ports, &split, &clock)
	}
	var started container.InspectResponse
	if err == nil {
		var watch errgroup.Group
		watch.Go(func() (err error) { started, err = e.api.ContainerInspect(ctx, id); return err })
		err = e.waitReady(ctx, opts.Name, id, status.Manifest, opts.Timeout)
		split.Ready = lap(&clock)
		if inspectErr := watch.Wait(); err == nil && inspectErr != nil {
			err = translate(inspectErr, branchObject(opts.Name))
		}
	}
	if err == nil && opts.RotatePassword {
		password, err = e.login(ctx, opts.Name, id, status.Manifest, contract.LoginRequest{Rotate: true})
	}
	if err != nil {
		if id != "" {
			e.dropContainer(ctx, id)
		}
		undo()
		return Branch{}, split, blameSetting(err, opts.Settings)
	}
	branch, err := e.justStarted(ctx, opts.Name, started)
	branch.Password, branch.Unfit = password, unfit
	return branch, split, err
}

// justStarted gives a branch whose container was inspected when it had started. What its
// server has done since, only the volume says.
func (e *Engine) justStarted(ctx context.Context, name string, c container.InspectResponse) (Branch, error) {
	v, status, err := e.inspect(ctx, name, branchObject(name))
	if err != nil {
		return Branch{}, err
	}
	listed := container.Summary{ID: c.ID, Names: []string{ContainerName(name)}, Image: c.Config.Image, Labels: c.Config.Labels, State: container.StateRunning}
	b := ofVolume(v, status, listed)
	err = e.join(ctx, &b, listed, c)
	return b, err
}

func lap(clock *time.Time) time.Duration {
	now := time.Now()
	d := now.Sub(*clock)
	*clock = now
	return d
}

// createBranchVolume makes the branch's volume. undo removes it again, and only the
// one that this call made: the Engine answers a create of an existing volume with
// that volume and drops the options without a word (moby
// volume/service/store.go, VolumeStore.create), so a label tells them apart.
func (e *Engine) createBranchVolume(ctx context.Context, opts CreateOptions) (s contract.Status, undo func(), err error) {
	mark := nonce()
	undo = func() {
		ctx, cancel := cleanup(ctx)
		defer cancel()
		if v, err := e.api.VolumeInspect(ctx, opts.Name); err == nil && v.Labels[labelCreation] == mark {
			_ = e.api.VolumeRemove(ctx, opts.Name, true)
		}
	}
	driverOpts := map[string]string{contract.OptSeed: opts.From}
	if opts.Cow != "" {
		driverOpts[contract.OptCow] = opts.Cow
	}
	if opts.TTL != 0 {
		driverOpts[contract.OptTTL] = opts.TTL.String()
	}
	for name, value := range opts.Settings {
		driverOpts[contract.OptConfPrefix+name] = value
	}
	v, err := e.createVolume(ctx, volume.CreateOptions{
		Name: opts.Name, DriverOpts: driverOpts,
		Labels: withGit(map[string]string{labelCreation: mark}, opts.Git),
	})
	if err != nil {
		undo()
		return s, nil, e.createRefused(ctx, opts, err)
	}
	if v.Labels[labelCreation] != mark {
		return s, nil, nameTaken(opts, v.Labels)
	}
	_, s, err = e.inspect(ctx, opts.Name, branchObject(opts.Name))
	if err == nil && s.Manifest == nil {
		err = &Error{Object: branchObject(opts.Name), Cause: "the volume plugin gave no manifest of its seed"}
	}
	if err != nil {
		undo()
		return s, nil, err
	}
	return s, undo, nil
}

// withGit adds the git branch to labels, if there is one.
func withGit(labels map[string]string, git string) map[string]string {
	if git != "" {
		labels[LabelGit] = git
	}
	return labels
}

// nameTaken refuses a name that is in use. found are the labels of what has it.
func nameTaken(opts CreateOptions, found map[string]string) error {
	cause := "exists already"
	if opts.Git != "" && found[LabelGit] != opts.Git {
		cause = fmt.Sprintf("exists already, and not for the git branch %s", opts.Git)
	}
	return &Error{
		Kind: KindConflict, Object: branchObject(opts.Name), Cause: cause,
		Hint: fmt.Sprintf("use it, choose another name, or remove it with `docker pgbranch rm %s`", opts.Name),
	}
}

// createRefused says why the volume was not made. The driver's refusal is text, so
// whether it was the seed that is missing is asked for.
func (e *Engine) createRefused(ctx context.Context, opts CreateOptions, err error) error {
	refusal := translate(err, branchObject(opts.Name))
	if KindOf(refusal) != KindOther || ctx.Err() != nil {
		return refusal
	}
	if _, missing := e.matchSeeds(ctx, opts.From); KindOf(missing) == KindNotFound {
		return missing
	}
	return refusal
}

// createRunning creates and starts the branch's container, with another port
// where the first is taken. It gives the id of a container that exists, also with
// an error.
func (e *Engine) createRunning(ctx context.Context, opts CreateOptions, status contract.Status, img pgImage, ports []int, split *Split, clock *time.Time) (string, error) {
	for i, port := range ports {
		id, err := e.createBranchContainer(ctx, opts, status, img, port)
		if err != nil {
			return "", err
		}
		split.Container += lap(clock)
		err = e.api.ContainerStart(ctx, id, container.StartOptions{})
		split.Start += lap(clock)
		if err == nil {
			return id, nil
		}
		if missing := networkMissing(err, opts.Network); missing != nil {
			return id, missing
		}
		if !portClash(err) || opts.Publish.Port != 0 || i == len(ports)-1 {
			return id, startError(err, opts.Name, port)
		}
		e.dropContainer(ctx, id)
	}
	return "", &Error{Object: branchObject(opts.Name), Cause: "no free port was found",
		Hint: "name one with --publish"}
}

func startError(err error, name string, port int) error {
	if portClash(err) {
		return &Error{Kind: KindConflict, Object: branchObject(name), Cause: fmt.Sprintf("port %d is in use", port),
			Hint: "name another with --publish, or leave it out to get a free one"}
	}
	return translate(err, branchObject(name))
}

// branchImage gives the image that was asked for, else the one that settled the seed, by
// its id where a tag has moved on: another build may sort text in another order.
func (e *Engine) branchImage(ctx context.Context, m contract.Manifest, opts CreateOptions) (pgImage, error) {
	if opts.Image != "" {
		return e.ensureImage(ctx, opts.Image, opts.Progress)
	}
	img, err := e.ensureImage(ctx, m.Image, opts.Progress)
	if err != nil || m.ImageID == "" || img.ID == m.ImageID {
		return img, err
	}
	found, err := e.api.ImageInspect(ctx, m.ImageID)
	if isNotFound(err) {
		return img, nil
	}
	if err != nil {
		return img, translate(err, fmt.Sprintf("image %q", m.ImageID))
	}
	return describeImage(m.ImageID, found), nil
}

// branchShm bounds a branch's /dev/shm, bytes. Docker's default of 64 MiB fails a
// parallel hash join or VACUUM; what is not used is not allocated.
const branchShm = 1 << 30

func (e *Engine) createBranchContainer(ctx context.Context, opts CreateOptions, status contract.Status, img pgImage, port int) (string, error) {
	m := status.Manifest
	config := &container.Config{
		Image: img.Ref,
		// The seed's owner: the stock entrypoint then has nothing to chown, and no
		// process of the container is ever root.
		User:         fmt.Sprintf("%d:%d", m.UID, m.GID),
		Cmd:          img.command(),
		Env:          branchEnv(*m, status.CowMode, img.Preload),
		ExposedPorts: nat.PortSet{postgresPort: {}},
		Labels:       withGit(map[string]string{LabelBranch: opts.Name, labelPort: strconv.Itoa(port)}, opts.Git),
	}
	maps.Copy(config.Labels, opts.Labels)
	host := &container.HostConfig{
		Mounts:       []mount.Mount{ourVolume(opts.Name, m.MountPath)},
		ShmSize:      branchShm,
		PortBindings: nat.PortMap{postgresPort: {{HostIP: opts.Publish.hostIP(), HostPort: strconv.Itoa(port)}}},
	}
	if opts.RotatePassword {
		config.Labels[labelLogin] = loginOwn
	}
	var networks *network.NetworkingConfig
	if opts.Network != "" {
		host.NetworkMode = container.NetworkMode(opts.Network)
		networks = &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
			opts.Network: {Aliases: append([]string{opts.Name}, opts.Aliases...)},
		}}
	}
	id, err := e.createContainer(ctx, ContainerName(opts.Name), config, host, networks)
	if err != nil {
		return "", translate(err, branchObject(opts.Name))
	}
	return id, nil
}

// ContainerName gives the name of a branch's container.
func ContainerName(branch string) string { return "pgbranch-" + branch }

// branchEnv points the server at the branch's PGDATA, whatever the image's
// default, and preloads the shim behind what the image preloads itself: that may
// call on to the shim, which makes its own system calls and calls on to nobody.
func branchEnv(m contract.Manifest, mode, preload string) []string {
	env := []string{"PGDATA=" + path.Join(m.MountPath, m.DataDir)}
	if mode != contract.ModeLazyRW {
		return env
	}
	shim := path.Join(m.MountPath, contract.RuntimeDir, contract.ShimFile)
	if preload != "" {
		shim = preload + ":" + shim
	}
	return append(env, "LD_PRELOAD="+shim)
}
