package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/pgbranch/docker-pgbranch/engine"
)

func facts(services ...string) Facts {
	return Facts{Seed: "shop", Major: 17, MountPath: mountTo17, DataDir: ".", Superuser: "postgres", Database: "shop", Services: services}
}

// project writes files, the first of which is the main one, and gives their source.
func project(t *testing.T, files ...string) Source {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "proj")
	assert.NilError(t, os.Mkdir(dir, 0o755))
	t.Setenv("COMPOSE_FILE", "")
	os.Unsetenv("COMPOSE_FILE")
	for i := 0; i < len(files); i += 2 {
		assert.NilError(t, os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o644))
	}
	return Source{Files: []string{filepath.Join(dir, files[0])}}
}

func sample(t *testing.T) string {
	text, err := os.ReadFile("testdata/volume/compose.yaml")
	assert.NilError(t, err)
	return string(text)
}

// with loads the project with the override that it gets.
func with(t *testing.T, s Source, f Facts) *Project {
	t.Helper()
	text, err := s.Override(context.Background(), f)
	assert.NilError(t, err)
	path, err := s.OverridePath()
	assert.NilError(t, err)
	assert.NilError(t, Write(path, text))
	s.Files = append(s.Files, path)
	p, err := s.Load(context.Background())
	assert.NilError(t, err)
	return p
}

func kind(t *testing.T, err error, want engine.Kind, words string) {
	t.Helper()
	assert.ErrorContains(t, err, words)
	assert.Equal(t, engine.KindOf(err), want)
}

func TestOverrideOfTheSample(t *testing.T) {
	s := project(t, "compose.yaml", sample(t))
	text, err := s.Override(context.Background(), facts("db"))
	assert.NilError(t, err)
	golden.Assert(t, string(text), "override.golden")
	p := with(t, s, facts("db"))
	assert.Equal(t, p.Volumes["db-data"].Name, "proj_db-data_main")
	t.Setenv("BRANCH", "feature-x")
	assert.Equal(t, with(t, s, facts("db")).Volumes["db-data"].Name, "proj_db-data_feature-x")
	path, _ := s.OverridePath()
	known, err := ReadFacts(path)
	assert.NilError(t, err)
	assert.DeepEqual(t, *known, facts("db"))
}

func TestOverrideJoinsWhatIsThere(t *testing.T) {
	shim := mountTo17 + "/.pgoverlay/lazyrw.so"
	for name, tc := range map[string]struct{ env, files, preload string }{
		"map":          {"{LD_PRELOAD: /opt/jemalloc.so}", "", "/opt/jemalloc.so:" + shim},
		"list":         {"[LD_PRELOAD=/opt/a.so /opt/b.so]", "", "/opt/a.so:/opt/b.so:" + shim},
		"already":      {"{LD_PRELOAD: '" + shim + "'}", "", shim},
		"with dollars": {"{LD_PRELOAD: /opt/$$LIB/a.so}", "", "/opt/$LIB/a.so:" + shim},
		"interpolated": {"['LD_PRELOAD=${LIB:-/opt/c.so}']", "", "/opt/c.so:" + shim},
	} {
		t.Run(name, func(t *testing.T) {
			s := project(t, "compose.yaml", "services: {db: {image: 'postgres:17', environment: "+tc.env+"}}")
			svc, _ := with(t, s, facts("db")).service("db")
			assert.Equal(t, value(svc, "LD_PRELOAD"), tc.preload)
		})
	}
	t.Run("env_file and the image", func(t *testing.T) {
		s := project(t, "compose.yaml", "services: {db: {image: 'postgres:17', env_file: db.env}}", "db.env", "LD_PRELOAD=/opt/d.so\n")
		svc, _ := with(t, s, facts("db")).service("db")
		assert.Equal(t, value(svc, "LD_PRELOAD"), "/opt/d.so:"+shim)
		f := facts("db")
		f.Preload = "/image.so"
		s = project(t, "compose.yaml", "services: {db: {image: 'postgres:17'}}")
		svc, _ = with(t, s, f).service("db")
		assert.Equal(t, value(svc, "LD_PRELOAD"), "/image.so:"+shim)
	})
}

