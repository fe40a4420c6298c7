package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"gotest.tools/v3/assert"
)

// plugins lays out what `make plugin` builds.
func plugins(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, arch := range archs {
		at := filepath.Join(dir, "plugin-"+arch)
		assert.NilError(t, os.MkdirAll(filepath.Join(at, "rootfs/etc"), 0o755))
		assert.NilError(t, os.WriteFile(filepath.Join(at, "config.json"), []byte(`{"entrypoint": ["/pgoverlay"]}`), 0o600))
		assert.NilError(t, os.WriteFile(filepath.Join(at, "rootfs/pgoverlay"), []byte(arch), 0o755))
	}
	return dir
}

func serve(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/team/pgoverlay"
}

func TestPush(t *testing.T) {
	repository := serve(t)
	assert.NilError(t, push(plugins(t), repository, "v1"))
	for tag, arch := range map[string]string{"v1-amd64": "amd64", "v1-arm64": "arm64", "v1": "amd64"} {
		ref, err := name.ParseReference(repository + ":" + tag)
		assert.NilError(t, err)
		image, err := remote.Image(ref)
		assert.NilError(t, err)
		m, err := image.Manifest()
		assert.NilError(t, err)
		assert.Equal(t, m.MediaType, types.DockerManifestSchema2)
		assert.Equal(t, m.Config.MediaType, pluginConfig)
		raw, err := image.RawConfigFile()
		assert.NilError(t, err)
		var config struct {
			Entrypoint []string
			Rootfs     struct {
				Type    string
				DiffIDs []v1.Hash `json:"diff_ids"`
			}
		}
		assert.NilError(t, json.Unmarshal(raw, &config))
		layers, err := image.Layers()
		assert.NilError(t, err)
		assert.Equal(t, len(layers), 1)
		diffID, err := layers[0].DiffID()
		assert.NilError(t, err)
		assert.Equal(t, config.Rootfs.DiffIDs[0], diffID)
		assert.Equal(t, config.Entrypoint[0], "/pgoverlay")
		content, err := layers[0].Uncompressed()
		assert.NilError(t, err)
		tarball, err := io.ReadAll(content)
		assert.NilError(t, err)
		assert.Check(t, strings.Contains(string(tarball), arch), tag)
	}
}

// A tag that is pushed again from the same sources is the same image.
func TestPushIsReproducible(t *testing.T) {
	var digests []v1.Hash
	for i := range 2 {
		dir := filepath.Join(plugins(t), "plugin-amd64")
		when := time.Unix(int64(i), 0)
		assert.NilError(t, os.Chtimes(filepath.Join(dir, "rootfs/pgoverlay"), when, when))
		im, err := pluginImage(dir)
		assert.NilError(t, err)
		digest, err := im.Digest()
		assert.NilError(t, err)
		digests = append(digests, digest)
	}
	assert.Equal(t, digests[0], digests[1])
}

func TestPushRefusesWhatIsNotBuilt(t *testing.T) {
	dir := plugins(t)
	assert.ErrorContains(t, push(dir, "pgoverlay", "v1"), "names no registry")
	assert.ErrorContains(t, push(dir, serve(t), "not a tag"), "tag")
	assert.NilError(t, os.RemoveAll(filepath.Join(dir, "plugin-arm64")))
	assert.ErrorContains(t, push(dir, serve(t), "v1"), "plugin-arm64")
}
