package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// pluginConfig is the media type by which dockerd knows a plugin (distribution
// manifest/schema2, MediaTypePluginConfig).
const pluginConfig types.MediaType = "application/vnd.docker.plugin.v1+json"

// image is a managed plugin as `docker plugin push` makes it: a schema 2 manifest, the
// plugin's config.json and its root file system as one layer.
type image struct {
	config, manifest []byte
	layer            v1.Layer
}

// pluginImage reads a folder with config.json and rootfs/. One content gives one
// digest, whenever and wherever it was built.
func pluginImage(dir string) (v1.Image, error) {
	layer, diffID, err := rootfs(filepath.Join(dir, "rootfs"))
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	config["rootfs"] = map[string]any{"type": "layers", "diff_ids": []string{diffID.String()}}
	im := &image{layer: layer}
	if im.config, err = json.Marshal(config); err != nil {
		return nil, err
	}
	if im.manifest, err = manifest(im); err != nil {
		return nil, err
	}
	return partial.CompressedToImage(im)
}

func manifest(im *image) ([]byte, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(im.config))
	if err != nil {
		return nil, err
	}
	layer, err := partial.Descriptor(im.layer)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.DockerManifestSchema2,
		Config: v1.Descriptor{MediaType: pluginConfig, Digest: digest, Size: size},
		Layers: []v1.Descriptor{*layer},
	})
}

// rootfs packs a folder, and gives the layer and the digest of what is packed.
func rootfs(dir string) (v1.Layer, v1.Hash, error) {
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		return pack(w, dir, path, e)
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, v1.Hash{}, err
	}
	diffID, _, err := v1.SHA256(bytes.NewReader(plain.Bytes()))
	if err != nil {
		return nil, v1.Hash{}, err
	}
	var packed bytes.Buffer
	zw := gzip.NewWriter(&packed)
	if _, err := io.Copy(zw, &plain); err != nil {
		return nil, v1.Hash{}, err
	}
	if err := zw.Close(); err != nil {
		return nil, v1.Hash{}, err
	}
	return static.NewLayer(packed.Bytes(), types.DockerLayer), diffID, nil
}

// pack adds a file or folder, without what differs from build to build: its owner and
// its time.
func pack(w *tar.Writer, dir, path string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return fmt.Errorf("%s is neither a file nor a folder", path)
	}
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: int64(info.Mode().Perm()), Size: info.Size()}
	if info.IsDir() {
		h.Typeflag, h.Name, h.Size = tar.TypeDir, h.Name+"/", 0
	}
	if err := w.WriteHeader(h); err != nil || info.IsDir() {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// What follows implements partial.CompressedImageCore.

func (im *image) RawConfigFile() ([]byte, error) { return im.config, nil }

func (im *image) MediaType() (types.MediaType, error) { return types.DockerManifestSchema2, nil }

func (im *image) RawManifest() ([]byte, error) { return im.manifest, nil }

func (im *image) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) { return im.layer, nil }
