package engine

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// explainMode adds to the plugin's word for the cow mode what only the container
// shows. The plugin knows whether the last server ran with the shim; where it did not,
// the container mostly says why, and where there was no server yet, whether the next
// will.
func (e *Engine) explainMode(ctx context.Context, b *Branch, c container.InspectResponse) error {
	if c.ContainerJSONBase == nil || c.Config == nil || b.CowVia == contract.ViaPreload || b.CowVia == contract.ViaLibrary {
		return nil
	}
	preload := preloadOf(c.Config.Env)
	named, elsewhere := namesShim(preload, placeOf(c.Mounts, b.Branch))
	drops := dropsLibrary(c.Config.Entrypoint, c.Config.Cmd)
	switch {
	case b.CowVia == "" && b.CowMode == contract.ModeLazyRW:
		if !named && drops {
			b.CowMode = contract.ModeEager
			b.CowReason = "its container's command sets shared_preload_libraries without the shim, and it has no LD_PRELOAD for it"
		}
		return nil
	case b.CowVia != contract.ViaNone:
		return nil
	}
	foreign, err := e.foreignImage(ctx, c.Image)
	switch {
	case err != nil:
		return err
	case foreign != "":
		b.CowReason = foreign
	case elsewhere != "":
		b.CowReason += fmt.Sprintf(" (the container's LD_PRELOAD is %q, and the shim is %s)", preload, elsewhere)
	case named:
		b.CowReason += " (the container's LD_PRELOAD names the shim: its entrypoint drops the variable, or the loader ignores it, " +
			"as it does in a server that is static or of another architecture, and in one whose file has set-id bits or capabilities)"
	case preload != "":
		b.CowReason += fmt.Sprintf(" (the container's LD_PRELOAD is %q)", preload)
	}
	return nil
}

// preloadOf gives the LD_PRELOAD of an environment.
func preloadOf(env []string) (preload string) {
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "LD_PRELOAD="); ok {
			preload = value
		}
	}
	return preload
}

// placeOf gives where a volume is in a container, "" where no mount says so.
func placeOf(mounts []container.MountPoint, volume string) string {
	for _, m := range mounts {
		if m.Name == volume {
			return m.Destination
		}
	}
	return ""
}

// namesShim reports whether an LD_PRELOAD, which has colons or spaces between its entries
// (ld.so(8)), names the shim of a volume that is at place. Where it names one by another
// path, as one that was written for another major's layout, elsewhere is the right path.
func namesShim(preload, place string) (named bool, elsewhere string) {
	name := path.Join(contract.RuntimeDir, contract.ShimFile)
	for _, entry := range strings.FieldsFunc(preload, func(r rune) bool { return r == ':' || r == ' ' }) {
		switch right := path.Join(place, name); {
		case !strings.HasSuffix(entry, "/"+name):
		case place == "" || path.Clean(entry) == right:
			return true, ""
		default:
			elsewhere = right
		}
	}
	return false, elsewhere
}

// librarySetting matches an argument that sets shared_preload_libraries, in a form that
// the server takes: "-c" "name=value", "-cname=value" or "--name=value".
var librarySetting = regexp.MustCompile(`(?i)^(?:-c\s*|--)?shared[_-]preload[_-]libraries=(.*)$`)

// dropsLibrary reports whether a command line sets shared_preload_libraries otherwise
// than to something with the shim.
func dropsLibrary(entrypoint, cmd []string) bool {
	drops := false
	for _, arg := range slices.Concat(entrypoint, cmd) {
		if m := librarySetting.FindStringSubmatch(arg); m != nil {
			drops = !strings.Contains(m[1], contract.RuntimeDir+"/"+contract.ShimFile)
		}
	}
	return drops
}

// foreignImage says so where an image is of another architecture than the engine: its
// server runs emulated, and the volume has the engine's own shim.
func (e *Engine) foreignImage(ctx context.Context, image string) (string, error) {
	found, err := e.api.ImageInspect(ctx, image)
	if isNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", translate(err, fmt.Sprintf("image %q", image))
	}
	info, err := e.api.Info(ctx)
	if err != nil {
		return "", translate(err, "docker engine")
	}
	arch, err := goArch(info.Architecture)
	if err != nil || found.Architecture == "" || found.Architecture == arch {
		return "", nil // an engine of an architecture without a build has no plugin either
	}
	return fmt.Sprintf("its image is for %s and the engine is %s: run an image of the engine's own architecture", found.Architecture, arch), nil
}
