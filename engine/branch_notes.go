package engine

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Labels that Compose puts on what it makes (compose pkg/api/labels.go).
const (
	labelComposeProject  = "com.docker.compose.project"
	labelComposeVolume   = "com.docker.compose.volume"
	labelComposeNetwork  = "com.docker.compose.network"
	labelComposeDir      = "com.docker.compose.project.working_dir"
	labelComposeFiles    = "com.docker.compose.project.config_files"
	labelComposeEnvFiles = "com.docker.compose.project.environment_file"
)

// Note is something about a branch that is not as its user is likely to think.
type Note struct {
	// Detail says what, on one line; Fix is the command or the line of a file that mends it.
	Detail string `json:"detail"`
	Fix    string `json:"fix"`
}

// ComposeOrigin is the place of a branch's volume in a Compose project. The files are
// known as long as a container of the project has the volume, and lie on the machine
// where Compose ran.
type ComposeOrigin struct {
	Project string `json:"project"`
	// Volume is the volume's key in the files.
	Volume     string   `json:"volume"`
	WorkingDir string   `json:"workingDir,omitempty"`
	Files      []string `json:"files,omitempty"`
	EnvFiles   []string `json:"envFiles,omitempty"`
}

func composeOrigin(volume, container map[string]string) *ComposeOrigin {
	o := &ComposeOrigin{Project: volume[labelComposeProject], Volume: volume[labelComposeVolume]}
	if o.Project == "" || o.Volume == "" {
		return nil
	}
	if container[labelComposeProject] == o.Project {
		split := func(s string) []string { return strings.FieldsFunc(s, func(r rune) bool { return r == ',' }) }
		o.WorkingDir = container[labelComposeDir]
		o.Files = split(container[labelComposeFiles])
		o.EnvFiles = split(container[labelComposeEnvFiles])
	}
	return o
}

// noteOptions compares what Docker says of the volume with what the plugin made. They
// differ where something asked for an existing volume with other options: the Engine
// asks the plugin whether there is such a volume and, where it did not know it itself,
// records what was asked for (moby volume/service/store.go, VolumeStore.create).
func (b *Branch) noteOptions(options map[string]string) {
	if asked := options[contract.OptSeed]; asked != "" && b.Parent == "" && asked != b.Seed && asked != b.SeedRef() {
		b.Notes = append(b.Notes, Note{
			Detail: fmt.Sprintf("docker volume inspect shows seed=%s, and the branch stands on %s", asked, b.SeedRef()),
			Fix:    fmt.Sprintf("docker volume rm %s  # and make it again: its changes are lost", b.Branch),
		})
	}
}

// notePlace tells when the container's server looks for its cluster elsewhere than
// where the branch is mounted. Containers that run no Postgres may mount it anywhere.
func (b *Branch) notePlace(c container.InspectResponse) {
	if b.Manifest == nil || c.Config == nil || c.ContainerJSONBase == nil {
		return
	}
	var pgdata string
	for _, env := range c.Config.Env {
		if value, ok := strings.CutPrefix(env, "PGDATA="); ok {
			pgdata = value
		}
	}
	at := slices.IndexFunc(c.Mounts, func(m container.MountPoint) bool { return m.Name == b.Branch })
	if pgdata == "" || at < 0 {
		return
	}
	target := c.Mounts[at].Destination
	if path.Join(target, b.Manifest.DataDir) == path.Clean(pgdata) {
		return
	}
	b.Notes = append(b.Notes, Note{
		Detail: fmt.Sprintf("container %s mounts it at %s and looks for its cluster in %s; a branch of Postgres %d belongs at %s",
			b.Container, target, pgdata, b.Manifest.Major, b.Manifest.MountPath),
		Fix: fmt.Sprintf("docker run -v %s:%s …  # or that path in the compose file", b.Branch, b.Manifest.MountPath),
	})
}