// Whatever is mounted where the cluster belongs gives way to the branch, and what is not
// the project's own to change is left alone.
func TestOverrideTakesThePlaceOfAnyMount(t *testing.T) {
	for name, tc := range map[string]struct{ mount, volumes, key string }{
		"nothing":          {"[]", "{}", "db-branch"},
		"a folder":         {"['./data:/var/lib/postgresql/data']", "{}", "db-branch"},
		"an anonymous one": {"['/var/lib/postgresql/data']", "{}", "db-branch"},
		"a volume":         {"['vol:/var/lib/postgresql/data']", "{vol: }", "vol"},
		"read-only":        {"['vol:/var/lib/postgresql/data:ro']", "{vol: }", "vol"},
		"a long one":       {"[{type: volume, source: vol, target: /var/lib/postgresql/data/}]", "{vol: {}}", "vol"},
		"an external one":  {"['vol:/var/lib/postgresql/data']", "{vol: {external: true}}", "db-branch"},
		"driver options":   {"['vol:/var/lib/postgresql/data']", "{vol: {driver_opts: {type: none, o: bind, device: /srv/pg}}}", "vol"},
		"with a name":      {"['vol:/var/lib/postgresql/data', 'other:/backup']", "{vol: {name: pgdata}, other: {}}", "vol"},
	} {
		t.Run(name, func(t *testing.T) {
			s := project(t, "compose.yaml", "services: {db: {image: 'postgres:17', volumes: "+tc.mount+"}}\nvolumes: "+tc.volumes)
			p := with(t, s, facts("db"))
			v := p.Volumes[tc.key]
			assert.Equal(t, v.Name, "proj_"+tc.key+"_main", "never the name that compose would give it: that volume may exist, with data")
			assert.DeepEqual(t, map[string]string(v.DriverOpts), map[string]string{"seed": "shop"})
		})
	}
}

func TestInitRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		files []string
		f     Facts
		words string
	}{
		"another major": {[]string{"compose.yaml", "services: {db: {image: 'postgres:16-alpine'}}"}, facts("db"), "runs postgres:16-alpine"},
		"a wrong place": {[]string{"compose.yaml", "services: {db: {image: 'postgres:18', volumes: ['vol:/var/lib/postgresql/data']}}\nvolumes: {vol: }"}, Facts{Seed: "shop", Major: 18, MountPath: mountFrom18, DataDir: "18/docker", Services: []string{"db"}}, "images of Postgres 18 have it at /var/lib/postgresql"},
		"an include":    {[]string{"compose.yaml", "include: [db.yaml]\nservices: {web: {image: web}}", "db.yaml", "services: {db: {image: 'postgres:17'}}"}, facts("db"), "compose lets no other file change it"},
		"a provider":    {[]string{"compose.yaml", "services: {db: {provider: {type: pgbranch, options: {seed: shop}}}}"}, facts("db"), "provider"},
		"a wrong file":  {[]string{"compose.yaml", "services: {db: {image: 'postgres:17', volumez: []}}"}, facts("db"), "compose would refuse it"},
		"a boolean":     {[]string{"compose.yaml", "services: {db: {image: 'postgres:17'}}\nvolumes: {vol: {driver: pgoverlay, driver_opts: {seed: true}}}"}, facts("db"), "must be a"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := project(t, tc.files...).Override(context.Background(), tc.f)
			kind(t, err, engine.KindInvalid, tc.words)
		})
	}
}

func TestInitOfAnUnknownService(t *testing.T) {
	_, err := project(t, "compose.yaml", "services: {db: {image: 'postgres:17'}}").Override(context.Background(), facts("db2"))
	kind(t, err, engine.KindNotFound, "is not in the project")
}

