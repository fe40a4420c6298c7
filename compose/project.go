// Package compose reads a Compose project as Compose itself does, finds its Postgres
// services, and writes what makes their databases branches: an override file, or edits
// of the user's own file. It speaks Compose's protocol for provider services. It does
// not call the Engine: what it must know of a seed is handed in as Facts.
package compose

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// Source says which project is meant, in the terms of Compose's own global flags. Empty
// fields are found as Compose finds them: in COMPOSE_FILE, COMPOSE_PROJECT_NAME,
// COMPOSE_PROFILES, a .env file, and the default file names here and above.
type Source struct {
	// Files are those of -f, in order.
	Files []string
	// ProjectDir is --project-directory, Name is -p.
	ProjectDir, Name string
	// EnvFiles are those of --env-file, Profiles those of --profile.
	EnvFiles, Profiles []string
}

// Project is a project as it was loaded.
type Project struct {
	*types.Project
	// Files are absolute paths, in the order in which they are merged; those that a file
	// includes are not among them.
	Files []string
	// Dir is the project directory.
	Dir string
}

// Load reads the project. It fails with engine.KindNotFound where there is no file, and
// with engine.KindInvalid for one that Compose would refuse.
func (s Source) Load(ctx context.Context) (*Project, error) {
	return s.load(ctx)
}

// Find gives the project's files and directory, without reading the files.
func (s Source) Find() (files []string, dir string, err error) {
	opts, err := s.options()
	if err != nil {
		return nil, "", err
	}
	if dir, err = opts.GetWorkingDir(); err != nil {
		return nil, "", err
	}
	for _, f := range opts.ConfigPaths {
		if f == "-" {
			return nil, "", &engine.Error{Kind: engine.KindInvalid, Object: "-f -",
				Cause: "a project on standard input has no place for an override", Hint: "write it to a file"}
		}
		abs, err := filepath.Abs(f)
		if err != nil {
			return nil, "", err
		}
		files = append(files, abs)
	}
	return files, dir, nil
}

// options follows compose cmd/compose/compose.go, ToProjectOptions: the environment
// wins over .env, which may name the files, and the project directory may hold another.
func (s Source) options(extra ...cli.ProjectOptionsFn) (*cli.ProjectOptions, error) {
	opts, err := cli.NewProjectOptions(slices.Clone(s.Files), append([]cli.ProjectOptionsFn{
		cli.WithWorkingDirectory(s.ProjectDir),
		cli.WithOsEnv,
		cli.WithEnvFiles(s.EnvFiles...),
		cli.WithDotEnv,
		cli.WithConfigFileEnv,
		cli.WithDefaultConfigPath,
		cli.WithEnvFiles(s.EnvFiles...),
		cli.WithDotEnv,
		cli.WithDefaultProfiles(s.Profiles...),
		cli.WithName(s.Name),
	}, extra...)...)
	if err != nil {
		return nil, invalid(err)
	}
	if len(opts.ConfigPaths) == 0 {
		return nil, &engine.Error{Kind: engine.KindNotFound, Object: "compose project",
			Cause: "there is no compose file here or above", Hint: "change to the project's folder, or name its file with -f"}
	}
	return opts, nil
}

func (s Source) load(ctx context.Context, extra ...cli.ProjectOptionsFn) (*Project, error) {
	files, dir, err := s.Find()
	if err != nil {
		return nil, err
	}
	opts, err := s.options(extra...)
	if err != nil {
		return nil, err
	}
	p, err := opts.LoadProject(ctx)
	if err != nil {
		return nil, invalid(err)
	}
	return &Project{Project: p, Files: files, Dir: dir}, nil
}

func invalid(err error) error {
	var ours *engine.Error
	if errors.As(err, &ours) {
		return err
	}
	return &engine.Error{Kind: engine.KindInvalid, Object: "compose project", Cause: "compose would refuse it", Err: err}
}

// service gives a service of any profile.
func (p *Project) service(name string) (types.ServiceConfig, error) {
	if s, ok := p.AllServices()[name]; ok {
		return s, nil
	}
	return types.ServiceConfig{}, &engine.Error{Kind: engine.KindNotFound, Object: fmt.Sprintf("service %q", name),
		Cause: "is not in the project", Hint: "services: " + fmt.Sprint(slices.Concat(p.ServiceNames(), p.DisabledServiceNames()))}
}
