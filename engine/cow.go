package engine

import (
	"context"
	"fmt"
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
	preload, named := preloadsShim(c.Config.Env)
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
	case named:
		b.CowReason += " (the container's LD_PRELOAD names the shim: its entrypoint drops the variable, or the loader ignores it, " +
			"as it does in a static server and in one whose file has set-id bits or capabilities)"
	case preload != "":
		b.CowReason += fmt.Sprintf(" (the container's LD_PRELOAD is %q)", preload)
	}
	return nil
}

// preloadsShim gives the LD_PRELOAD of an environment and whether it names the shim.
func preloadsShim(env []string) (preload string, named bool) {
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "LD_PRELOAD="); ok {
			preload = value
		}
	}
	return preload, strings.Contains(preload, contract.RuntimeDir+"/"+contract.ShimFile)
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