func TestChoose(t *testing.T) {
	for name, tc := range map[string]struct{ file, want, words string }{
		"by image":           {"services: {db: {image: 'registry.example:5000/team/postgres:17'}, web: {image: web}}", "db", ""},
		"by volume":          {"services: {db: {build: ., volumes: ['vol:/var/lib/postgresql/data']}}\nvolumes: {vol: }", "db", ""},
		"by PGDATA":          {"services: {db: {build: ., environment: {PGDATA: /srv/pg/main}, volumes: ['vol:/srv/pg']}}\nvolumes: {vol: }", "db", ""},
		"a client beside it": {"services: {db: {image: 'postgres:17', volumes: ['vol:/var/lib/postgresql/data']}, psql: {image: 'postgres:17'}}\nvolumes: {vol: }", "db", ""},
		"two":                {"services: {a: {image: 'postgres:17'}, b: {image: 'postgis/postgis:17-3.5'}}", "", "several services"},
		"none":               {"services: {web: {image: 'prom/postgres-exporter'}}", "", "no service looks like Postgres"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := project(t, "compose.yaml", tc.file).Load(context.Background())
			assert.NilError(t, err)
			got, err := p.Choose(nil)
			if tc.words != "" {
				kind(t, err, engine.KindInvalid, tc.words)
				return
			}
			assert.NilError(t, err)
			assert.DeepEqual(t, got, []string{tc.want})
		})
	}
}

func TestInactiveProfileIsNamed(t *testing.T) {
	p, err := project(t, "compose.yaml", "services: {db: {image: 'postgres:17', profiles: [full]}, web: {image: web}}").Load(context.Background())
	assert.NilError(t, err)
	_, err = p.Choose(nil)
	var ours *engine.Error
	assert.Check(t, is.ErrorType(err, ours))
	got, err := p.Choose([]string{"db"})
	assert.NilError(t, err)
	assert.DeepEqual(t, got, []string{"db"})
}

// One that edits in place keeps every byte but the ones it is about.
func TestInPlace(t *testing.T) {
	s := project(t, "compose.yaml", sample(t))
	edits, err := s.InPlace(context.Background(), facts("db"))
	assert.NilError(t, err)
	golden.Assert(t, string(edits[0].After), "inplace.golden")
	rest := string(edits[0].After)
	for line := range strings.Lines(sample(t)) {
		_, after, ok := strings.Cut(rest, line)
		assert.Assert(t, ok, "the line %q is gone, or out of order", line)
		rest = after
	}
	assert.NilError(t, Write(s.Files[0], edits[0].After))
	again, err := s.InPlace(context.Background(), facts("db"))
	assert.NilError(t, err)
	assert.Equal(t, string(again[0].After), string(edits[0].After), "twice changes nothing")
}

func TestInPlaceInManyForms(t *testing.T) {
	for name, file := range map[string]string{
		"one line":        "services: {db: {image: 'postgres:17', environment: {A: b}, volumes: ['vol:/var/lib/postgresql/data']}}\nvolumes: {vol: {}}\n",
		"lists":           "services:\n  db:\n    image: postgres:17\n    environment:\n    - A=b\n    - LD_PRELOAD=/x.so\n    volumes:\n    - ./x:/x\n    - ./data:/var/lib/postgresql/data\n",
		"no end of line":  "services:\n  db:\n    image: postgres:17",
		"quotes":          "services:\n    db:\n        image: \"postgres:17\"   # pinned\n        environment:\n            LD_PRELOAD: 'a''b.so'  # odd\n",
		"a volume's name": "services:\n  db:\n    image: postgres:17\n    volumes: [\"vol:/var/lib/postgresql/data\"]\nvolumes:\n  vol:\n    name: \"old\" # named\n    labels: {a: b}\n",
		"null":            "services:\n  db:\n    image: postgres:17\n    volumes: [\"vol:/var/lib/postgresql/data\"]\nvolumes:\n  vol: null # nothing\n  e:\n",
		"windows":         "services:\r\n  db:\r\n    image: postgres:17\r\nvolumes:\r\n  e: {}\r\n",
		"another seed":    "services:\n  db:\n    image: postgres:17\n    volumes: [\"vol:/var/lib/postgresql/data\"]\nvolumes:\n  vol:\n    driver: pgoverlay\n    driver_opts:\n      ttl: 24h\n      seed: old\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := project(t, "compose.yaml", file)
			edits, err := s.InPlace(context.Background(), facts("db"))
			assert.NilError(t, err)
			assert.NilError(t, Write(s.Files[0], edits[0].After))
			again, err := s.InPlace(context.Background(), facts("db"))
			assert.NilError(t, err)
			assert.Equal(t, string(again[0].After), string(edits[0].After))
		})
	}
}

