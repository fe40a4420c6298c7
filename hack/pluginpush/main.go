// Command pluginpush pushes the volume plugin to a registry, so that an engine may get
// it with `docker plugin install`. `make plugin-push` builds what it pushes.
//
//	go run ./hack/pluginpush -plugins build -repository HOST/pgoverlay -tag v1
//
// It needs no engine, and logs in with what `docker login` left. A registry on loopback
// or in a private network is spoken to in plain HTTP, as dockerd does with loopback.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// archs are the builds. dockerd takes no index for a plugin (moby
// plugin/backend_linux.go, Manager.Privileges), so each has a tag of its own, and the
// bare tag is the first one's.
var archs = []string{"amd64", "arm64"}

func main() {
	plugins := flag.String("plugins", "build", "folder with plugin-ARCH/{config.json,rootfs}, as make plugin leaves it")
	repository := flag.String("repository", "", "HOST[:PORT]/NAME to push to")
	tag := flag.String("tag", "", "tag: pushed as TAG-amd64, TAG-arm64 and, for amd64, TAG")
	flag.Parse()
	if flag.NArg() > 0 || *repository == "" || *tag == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := push(*plugins, *repository, *tag); err != nil {
		fmt.Fprintln(os.Stderr, "pluginpush:", err)
		os.Exit(1)
	}
}

func push(plugins, repository, tag string) error {
	repo, err := name.NewRepository(repository)
	if err != nil {
		return err
	}
	if repo.RegistryStr() == name.DefaultRegistry && repository != repo.String() {
		return fmt.Errorf("%s names no registry: say HOST/NAME", repository)
	}
	// All that can be wrong here comes before anything is pushed.
	images := map[string]v1.Image{}
	for _, arch := range archs {
		dir := filepath.Join(plugins, "plugin-"+arch)
		image, err := pluginImage(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		images[tag+"-"+arch] = image
	}
	images[tag] = images[tag+"-"+archs[0]]
	for _, t := range slices.Sorted(maps.Keys(images)) {
		ref, err := name.NewTag(repo.String()+":"+t, name.StrictValidation)
		if err != nil {
			return err
		}
		err = remote.Write(ref, images[t], remote.WithAuthFromKeychain(authn.DefaultKeychain))
		digest, digestErr := images[t].Digest()
		if err = errors.Join(err, digestErr); err != nil {
			return fmt.Errorf("push %s: %w", ref, err)
		}
		fmt.Printf("%s@%s\n", ref, digest)
	}
	return nil
}
