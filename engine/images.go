package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/image"

	"github.com/pgbranch/docker-pgbranch/engine/bundle"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// pgImage is what a Postgres image says of itself.
type pgImage struct {
	// Ref is what a container is created from; ID is the Engine's id of it.
	Ref, ID string
	// Digest is what its registry calls it, "" for one that came from none.
	Digest string
	// Major is PG_MAJOR, 0 where the image does not say.
	Major int
	// MountPath is where a volume belongs, and DataDir is PGDATA below it.
	MountPath, DataDir string
	// Preload is the image's own LD_PRELOAD.
	Preload string
	// Server is how its command calls postgres and Arguments what it gives to it, both empty
	// for one that gives nothing, or runs something else.
	Server    string
	Arguments []string
}

// command is what a branch's container runs, nil for what the image says. Arguments of
// the server hold over every file (PGC_S_ARGV in guc.h): those of an image may name a
// configuration outside the volume, or load libraries whose jobs the seed has put to rest.
func (img pgImage) command() []string {
	if len(img.Arguments) == 0 {
		return nil
	}
	return []string{img.Server}
}

// unheeded says which arguments command leaves out.
func (img pgImage) unheeded() []contract.Unfit {
	if len(img.Arguments) == 0 {
		return nil
	}
	return []contract.Unfit{{What: "the image's arguments " + strings.Join(img.Arguments, " "),
		Why: "they are left out, since they would hold over the seed's own configuration: what a branch needs of them goes into -c NAME=VALUE"}}
}

// ensureImage gives a local image, pulling it where it is missing as
// `docker run` would.
func (e *Engine) ensureImage(ctx context.Context, ref string, progress ProgressFunc) (pgImage, error) {
	found, err := e.api.ImageInspect(ctx, ref)
	if isNotFound(err) {
		if err := e.pull(ctx, ref, progress); err != nil {
			return pgImage{}, err
		}
		found, err = e.api.ImageInspect(ctx, ref)
	}
	if err != nil {
		return pgImage{}, translate(err, fmt.Sprintf("image %q", ref))
	}
	return describeImage(ref, found), nil
}

func (e *Engine) pull(ctx context.Context, ref string, progress ProgressFunc) error {
	fail := func(err error) error {
		return &Error{
			Kind: KindNotFound, Object: fmt.Sprintf("image %q", ref), Cause: "is not on this engine and cannot be pulled", Err: err,
			Hint: "load or build it, or name another with --image",
		}
	}
	progress(Progress{Stage: StagePull, Message: ref})
	auth, err := e.registryAuth(ref)
	if err != nil {
		return fail(err)
	}
	stream, err := e.api.ImagePull(ctx, ref, image.PullOptions{RegistryAuth: auth})
	if err != nil {
		return fail(err)
	}
	defer stream.Close()
	// Layers report their own bytes; the sum over all that are known is the pull's.
	type layer struct{ done, total int64 }
	layers := map[string]layer{}
	dec := json.NewDecoder(stream)
	for {
		var m struct {
			ID       string `json:"id"`
			Error    string `json:"error"`
			Progress struct {
				Current int64 `json:"current"`
				Total   int64 `json:"total"`
			} `json:"progressDetail"`
			Status string `json:"status"`
		}
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fail(err)
		}
		if m.Error != "" {
			return fail(errors.New(m.Error))
		}
		if m.Status != "Downloading" {
			continue
		}
		layers[m.ID] = layer{m.Progress.Current, m.Progress.Total}
		p := Progress{Stage: StagePull, Message: ref}
		for _, l := range layers {
			p.Done, p.Total = p.Done+l.done, p.Total+l.total
		}
		progress(p)
	}
}

