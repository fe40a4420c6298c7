package compose

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Edited is a file before and after a change that is not written yet.
type Edited struct {
	Path          string
	Before, After []byte
}

// Backup keeps the text from before the change beside the file, with the ending ".bak".
func (e Edited) Backup() error { return Write(e.Path+".bak", e.Before) }

// InPlace edits the project's own files so that they say what an override would. Whole
// lines are put in and single values replaced; every other byte stays, and with it
// comments, anchors and order. What cannot be edited like that is refused with
// engine.KindInvalid. A service's own health check stays.
func (s Source) InPlace(ctx context.Context, f Facts) ([]Edited, error) {
	before, err := s.Load(ctx)
	if err != nil {
		return nil, err
	}
	docs := make([]*document, len(before.Files))
	for i, file := range before.Files {
		if docs[i], err = openDocument(file); err != nil {
			return nil, err
		}
	}
	plans, err := before.plans(f)
	if err != nil {
		return nil, err
	}
	for _, pl := range plans {
		if err := apply(docs, pl); err != nil {
			return nil, err
		}
	}
	edits := make([]Edited, len(docs))
	for i, d := range docs {
		edits[i] = Edited{Path: d.path, Before: d.text, After: d.result()}
	}
	return edits, s.proveInPlace(ctx, before, plans, edits)
}

// proveInPlace loads the project from drafts that lie beside the files, so that relative
// paths mean the same.
func (s Source) proveInPlace(ctx context.Context, before *Project, plans []plan, edits []Edited) error {
	drafts := s
	drafts.ProjectDir, drafts.Files, drafts.Name = before.Dir, nil, before.Name
	for _, e := range edits {
		draft, err := os.CreateTemp(filepath.Dir(e.Path), ".pgbranch-*-"+filepath.Base(e.Path))
		if err != nil {
			return err
		}
		defer os.Remove(draft.Name())
		if _, err := draft.Write(e.After); err != nil {
			return err
		}
		if err := draft.Close(); err != nil {
			return err
		}
		drafts.Files = append(drafts.Files, draft.Name())
	}
	after, err := drafts.Load(ctx)
	if err != nil {
		return unexpected(err)
	}
	return proveOnly(before, after, plans)
}

// apply edits, of the files, those that define the service and its volume.
func apply(docs []*document, pl plan) error {
	at := slices.IndexFunc(docs, func(d *document) bool { return d.find("services", pl.service) != nil })
	doc := docs[at]
	if err := doc.editService(pl); err != nil {
		return fmt.Errorf("service %q: %w", pl.service, err)
	}
	if pl.declared {
		return nil
	}
	if i := slices.IndexFunc(docs, func(d *document) bool { return d.find("volumes", pl.key) != nil }); i >= 0 {
		doc = docs[i]
	}
	return doc.editVolume(pl)
}

func (d *document) editService(pl plan) error {
	service := d.find("services", pl.service)
	vars := map[string]string{"LD_PRELOAD": pl.preload}
	if pl.pgdata != "" {
		vars["PGDATA"] = pl.pgdata
	}
	if err := d.setEnvironment(service, vars); err != nil {
		return err
	}
	if !pl.mounted {
		if err := d.setMount(service, pl.key+":"+pl.facts.MountPath, pl.facts.MountPath); err != nil {
			return err
		}
	}
	if _, own := entry(service, "healthcheck"); own != nil {
		return nil
	}
	h := mapping()
	put(h, "healthcheck", healthNode(pl.facts))
	return d.addAfterImage(service, h)
}

func (d *document) setEnvironment(service *yaml.Node, vars map[string]string) error {
	_, env := entry(service, "environment")
	if env == nil {
		block, inner := mapping(), mapping()
		for _, key := range sortedKeys(vars) {
			put(inner, key, scalar(escape(vars[key])))
		}
		put(block, "environment", inner)
		return d.addAfterImage(service, block)
	}
	for _, key := range sortedKeys(vars) {
		var err error
		switch env.Kind {
		case yaml.MappingNode:
			err = d.set(env, key, scalar(escape(vars[key])))
		case yaml.SequenceNode:
			item := scalar(key + "=" + escape(vars[key]))
			at := slices.IndexFunc(env.Content, func(n *yaml.Node) bool { return strings.HasPrefix(n.Value, key+"=") })
			if at >= 0 {
				err = d.replace(env.Content[at], item)
			} else {
				err = d.prepend(env, item)
			}
		default:
			err = tooUnusual("its environment")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setMount replaces what the service mounts at target, or adds it.
func (d *document) setMount(service *yaml.Node, mount, target string) error {
	_, mounts := entry(service, "volumes")
	if mounts == nil {
		block := mapping()
		put(block, "volumes", &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{scalar(mount)}})
		return d.addAfterImage(service, block)
	}
	if mounts.Kind != yaml.SequenceNode {
		return tooUnusual("its list of volumes")
	}
	for _, m := range mounts.Content {
		if m.Kind != yaml.ScalarNode {
			if _, at := entry(m, "target"); at != nil && path.Clean(at.Value) == path.Clean(target) {
				return tooUnusual("its volume at " + target)
			}
			continue
		}
		parts := strings.Split(m.Value, ":")
		if slices.ContainsFunc(parts, func(p string) bool { return path.Clean(p) == path.Clean(target) }) {
			return d.replace(m, scalar(mount))
		}
	}
	return d.prepend(mounts, scalar(mount))
}

func (d *document) editVolume(pl plan) error {
	if pl.resets {
		return tooUnusual(fmt.Sprintf("volume %q, which has options of another driver,", pl.key))
	}
	block := mapping()
	put(block, pl.key, volumeNode(pl))
	_, volumes := entry(d.root, "volumes")
	if volumes == nil {
		top := mapping()
		put(top, "volumes", block)
		return d.append(top)
	}
	key, v := entry(volumes, pl.key)
	if key == nil {
		return d.add(volumes, block)
	}
	if v.Kind == yaml.ScalarNode && v.Tag == "!!null" {
		return d.fill(key, v, volumeNode(pl))
	}
	if v.Kind != yaml.MappingNode {
		return tooUnusual(fmt.Sprintf("volume %q", pl.key))
	}
	wanted := volumeNode(pl)
	for i := 0; i < len(wanted.Content); i += 2 {
		name, value := wanted.Content[i].Value, wanted.Content[i+1]
		_, old := entry(v, name)
		var err error
		if name == "driver_opts" && old != nil && old.Kind == yaml.MappingNode {
			err = d.set(old, contract.OptSeed, scalar(pl.facts.Seed))
		} else {
			err = d.set(v, name, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func tooUnusual(what string) error {
	return &engine.Error{Kind: engine.KindInvalid, Object: "--in-place", Cause: what + " is written in a way that cannot be edited safely",
		Hint: "leave out --in-place: an override file can do it"}
}