func TestInPlaceRefusesWhatItCannotKeep(t *testing.T) {
	for name, file := range map[string]string{
		"an alias":       "x-env: &env {A: b}\nservices:\n  web: {image: web, environment: *env}\n  db:\n    image: postgres:17\n    environment: *env\n",
		"driver options": "services:\n  db:\n    image: postgres:17\n    volumes: [\"vol:/var/lib/postgresql/data\"]\nvolumes: {vol: {driver_opts: {type: tmpfs}}}\n",
		"a long mount":   "services:\n  db:\n    image: postgres:17\n    volumes:\n    - {type: bind, source: ., target: /var/lib/postgresql/data}\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := project(t, "compose.yaml", file)
			_, err := s.InPlace(context.Background(), facts("db"))
			kind(t, err, engine.KindInvalid, "cannot be edited safely")
		})
	}
}

// The proof looks at the whole project: an edit that reaches another service is refused.
func TestProofSeesAnotherService(t *testing.T) {
	s := project(t, "compose.yaml", sample(t))
	before, err := s.Load(context.Background())
	assert.NilError(t, err)
	pl, err := before.plan("db", facts("db"))
	assert.NilError(t, err)
	other := strings.Replace(sample(t), `"8080"`, `"8081"`, 1)
	assert.ErrorContains(t, s.proveInPlace(context.Background(), before, []plan{pl}, []Edited{{Path: s.Files[0], After: []byte(other)}}), "service web would change")
	assert.ErrorContains(t, s.proveInPlace(context.Background(), before, []plan{pl}, []Edited{{Path: s.Files[0], After: []byte(sample(t))}}), "LD_PRELOAD")
}

func TestDrift(t *testing.T) {
	s := project(t, "compose.yaml", "services: {db: {image: 'postgres:17', volumes: ['vol:/var/lib/postgresql/data']}}\nvolumes: {vol: {driver: pgoverlay, driver_opts: {seed: crm}}}")
	b := engine.Branch{Branch: "proj_vol", Seed: "shop", Generation: 1, Compose: &engine.ComposeOrigin{Project: "proj", Volume: "vol", Files: s.Files}}
	notes := Drift(context.Background(), b)
	assert.Equal(t, len(notes), 1)
	assert.Check(t, is.Contains(notes[0].Fix, "docker volume rm proj_vol"))
	assert.Check(t, is.Contains(notes[0].Detail, "seed=crm"))
	for _, same := range []engine.Branch{
		{Branch: "proj_vol", Seed: "crm", Generation: 3, Compose: b.Compose},
		{Branch: "proj_vol_other", Seed: "shop", Compose: b.Compose},
		{Branch: "proj_vol", Seed: "shop"},
	} {
		assert.Equal(t, len(Drift(context.Background(), same)), 0, "%+v", same)
	}
}

func TestProviderMessages(t *testing.T) {
	var out bytes.Buffer
	up := engine.Service{Host: "my-db", Port: 5432, User: "app", Password: "p<&/@", Database: "shop"}
	assert.NilError(t, NewReporter(&out).Export("my-db", up, true))
	assert.NilError(t, NewReporter(&out).Error("two\nlines"))
	golden.Assert(t, out.String(), "provider.golden")
	out.Reset()
	assert.NilError(t, NewReporter(&out).Export("db", up, false))
	assert.Check(t, !strings.Contains(out.String(), "rawsetenv"), "Compose before 5.2 gives up at rawsetenv")
}

func TestWhatComposeKnows(t *testing.T) {
	for version, want := range map[string]bool{"2.40.3-3": false, "5.1.9": false, "5.2.0": true, "v5.10.1\n": true, "6.0.0": true, "": false, "dev": false} {
		assert.Equal(t, KnowsRaw(version), want, version)
	}
	assert.Check(t, NeedsRaw("my-db") && !NeedsRaw("db_1"))
	assert.Equal(t, ShellName("my-db.x"), "MY_DB_X")
}

func TestMetadataListsEveryOption(t *testing.T) {
	text, err := json.MarshalIndent(Metadata(), "", "  ")
	assert.NilError(t, err)
	golden.Assert(t, string(text)+"\n", "metadata.golden")
}
