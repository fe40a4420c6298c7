package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
)

// ServiceOptions say what a provider service of a Compose project wants.
type ServiceOptions struct {
	// Project and Service are Compose's names. The service's is the branch's address on
	// every network of the project.
	Project, Service string
	// Branch is the branch's name.
	Branch string
	// From is the seed, NAME or NAME@GEN; Cow and TTL are as in CreateOptions.
	From string
	Cow  string
	TTL  time.Duration
	// Publish is where the port is published on the engine's host.
	Publish Publish
	// User and Database are what the dependants get; empty takes the seed's own.
	User, Database string
	// Password becomes the role's, in this branch; empty makes one.
	Password string
	Timeout  time.Duration
	Progress ProgressFunc
}

// Service is a branch as the dependants of a provider service reach it.
type Service struct {
	Branch                   Branch
	Host                     string
	Port                     int
	User, Password, Database string
}

// labelService, on a container, names the provider service that it is, PROJECT/SERVICE.
const labelService = "io.github.pgbranch.service"

// ServiceUp brings the branch of a provider service into being and up, as far as that is
// needed, and returns when it answers. What it gives is the same each time.
//
// It fails with KindConflict where the branch's volume is of another seed, or another
// container runs it.
func (e *Engine) ServiceUp(ctx context.Context, o ServiceOptions) (Service, error) {
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	networks, err := e.projectNetworks(ctx, o.Project)
	if err != nil {
		return Service{}, err
	}
	b, err := e.serviceBranch(ctx, o, networks)
	if err != nil {
		return Service{}, err
	}
	if err := e.joinNetworks(ctx, b, networks, o.Service); err != nil {
		return Service{}, err
	}
	s := Service{Branch: b, Host: o.Service, Port: 5432, User: o.User, Password: o.Password, Database: o.Database}
	if s.User == "" {
		s.User = b.Manifest.User
	}
	if s.Database == "" {
		s.Database = b.Manifest.Database
	}
	if s.Password == "" {
		if s.Password, err = e.branchPassword(ctx, b); err != nil {
			return s, err
		}
	}
	return s, e.ensurePassword(ctx, b, s.User, s.Password)
}

// serviceBranch gives the branch, running.
func (e *Engine) serviceBranch(ctx context.Context, o ServiceOptions, networks []string) (Branch, error) {
	create := CreateOptions{
		Name: o.Branch, From: o.From, Cow: o.Cow, TTL: o.TTL, Publish: o.Publish, Timeout: o.Timeout, Progress: o.Progress,
		Aliases: []string{o.Service}, Labels: map[string]string{labelService: o.Project + "/" + o.Service},
	}
	if len(networks) > 0 {
		create.Network = networks[0]
	}
	b, err := e.Branch(ctx, o.Branch)
	if KindOf(err) == KindNotFound {
		b, _, err = e.Create(ctx, create)
		return b, err
	}
	if err != nil {
		return b, err
	}
	if b.Parent != "" || o.From != b.Seed && o.From != b.SeedRef() {
		return b, &Error{Kind: KindConflict, Object: branchObject(o.Branch),
			Cause: fmt.Sprintf("stands on %s, and the service asks for the seed %s", b.SeedRef(), o.From),
			Hint:  fmt.Sprintf("for a new one, and the loss of what it has changed: docker pgbranch rm -f %s", o.Branch)}
	}
	switch {
	case b.containerID == "":
		return e.runAgain(ctx, create)
	case !b.managed:
		return b, &Error{Kind: KindConflict, Object: branchObject(o.Branch), Cause: fmt.Sprintf("container %s has its volume", b.Container),
			Hint: fmt.Sprintf("remove it first: docker rm %s", b.Container)}
	case b.State == StateRunning:
		return b, e.waitReady(ctx, b.Branch, b.containerID, b.Manifest, o.Timeout)
	}
	started, err := e.Start(ctx, o.Branch, o.Timeout)
	if err == nil || ctx.Err() != nil {
		return started, err
	}
	// A container that stopped may be bound to a network that is gone by now, or to a port
	// that somebody else has: another one over the same volume is not.
	e.dropContainer(ctx, b.containerID)
	return e.runAgain(ctx, create)
}

// runAgain makes a container over a volume that is there, and leaves the volume alone
// whatever happens.
func (e *Engine) runAgain(ctx context.Context, opts CreateOptions) (Branch, error) {
	_, status, err := e.inspect(ctx, opts.Name, branchObject(opts.Name))
	if err != nil {
		return Branch{}, err
	}
	var split Split
	clock := time.Now()
	ports, err := e.ports(ctx, opts.Name, opts.Publish)
	if err != nil {
		return Branch{}, err
	}
	var id string
	img, _, err := e.suitableImage(ctx, opts, status)
	if err == nil {
		id, err = e.createRunning(ctx, opts, status, img, ports, &split, &clock)
	}
	if err == nil {
		err = e.waitReady(ctx, opts.Name, id, status.Manifest, opts.Timeout)
	}
	if err != nil {
		if id != "" {
			e.dropContainer(ctx, id)
		}
		return Branch{}, err
	}
	return e.Branch(ctx, opts.Name)
}

// projectNetworks names a Compose project's networks, the default one first. Compose
// makes them before it asks any provider.
func (e *Engine) projectNetworks(ctx context.Context, project string) ([]string, error) {
	list, err := e.api.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(
		filters.Arg("label", labelComposeProject+"="+project))})
	if err != nil {
		return nil, translate(err, "docker engine")
	}
	var names []string
	for _, n := range list {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	for i, n := range list {
		if n.Labels[labelComposeNetwork] == "default" {
			at := slices.Index(names, list[i].Name)
			names = slices.Insert(slices.Delete(names, at, at+1), 0, n.Name)
			break
		}
	}
	return names, nil
}

func (e *Engine) joinNetworks(ctx context.Context, b Branch, networks []string, alias string) error {
	c, err := e.api.ContainerInspect(ctx, b.containerID)
	if err != nil {
		return translate(err, branchObject(b.Branch))
	}
	for _, name := range networks {
		if c.NetworkSettings != nil && c.NetworkSettings.Networks[name] != nil {
			continue
		}
		err := e.api.NetworkConnect(ctx, name, b.containerID, &network.EndpointSettings{Aliases: []string{b.Branch, alias}})
		if err != nil {
			return translate(err, fmt.Sprintf("network %q", name))
		}
	}
	return nil
}

// ServiceStop stops the branch of a provider service. One that is not there is no error.
func (e *Engine) ServiceStop(ctx context.Context, branch string) error {
	b, err := e.Branch(ctx, branch)
	if KindOf(err) == KindNotFound {
		return nil
	}
	if err != nil || !b.managed || b.State != StateRunning {
		return err
	}
	return translate(e.api.ContainerStop(ctx, b.containerID, container.StopOptions{}), branchObject(branch))
}

// ServiceDown stops and removes the container of a provider service's branch, which
// would hold the project's networks otherwise, and, for an ephemeral one, its volume.
func (e *Engine) ServiceDown(ctx context.Context, branch string, ephemeral bool) error {
	if err := e.ServiceStop(ctx, branch); err != nil {
		return err
	}
	b, err := e.Branch(ctx, branch)
	if KindOf(err) == KindNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if ephemeral {
		return e.Remove(ctx, branch, true)
	}
	if b.managed {
		err := e.api.ContainerRemove(ctx, b.containerID, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if err != nil && !isNotFound(err) {
			return errors.Join(translate(err, branchObject(branch)))
		}
	}
	return nil
}
