// Package bundle carries the volume plugin inside the CLI, so that setup needs
// no registry: the Engine API takes a plugin as a tar stream.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

//go:embed all:files
var files embed.FS

// ErrEmpty says that the CLI was built without `make`, by a bare `go build`.
var ErrEmpty = errors.New("this build of docker-pgbranch carries no volume plugin")

// Binary gives the static pgoverlay binary for an architecture ("amd64",
// "arm64").
//
// It returns ErrEmpty where the build embedded none for that architecture.
func Binary(arch string) ([]byte, error) {
	packed, err := files.ReadFile("files/pgoverlay-" + arch + ".gz")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w for %s", ErrEmpty, arch)
	}
	if err != nil {
		return nil, err
	}
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(zr)
}

// Plugin gives the tar stream of the managed plugin that the Engine's
// PluginCreate takes: config.json with the data mount's source replaced, and
// the root file system. Docker merges no settings into a plugin that it creates,
// and setting them later needs the plugin to be disabled.
//
// An empty dataSource keeps the manifest's own. name is what the plugin is to be
// called: it goes into the root file system, since the Engine refuses to create a
// plugin of which it has all the content already, under another name
// (moby plugin/backend_linux.go, Manager.CreateFromContext).
func Plugin(arch, name, dataSource string) (io.Reader, error) {
	binary, err := Binary(arch)
	if err != nil {
		return nil, err
	}
	config, err := pluginConfig(dataSource, nil)
	if err != nil {
		return nil, err
	}
	return Tar(
		File{Name: "config.json", Mode: 0o644, Body: config},
		File{Name: "rootfs/pgoverlay", Mode: 0o755, Body: binary},
		File{Name: "rootfs/name", Mode: 0o644, Body: []byte(name + "\n")},
	)
}

// EmptyPlugin gives the plugin as Plugin does, with a store of its own inside its root
// file system: it knows no volume, and what it writes goes with it.
func EmptyPlugin(arch, dataSource string) (io.Reader, error) {
	binary, err := Binary(arch)
	if err != nil {
		return nil, err
	}
	config, err := pluginConfig(dataSource, []string{"/pgoverlay", "serve", "-data", "/empty"})
	if err != nil {
		return nil, err
	}
	return Tar(
		File{Name: "config.json", Mode: 0o644, Body: config},
		File{Name: "rootfs/pgoverlay", Mode: 0o755, Body: binary},
		File{Name: "rootfs/name", Mode: 0o644, Body: []byte("empty\n")},
	)
}

// pluginConfig gives the manifest with another data source and entrypoint, where they
// are given.
func pluginConfig(dataSource string, entrypoint []string) ([]byte, error) {
	raw, err := files.ReadFile("files/config.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrEmpty
	}
	if err != nil || dataSource == "" {
		return raw, err
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	if entrypoint != nil {
		config["entrypoint"] = entrypoint
	}
	mounts, _ := config["mounts"].([]any)
	for _, m := range mounts {
		if mount, ok := m.(map[string]any); ok && mount["name"] == "data" {
			mount["source"] = dataSource
			return json.Marshal(config)
		}
	}
	return nil, errors.New("config.json: no mount is named data")
}

// File is one file of a tar stream.
type File struct {
	Name string
	Mode int64
	Body []byte
}

// Tar makes a tar stream of files.
func Tar(list ...File) (io.Reader, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range list {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode, Size: int64(len(f.Body))}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Body); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return &buf, nil
}
