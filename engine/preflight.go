package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// suitableImage gives the image that is to run a branch, and in what it does not suit the
// seed though it may be used.
func (e *Engine) suitableImage(ctx context.Context, opts CreateOptions, s contract.Status) (pgImage, []contract.Unfit, error) {
	img, err := e.branchImage(ctx, *s.Manifest, opts)
	if err != nil {
		return img, nil, err
	}
	unfit, err := e.preflight(ctx, opts, s, img)
	return img, slices.Concat(unfit, img.unheeded()), err
}

// preflight compares the image that is to run a branch with the seed, before Postgres
// meets what does not suit it. The image that settled the seed has been looked at then, and
// costs nothing here.
//
// It fails with KindInvalid for what cannot work, and for what is grave unless force is
// set; the rest is returned.
func (e *Engine) preflight(ctx context.Context, opts CreateOptions, s contract.Status, img pgImage) ([]contract.Unfit, error) {
	m := s.Manifest
	if m.ImageID != "" && img.ID == m.ImageID {
		return m.Unfit, nil
	}
	unfit := m.Fit(contract.ImageFacts{Major: img.Major})
	if len(unfit) == 0 {
		facts, err := e.imageFacts(ctx, opts.Name, img)
		if err != nil {
			return nil, err
		}
		if err := loadable(opts.Name, s, img, facts); err != nil {
			return nil, err
		}
		unfit = m.Fit(facts)
	}
	var grave []string
	hint := ""
	for _, u := range unfit {
		if u.Never || u.Grave && !opts.Force {
			grave = append(grave, u.What+": "+u.Why)
			if hint == "" || u.Never {
				hint = fmt.Sprintf("the seed was settled by %s", m.Image)
				if !u.Never {
					hint += "; --force goes on all the same"
				}
			}
		}
	}
	if len(grave) > 0 {
		return nil, &Error{Kind: KindInvalid, Object: branchObject(opts.Name),
			Cause: fmt.Sprintf("the image %s does not suit the seed: %s", img.Ref, strings.Join(grave, "; ")), Hint: hint}
	}
	return unfit, nil
}

// loadable refuses an image whose server cannot load lazyrw where the configuration of the
// branch has it load that: it would not start.
func loadable(branch string, s contract.Status, img pgImage, facts contract.ImageFacts) error {
	if facts.CannotLoad == "" || s.Manifest.CannotLoad != "" || s.CowMode != contract.ModeLazyRW {
		return nil
	}
	return &Error{Kind: KindInvalid, Object: branchObject(branch),
		Cause: fmt.Sprintf("the server of the image %s cannot load lazyrw, as the seed's configuration has it do: %s", img.Ref, facts.CannotLoad),
		Hint:  "--cow off runs it without; a seed that this image settles (`seed create --image`) has branches that do"}
}

// imageFacts asks an image in a helper container over the branch's own volume, which
// brings the agent, with no network. The answer is kept by the image's id.
func (e *Engine) imageFacts(ctx context.Context, branch string, img pgImage) (contract.ImageFacts, error) {
	if facts, ok := e.recall(img.ID); ok {
		return facts, nil
	}
	last, err := e.run(ctx, helper{
		Seed: "preflight", Object: fmt.Sprintf("image %q", img.Ref), Image: img.Ref, Agent: stagedAgent, Network: "none",
		Stage: branch, ReadOnly: true, Hide: img.MountPath,
		Verb: contract.AgentPreflight, Request: contract.PreflightRequest{},
	}, func(Progress) {})
	if err != nil {
		return contract.ImageFacts{}, err
	}
	if last.Image == nil {
		return contract.ImageFacts{}, &Error{Object: fmt.Sprintf("image %q", img.Ref), Cause: "the agent does not say what it is"}
	}
	e.remember(img.ID, *last.Image)
	return *last.Image, nil
}

// KeepFacts keeps what is learned of images in the folder dir, which is made when there
// is something to keep. Without it every look asks anew.
func (e *Engine) KeepFacts(dir string) { e.factsDir = dir }

// factsFile names the image and this version, whose agent may look at more.
func (e *Engine) factsFile(id string) string {
	return filepath.Join(e.factsDir, imageTag(strings.TrimPrefix(id, "sha256:")+"-"+e.version)+".json")
}

func (e *Engine) recall(id string) (facts contract.ImageFacts, ok bool) {
	if e.factsDir == "" {
		return facts, false
	}
	text, err := os.ReadFile(e.factsFile(id))
	return facts, err == nil && json.Unmarshal(text, &facts) == nil && facts.Major != 0
}

// remember may fail: the next look asks again.
func (e *Engine) remember(id string, facts contract.ImageFacts) {
	if e.factsDir == "" || os.MkdirAll(e.factsDir, 0o700) != nil {
		return
	}
	text, err := json.Marshal(facts)
	if err != nil {
		return
	}
	f, err := os.CreateTemp(e.factsDir, "new-")
	if err != nil {
		return
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if f.Close() == nil && err == nil {
		_ = os.Rename(f.Name(), e.factsFile(id))
	}
}
