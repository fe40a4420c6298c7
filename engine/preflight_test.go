package engine

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/image"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// otherImage is a fake with an image that did not settle the seed and is as facts say.
func otherImage(facts contract.ImageFacts) *fakeAPI {
	f := newFake()
	f.images["other:1"] = image.InspectResponse{ID: "sha256:other", Config: imageConfig([]string{"PG_MAJOR=17"})}
	f.agent = func(verb string, _ []byte) []contract.AgentEvent {
		if verb == contract.AgentPreflight {
			f.calls = append(f.calls, "preflight")
			return []contract.AgentEvent{{Image: &facts}}
		}
		return []contract.AgentEvent{{Stage: contract.StageReady}}
	}
	return f
}

func createWith(f *fakeAPI, dir string, opts CreateOptions) (Branch, error) {
	e := newEngine(f)
	e.KeepFacts(dir)
	opts.Name, opts.From, opts.Timeout = "bx", "shop", time.Second
	b, _, err := e.Create(context.Background(), opts)
	return b, err
}

func TestAnotherImageIsAskedOnce(t *testing.T) {
	f := otherImage(contract.ImageFacts{Major: 17, ServerVersion: "17.5", UID: 70})
	dir := t.TempDir()
	for range 2 {
		if _, err := createWith(f, dir, CreateOptions{Image: "other:1"}); err != nil {
			t.Fatal(err)
		}
		c := f.containers["pgbranch-bx"]
		// The seed's owner, whatever the image's: nothing is to be chowned.
		if c.config.Image != "other:1" || c.config.User != "999:999" {
			t.Errorf("container is %+v", c.config)
		}
		if err := newEngine(f).Remove(context.Background(), "bx", true); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	for _, c := range f.calls {
		if c == "preflight" {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("the image was asked %d times", asked)
	}
}

func TestTheImageOfTheSeedIsNotAsked(t *testing.T) {
	f := otherImage(contract.ImageFacts{})
	if _, err := createWith(f, t.TempDir(), CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(f.calls, "preflight") {
		t.Error("it was")
	}
}

func TestAnImageThatDoesNotSuitIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		facts contract.ImageFacts
		env   string
		force bool
		// want is a word of the error, none for success.
		want string
	}{
		"other major":            {contract.ImageFacts{Major: 15}, "", false, "Postgres 15"},
		"other major, forced":    {contract.ImageFacts{Major: 15}, "", true, "Postgres 15"},
		"other major, by itself": {contract.ImageFacts{Major: 17}, "PG_MAJOR=15", true, "Postgres 15"},
		"musl":                   {contract.ImageFacts{Major: 17, Libc: "musl 1.2.5"}, "", false, "musl 1.2.5 has another order"},
		"musl, forced":           {contract.ImageFacts{Major: 17, Libc: "musl 1.2.5"}, "", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := otherImage(c.facts)
			if c.env != "" {
				f.images["other:1"] = image.InspectResponse{ID: "sha256:other", Config: imageConfig([]string{c.env})}
			}
			manifest := testManifest()
			manifest.Libc = "glibc 2.41"
			manifest.Databases = []contract.Database{{Name: "shop", Provider: "libc", Collation: "en_US.utf8", CType: "en_US.utf8"}}
			f.manifest = manifest
			b, err := createWith(f, t.TempDir(), CreateOptions{Image: "other:1", Force: c.force})
			if c.want == "" {
				if err != nil || len(b.Unfit) != 1 {
					t.Fatalf("%v, %+v", err, b.Unfit)
				}
				return
			}
			wantKind(t, err, KindInvalid)
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v", err)
			}
			if len(f.volumes) != 0 || len(f.containers) != 0 {
				t.Errorf("left behind: %v %v", f.volumes, f.containers)
			}
			if asked := slices.Contains(f.calls, "preflight"); asked && c.env != "" {
				t.Error("the image was asked what it says by itself")
			}
		})
	}
}

// A server that cannot load the shim does not start where its configuration names it, and
// does where that names none.
func TestAnImageThatCannotLoadTheShim(t *testing.T) {
	const why = "it is linked statically"
	for name, c := range map[string]struct {
		cow, seed string // the mode asked for, and why the seed's own image could not load it
		refused   bool
	}{
		"auto":                 {contract.CowAuto, "", true},
		"off":                  {contract.CowOff, "", false},
		"the seed's was as it": {contract.CowAuto, why, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := otherImage(contract.ImageFacts{Major: 17, CannotLoad: why})
			f.manifest = testManifest()
			f.manifest.CannotLoad = c.seed
			_, err := createWith(f, t.TempDir(), CreateOptions{Image: "other:1", Cow: c.cow})
			if !c.refused {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantKind(t, err, KindInvalid)
			if !strings.Contains(err.Error(), why) {
				t.Errorf("error is %v", err)
			}
			if len(f.volumes) != 0 || len(f.containers) != 0 {
				t.Errorf("left behind: %v %v", f.volumes, f.containers)
			}
		})
	}
}
