package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"
	"golang.org/x/sync/errgroup"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// States of a Branch.
const (
	// StateRunning has a running container, StateStopped one that does not run.
	StateRunning = "running"
	StateStopped = "stopped"
	// StateVolume has no container at all.
	StateVolume = "volume"
)

// Branch is one branch with the container that runs it. Its JSON is what
// `ls --format json` and `inspect` print; the keys of the volume's Status keep
// their names.
type Branch struct {
	Branch string `json:"branch"`
	// Git is the git branch that it was named for, if it was.
	Git        string `json:"git,omitempty"`
	Seed       string `json:"seed"`
	Generation int    `json:"generation"`
	// Parent is the branch that this one was made from, if it was.
	Parent string `json:"parent,omitempty"`
	// State is one of the State* constants.
	State string `json:"state"`
	// CowMode is what is in force, as the branch's last server left word, and CowReason
	// says why it is less than lazyrw, or that there was no server yet. CowVia is how that
	// server loaded the shim.
	CowMode    string `json:"cowMode"`
	CowReason  string `json:"cowReason,omitempty"`
	CowVia     string `json:"cowVia,omitempty"`
	CopyUpMode string `json:"copyUpMode,omitempty"`
	OwnedBytes int64  `json:"ownedBytes"`
	Mounted    bool   `json:"mounted"`
	// Port is the published port, 0 for none, on the host address HostIP.
	Port      int        `json:"port"`
	HostIP    string     `json:"hostIp,omitempty"`
	Container string     `json:"container,omitempty"`
	Image     string     `json:"image,omitempty"`
	CreatedAt time.Time  `json:"createdAt"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	// Expired tells that ExpiresAt is over by the plugin's clock.
	Expired   bool   `json:"expired,omitempty"`
	LastError string `json:"lastError,omitempty"`
	// OwnPassword says that the source's user has a password that only this branch has.
	OwnPassword bool `json:"ownPassword,omitempty"`
	// Password is that password, known only to the verb that has just set it.
	Password string `json:"-"`
	// Unfit is in what its image does not suit the seed, known to the verb that has just
	// looked.
	Unfit []contract.Unfit `json:"-"`
	// Settings are the Postgres settings of its own.
	Settings map[string]string `json:"settings,omitempty"`
	// Branches are the names of the branches made from this one.
	Branches []string           `json:"branches,omitempty"`
	Manifest *contract.Manifest `json:"manifest,omitempty"`
	// Compose says what part of which Compose project the volume is, if it is one.
	Compose *ComposeOrigin `json:"compose,omitempty"`
	// Notes say what is not as the user is likely to think.
	Notes []Note `json:"notes,omitempty"`

	containerID string
	managed     bool
	// damaged tells that the plugin cannot read the branch's metadata.
	damaged bool
}

// SeedRef gives the branch's seed as NAME@GEN.
func (b Branch) SeedRef() string { return fmt.Sprintf("%s@%d", b.Seed, b.Generation) }

// Branches lists all branches by name, with their containers: ours, and those
// that someone made by hand over a branch's volume.
func (e *Engine) Branches(ctx context.Context) ([]Branch, error) {
	items, err := e.items(ctx, contract.KindBranch)
	if err != nil {
		return nil, err
	}
	return e.branchesOf(ctx, items)
}

// All lists all seeds and branches, with one look at the volumes.
func (e *Engine) All(ctx context.Context) ([]Seed, []Branch, error) {
	items, err := e.allItems(ctx)
	if err != nil {
		return nil, nil, err
	}
	seeds := seedsOf(items)
	branches, err := e.branchesOf(ctx, slices.DeleteFunc(items, func(it item) bool { return it.status.Kind != contract.KindBranch }))
	return seeds, branches, err
}

// branchesOf joins volumes that are branches with their containers.
func (e *Engine) branchesOf(ctx context.Context, items []item) ([]Branch, error) {
	containers, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, translate(err, "docker engine")
	}
	branches := make([]Branch, len(items))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(statusWorkers)
	for i, it := range items {
		group.Go(func() error {
			b, err := e.assemble(gctx, it.volume, it.status, containers)
			branches[i] = b
			return err
		})
	}
	return branches, group.Wait()
}

// Branch gives one branch.
//
// It fails with KindNotFound, naming the branches that exist.
func (e *Engine) Branch(ctx context.Context, name string) (Branch, error) {
	if err := checkName("branch", name); err != nil {
		return Branch{}, err
	}
	var v volume.Volume
	var status contract.Status
	err := e.besidePlugin(ctx, func(ctx context.Context) (err error) {
		v, status, err = e.inspect(ctx, name, branchObject(name))
		return err
	})
	if err == nil && status.Kind != contract.KindBranch {
		err = &Error{Kind: KindNotFound, Object: branchObject(name), Cause: "does not exist"}
	}
	if KindOf(err) == KindNotFound {
		return Branch{}, e.branchNotFound(ctx, name, err)
	}
	if err != nil {
		return Branch{}, err
	}
	containers, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return Branch{}, translate(err, "docker engine")
	}
	return e.assemble(ctx, v, status, containers)
}

func (e *Engine) branchNotFound(ctx context.Context, name string, err error) error {
	if missing := e.requirePlugin(ctx); missing != nil {
		return missing
	}
	hint := "there is no branch here yet: make one with `docker pgbranch create`"
	if items, listErr := e.items(ctx, contract.KindBranch); listErr == nil && len(items) > 0 {
		var names []string
		for _, it := range items {
			names = append(names, it.volume.Name)
		}
		hint = "branches here: " + strings.Join(names, ", ")
	}
	cause := "does not exist"
	if ours, ok := err.(*Error); ok && strings.Contains(ours.Cause, "driver") {
		cause = ours.Cause
	}
	return &Error{Kind: KindNotFound, Object: branchObject(name), Cause: cause, Hint: hint}
}

// assemble joins a branch's volume and its container.
func (e *Engine) assemble(ctx context.Context, v volume.Volume, s contract.Status, all []container.Summary) (Branch, error) {
	c, found := pickContainer(v.Name, all)
	b := ofVolume(v, s, c)
	if !found {
		return b, nil
	}
	full, err := e.api.ContainerInspect(ctx, c.ID)
	if isNotFound(err) {
		return b, nil
	}
	if err != nil {
		return b, translate(err, branchObject(v.Name))
	}
	err = e.join(ctx, &b, c, full)
	return b, err
}

// ofVolume is what a volume says of its branch. c is its container, if it has one.
func ofVolume(v volume.Volume, s contract.Status, c container.Summary) Branch {
	created, _ := time.Parse(time.RFC3339, v.CreatedAt)
	b := Branch{
		Branch: v.Name, Git: v.Labels[LabelGit], Seed: s.Seed, Generation: s.Generation, Parent: s.Parent,
		State:   StateVolume,
		CowMode: s.CowMode, CowReason: s.CowReason, CowVia: s.CowVia, CopyUpMode: s.CopyUpMode,
		OwnedBytes: s.OwnedBytes, Mounted: s.Mounted,
		CreatedAt: created, ExpiresAt: s.ExpiresAt, Expired: s.Expired, LastError: s.LastError,
		Settings: s.Settings,
		Branches: s.Branches, Manifest: s.Manifest, damaged: s.Damaged,
	}
	b.Compose = composeOrigin(v.Labels, c.Labels)
	b.noteOptions(v.Options)
	return b
}

// join adds what a branch's container says: c as it is listed, full as it is inspected.
func (e *Engine) join(ctx context.Context, b *Branch, c container.Summary, full container.InspectResponse) error {
	b.Container, b.containerID, b.Image = containerName(c.Names), c.ID, c.Image
	b.managed = c.Labels[LabelBranch] == b.Branch
	b.OwnPassword = c.Labels[labelLogin] == loginOwn
	if git := c.Labels[LabelGit]; git != "" {
		b.Git = git // the Engine may have lost the volume's labels
	}
	b.State = StateStopped
	if c.State == container.StateRunning || c.State == container.StatePaused {
		b.State = StateRunning
	}
	b.HostIP, b.Port = publishedPort(full)
	b.notePlace(full)
	return e.explainMode(ctx, b, full)
}

// pickContainer chooses the container that stands for a branch: ours, else one
// that runs, else any.
func pickContainer(name string, all []container.Summary) (container.Summary, bool) {
	var best container.Summary
	rank := 0
	for _, c := range all {
		uses := slices.ContainsFunc(c.Mounts, func(m container.MountPoint) bool { return m.Name == name })
		r := 0
		switch {
		case c.Labels[LabelBranch] == name && uses:
			r = 3
		case uses && c.State == container.StateRunning:
			r = 2
		case uses:
			r = 1
		}
		if r > rank {
			best, rank = c, r
		}
	}
	return best, rank > 0
}

func containerName(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return strings.TrimPrefix(names[0], "/")
}

// users names the containers that mount a branch and are not ours.
func users(name string, all []container.Summary) []string {
	var names []string
	for _, c := range all {
		if c.Labels[LabelBranch] == name {
			continue
		}
		if slices.ContainsFunc(c.Mounts, func(m container.MountPoint) bool { return m.Name == name }) {
			names = append(names, containerName(c.Names))
		}
	}
	slices.Sort(names)
	return names
}
