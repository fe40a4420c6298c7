package compose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// OverrideFile is the name of the generated file, in the project directory.
const OverrideFile = "compose.pgbranch.yaml"

// extension is the key under which an override keeps its Facts.
const extension = "x-pgbranch"

const overrideHead = ` Made by "docker pgbranch compose init", which makes it again; changes here are lost.

 docker pgbranch compose up -d                              runs Compose with this file
 docker compose -f compose.yaml -f ` + OverrideFile + ` up -d   is the same, by hand
 BRANCH=feature-x docker pgbranch compose up -d             switches to another branch`

// Without is the source with this project's files, the generated one left out.
func (s Source) Without(override string) (Source, error) {
	files, dir, err := s.Find()
	if err != nil {
		return s, err
	}
	s.Files = slices.DeleteFunc(files, func(f string) bool { return f == override })
	s.ProjectDir = dir
	return s, nil
}

// OverridePath is where the project's override belongs.
func (s Source) OverridePath() (string, error) {
	_, dir, err := s.Find()
	return filepath.Join(dir, OverrideFile), err
}

// ReadFacts gives the Facts that an override was made from; nil where there is none.
func ReadFacts(override string) (*Facts, error) {
	text, err := os.ReadFile(override)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var file struct {
		Facts *Facts `yaml:"x-pgbranch"`
	}
	if err == nil {
		err = yaml.Unmarshal(text, &file)
	}
	if err == nil && (file.Facts == nil || len(file.Facts.Services) == 0) {
		err = errors.New("it has no " + extension)
	}
	if err != nil {
		return nil, &engine.Error{Kind: engine.KindInvalid, Object: override, Cause: "was not made by `docker pgbranch compose init`", Err: err,
			Hint: "move it away, and run `docker pgbranch compose init`"}
	}
	return file.Facts, nil
}

// Override gives the text of the override file for the project, which must have been
// loaded without it, and proves it: the project is loaded with and without it.
func (s Source) Override(ctx context.Context, f Facts) ([]byte, error) {
	p, err := s.Load(ctx)
	if err != nil {
		return nil, err
	}
	plans, err := p.plans(f)
	if err != nil {
		return nil, err
	}
	text, err := overrideText(f, plans)
	if err != nil {
		return nil, err
	}
	return text, s.proveOverride(ctx, p, plans, text)
}

func overrideText(f Facts, plans []plan) ([]byte, error) {
	services, volumes := mapping(), mapping()
	for _, pl := range plans {
		put(services, pl.service, serviceNode(pl))
		if !pl.declared {
			put(volumes, pl.key, volumeNode(pl))
		}
	}
	var facts yaml.Node
	if err := facts.Encode(f); err != nil {
		return nil, err
	}
	root := mapping()
	put(root, "services", services)
	if len(volumes.Content) > 0 {
		put(root, "volumes", volumes)
	}
	put(root, extension, &facts)
	root.Content[0].HeadComment = comment(overrideHead)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return nil, err
	}
	return b.Bytes(), enc.Close()
}

func comment(text string) string {
	return "#" + strings.ReplaceAll(text, "\n", "\n#") + "\n"
}

func serviceNode(pl plan) *yaml.Node {
	env := mapping()
	put(env, "LD_PRELOAD", scalar(escape(pl.preload)))
	if pl.pgdata != "" {
		put(env, "PGDATA", scalar(pl.pgdata))
	}
	n := mapping()
	put(n, "environment", env)
	put(n, "healthcheck", healthNode(pl.facts))
	if !pl.mounted {
		m, options := mapping(), mapping()
		put(m, "type", scalar("volume"))
		put(m, "source", scalar(pl.key))
		put(m, "target", scalar(pl.facts.MountPath))
		// Or the Engine mounts the volume once more, to look whether it is empty.
		put(options, "nocopy", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true"})
		put(m, "volume", options)
		put(n, "volumes", &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{m}})
	}
	return n
}

func healthNode(f Facts) *yaml.Node {
	test := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, word := range f.probe() {
		n := scalar(escape(word))
		n.Style = yaml.DoubleQuotedStyle
		test.Content = append(test.Content, n)
	}
	h := mapping()
	put(h, "test", test)
	put(h, "interval", scalar(healthInterval))
	put(h, "timeout", scalar(healthTimeout))
	put(h, "start_period", scalar(healthStartPeriod))
	put(h, "start_interval", scalar(healthStartInterval))
	put(h, "retries", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: healthRetries})
	return h
}

func volumeNode(pl plan) *yaml.Node {
	opts := mapping()
	put(opts, contract.OptSeed, scalar(pl.facts.Seed))
	if pl.resets {
		opts.Tag = "!override"
	}
	v := mapping()
	put(v, "name", scalar(pl.volumeName()))
	put(v, "driver", scalar(contract.DriverName))
	put(v, "driver_opts", opts)
	return v
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode} }

func scalar(value string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(value)
	return n
}

func put(m *yaml.Node, key string, v *yaml.Node) { m.Content = append(m.Content, scalar(key), v) }

// escape keeps Compose from interpolating what was interpolated already.
func escape(s string) string { return strings.ReplaceAll(s, "$", "$$") }

// ownService refuses a service that only a file named by include defines: nothing beside
// that file may change it (compose-go loader/include.go, importResources).
func (p *Project) ownService(name string) error {
	if _, err := p.service(name); err != nil {
		return err
	}
	for _, f := range p.Files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		var file struct {
			Services map[string]yaml.Node `yaml:"services"`
		}
		if err := yaml.Unmarshal(text, &file); err != nil {
			return invalid(err)
		}
		if _, ok := file.Services[name]; ok {
			return nil
		}
	}
	return &engine.Error{Kind: engine.KindInvalid, Object: fmt.Sprintf("service %q", name),
		Cause: "comes from a file that the project includes, and compose lets no other file change it",
		Hint:  "run init for that file with -f, and include both: `include: [{path: [FILE, " + OverrideFile + "]}]`"}
}

// proveOverride loads the project with the new text and looks that it says what was meant
// and left the other services alone.
func (s Source) proveOverride(ctx context.Context, before *Project, plans []plan, text []byte) error {
	dir, err := os.MkdirTemp("", "pgbranch-compose-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	draft := filepath.Join(dir, OverrideFile)
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return err
	}
	with := s
	with.ProjectDir = before.Dir
	with.Files = append(slices.Clone(before.Files), draft)
	after, err := with.Load(ctx)
	if err != nil {
		return err
	}
	return proveOnly(before, after, plans)
}

// Write replaces a file as a whole, keeping its mode.
func Write(path string, text []byte) error {
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	draft, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = draft.Write(text)
	err = errors.Join(err, draft.Chmod(mode), draft.Close())
	if err == nil {
		err = os.Rename(draft.Name(), path)
	}
	if err != nil {
		_ = os.Remove(draft.Name())
	}
	return err
}

// sortedKeys gives a map's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