func describeImage(ref string, found image.InspectResponse) pgImage {
	img := pgImage{Ref: ref, ID: found.ID}
	if len(found.RepoDigests) > 0 {
		img.Digest = found.RepoDigests[0]
	}
	var dataDir string
	var volumes []string
	if found.Config != nil {
		for _, env := range found.Config.Env {
			key, value, _ := strings.Cut(env, "=")
			switch key {
			case "PG_MAJOR":
				img.Major, _ = strconv.Atoi(value)
			case "PGDATA":
				dataDir = value
			case "LD_PRELOAD":
				img.Preload = value
			}
		}
		if cmd := found.Config.Cmd; len(cmd) > 1 && path.Base(cmd[0]) == "postgres" {
			img.Server, img.Arguments = cmd[0], cmd[1:]
		}
		for v := range found.Config.Volumes {
			volumes = append(volumes, v)
		}
	}
	img.MountPath, img.DataDir = layout(img.Major, dataDir, volumes)
	return img
}

// layout says where the volume belongs and where PGDATA lies in it. The image's
// VOLUME at or above PGDATA decides, since an anonymous volume would hide ours
// otherwise; the stock images' own layout stands in for an image that says
// nothing: /var/lib/postgresql/data up to 17, and from 18 on a volume at
// /var/lib/postgresql with PGDATA in MAJOR/docker (docker-library/postgres,
// Dockerfile-debian.template).
func layout(major int, dataDir string, volumes []string) (mountPath, relative string) {
	if dataDir == "" {
		if major >= 18 {
			return "/var/lib/postgresql", fmt.Sprintf("%d/docker", major)
		}
		return "/var/lib/postgresql/data", "."
	}
	for _, v := range volumes {
		if v == dataDir {
			return v, "."
		}
		if rest, ok := strings.CutPrefix(dataDir, strings.TrimRight(v, "/")+"/"); ok {
			return v, rest
		}
	}
	return path.Clean(dataDir), "."
}

// agentRepository names the image, made from this CLI's own bytes, that runs the
// agent before it is known which Postgres image a source needs.
const agentRepository = "pgbranch-agent"

// ensureAgentImage gives the agent image's reference, importing it if need be.
func (e *Engine) ensureAgentImage(ctx context.Context) (string, error) {
	ref := agentRepository + ":" + imageTag(e.version)
	_, err := e.api.ImageInspect(ctx, ref)
	if err == nil {
		return ref, nil
	}
	if !isNotFound(err) {
		return "", translate(err, fmt.Sprintf("image %q", ref))
	}
	info, err := e.api.Info(ctx)
	if err != nil {
		return "", translate(err, "docker engine")
	}
	arch, err := goArch(info.Architecture)
	if err != nil {
		return "", err
	}
	binary, err := bundle.Binary(arch)
	if err != nil {
		return "", &Error{Kind: KindSetup, Object: "docker-pgbranch", Cause: err.Error(), Hint: "build it with `make build`"}
	}
	stream, err := bundle.Tar(bundle.File{Name: "pgoverlay", Mode: 0o755, Body: binary})
	if err != nil {
		return "", err
	}
	answer, err := e.api.ImageImport(ctx, image.ImportSource{Source: stream, SourceName: "-"}, ref, image.ImportOptions{
		Message: "docker-pgbranch's agent", Platform: "linux/" + arch,
		Changes: []string{"LABEL " + LabelHelper + "=agent"},
	})
	if err != nil {
		return "", translate(err, fmt.Sprintf("image %q", ref))
	}
	defer answer.Close()
	_, err = io.Copy(io.Discard, answer)
	return ref, err
}

// imageTag makes a version fit for an image's tag, which knows no "+".
func imageTag(version string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, version)
}

// ImagePreload gives what an image itself sets LD_PRELOAD to, and its Postgres major: ""
// and 0 for an image that does not say, or is not on the engine.
func (e *Engine) ImagePreload(ctx context.Context, ref string) (preload string, major int, err error) {
	if ref == "" {
		return "", 0, nil
	}
	found, err := e.api.ImageInspect(ctx, ref)
	if isNotFound(err) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, translate(err, fmt.Sprintf("image %q", ref))
	}
	img := describeImage(ref, found)
	return img.Preload, img.Major, nil
}
