package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract/dumpfile"
)

// playSource answers as an agent that meets a Postgres 17 without trouble.
func playSource(verb string, _ []byte) []contract.AgentEvent {
	switch verb {
	case contract.AgentProbe:
		return []contract.AgentEvent{{Stage: contract.StageProbe}, {Probe: &contract.Probe{Major: 17, Host: "db", Port: 5432, User: "app", Database: "shop", Superuser: "postgres"}}}
	case contract.AgentBaseBackup:
		return []contract.AgentEvent{{Stage: contract.StageBaseBackup, Done: 1, Total: 2}, {BaseBackup: &contract.BaseBackupResult{StartLSN: "0/2000028"}}}
	}
	return []contract.AgentEvent{{Stage: contract.StageFreeze}, {Manifest: testManifest()}}
}

func seedFake() *fakeAPI {
	f := newFake()
	f.images[agentRepository+":v1"] = f.images["postgres:17"]
	f.agent = playSource
	return f
}

func createSeed(ctx context.Context, f *fakeAPI, opts SeedCreateOptions) (Seed, error) {
	opts.Name = "shop"
	opts.Source = contract.Source{URL: "postgres://app@db/shop", Password: "secret"}
	return newEngine(f).CreateSeed(ctx, opts)
}

func TestCreateSeed(t *testing.T) {
	f := seedFake()
	var stages []string
	s, err := createSeed(context.Background(), f, SeedCreateOptions{Progress: func(p Progress) {
		if !slices.Contains(stages, p.Stage) {
			stages = append(stages, p.Stage)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Ref() != "shop@1" || len(f.volumes) != 1 || len(f.containers) != 0 {
		t.Errorf("seed %s, volumes %v, containers %v", s.Ref(), f.volumes, f.containers)
	}
	want := []string{contract.StageProbe, contract.StageBaseBackup, contract.StageFreeze, StageSeal}
	if !slices.Equal(stages, want) {
		t.Errorf("stages %q, want %q", stages, want)
	}
}

// What `docker inspect` shows of the helpers must not hold the password, and the
// settle must have no network.
func TestHelpersShowNoSecretAndSettleHasNoNetwork(t *testing.T) {
	f := seedFake()
	networks := map[string]string{}
	f.containerStart = func(id string) error {
		c := f.containers[id]
		networks[c.config.Entrypoint[2]] = string(c.host.NetworkMode)
		for _, s := range slices.Concat(c.config.Env, c.config.Entrypoint, c.config.Cmd) {
			if strings.Contains(s, "secret") {
				t.Errorf("%s shows the password: %q", id, s)
			}
		}
		if c.host.LogConfig.Type != "none" {
			t.Errorf("%s logs to %q", id, c.host.LogConfig.Type)
		}
		return nil
	}
	if _, err := createSeed(context.Background(), f, SeedCreateOptions{Network: "backend"}); err != nil {
		t.Fatal(err)
	}
	if networks[contract.AgentSettle] != "none" || networks[contract.AgentBaseBackup] != "backend" || networks[contract.AgentProbe] != "backend" {
		t.Errorf("networks are %v", networks)
	}
}

func TestCreateSeedThatFailsOrIsInterruptedLeavesNothing(t *testing.T) {
	for _, at := range []string{contract.AgentProbe, contract.AgentBaseBackup, contract.AgentSettle} {
		t.Run(at, func(t *testing.T) {
			f := seedFake()
			f.agent = func(verb string, request []byte) []contract.AgentEvent {
				if verb == at {
					return []contract.AgentEvent{{Error: &contract.AgentError{Message: "no", Hint: "do this", Code: contract.AgentErrPassword}}}
				}
				return playSource(verb, request)
			}
			_, err := createSeed(context.Background(), f, SeedCreateOptions{})
			wantKind(t, err, KindSource)
			wantNothing(t, f)
		})
		t.Run(at+" interrupted", func(t *testing.T) {
			f := seedFake()
			ctx, interrupt := context.WithCancel(context.Background())
			f.agent = func(verb string, request []byte) []contract.AgentEvent {
				if verb == at {
					interrupt()
					return nil
				}
				return playSource(verb, request)
			}
			if _, err := createSeed(ctx, f, SeedCreateOptions{}); !errors.Is(err, context.Canceled) {
				t.Errorf("error is %v", err)
			}
			wantNothing(t, f)
		})
	}
}

func TestCreateSeedRefusesAnImageOfAnotherMajor(t *testing.T) {
	f := seedFake()
	f.images["postgres:15"] = f.images["postgres:17"]
	img := f.images["postgres:15"]
	img.Config = imageConfig([]string{"PG_MAJOR=15"})
	f.images["postgres:15"] = img
	_, err := createSeed(context.Background(), f, SeedCreateOptions{Image: "postgres:15"})
	wantKind(t, err, KindInvalid)
	if !strings.Contains(err.Error(), "17") || !strings.Contains(err.Error(), "15") {
		t.Errorf("%q does not name both majors", err)
	}
	wantNothing(t, f)
}

// A dump of a server that no seed has, or an image of one, is refused before an image is
// pulled or anything is made.
func TestADumpOfAnUnknownMajorIsRefused(t *testing.T) {
	for _, c := range []struct{ source, image, want string }{
		{"13.23", "", "Postgres 13.23, and a seed has 14 to 18"},
		{"19beta1", "", "Postgres 19beta1, and a seed has 14 to 18"},
		{"19beta1", "postgres:17", "Postgres 19beta1, and a seed has 14 to 18"},
		{"13.23", "postgres:13", "postgres:13 has Postgres 13, and a seed has 14 to 18"},
		{"17.6", "postgres:19", "postgres:19 has Postgres 19, and a seed has 14 to 18"},
	} {
		f := seedFake()
		for _, major := range []string{"13", "19"} {
			f.images["postgres:"+major] = image.InspectResponse{ID: "sha256:" + major, Config: imageConfig([]string{"PG_MAJOR=" + major})}
		}
		opts := SeedDumpOptions{Dump: &DumpFile{Head: dumpfile.Head{Source: c.source}}}
		opts.Name, opts.Image = "shop", c.image
		_, _, err := newEngine(f).CreateSeedFromDump(context.Background(), opts)
		wantKind(t, err, KindInvalid)
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("source %s, image %q: %q does not say %q", c.source, c.image, err, c.want)
		}
		wantNothing(t, f)
	}
}

func TestCreateSeedPullsAMissingImageOrSaysSo(t *testing.T) {
	f := seedFake()
	_, err := createSeed(context.Background(), f, SeedCreateOptions{Image: "registry.example/pg:17"})
	wantKind(t, err, KindNotFound)
	if !slices.Contains(f.calls, "pull registry.example/pg:17") {
		t.Error("it was not pulled")
	}
	wantNothing(t, f)
}

func TestLocalhostMeansTheEnginesHost(t *testing.T) {
	f := seedFake()
	var got string
	f.containerStart = func(id string) error {
		if f.containers[id].config.Entrypoint[2] == contract.AgentProbe {
			got = string(f.containers[id].host.NetworkMode)
		}
		return nil
	}
	_, err := newEngine(f).CreateSeed(context.Background(), SeedCreateOptions{
		Name: "shop", Source: contract.Source{URL: "postgres://app@localhost/shop"}})
	if err != nil || got != "host" {
		t.Errorf("network %q, error %v", got, err)
	}
}

func TestRemoveSeedNamesTheBranches(t *testing.T) {
	f := newFake()
	f.addSeed("shop", 1)
	f.addSeed("shop", 2, "feature-x")
	err := newEngine(f).RemoveSeed(context.Background(), "shop")
	wantKind(t, err, KindConflict)
	if !strings.Contains(err.Error(), "feature-x") || len(f.volumes) != 2 {
		t.Errorf("%v, volumes %v", err, f.volumes)
	}
	if err := newEngine(f).RemoveSeed(context.Background(), "shop@1"); err != nil {
		t.Fatal(err)
	}
	if _, err := newEngine(f).Seed(context.Background(), "shop@1"); KindOf(err) != KindNotFound {
		t.Errorf("shop@1 is still there: %v", err)
	}
}

func TestBareSeedNameIsTheNewestGeneration(t *testing.T) {
	f := newFake()
	for g := 1; g <= 11; g++ {
		f.addSeed("shop", g)
	}
	s, err := newEngine(f).Seed(context.Background(), "shop")
	if err != nil || s.Ref() != "shop@11" {
		t.Errorf("got %s, %v", s.Ref(), err)
	}
}

func TestBadNames(t *testing.T) {
	for _, name := range []string{"", "x", "..", ".x", "a/b", "a b", "-rf", "x:y", "x\n", "é", strings.Repeat("a", 129), strings.Repeat("a", 200)} {
		if err := checkName("branch", name); KindOf(err) != KindInvalid {
			t.Errorf("%q was taken", name)
		}
	}
	for _, ref := range []string{"shop@", "shop@0", "shop@x", "shop@-1", "shop@1@2", "@1"} {
		if _, _, err := ParseSeedRef(ref); KindOf(err) != KindInvalid {
			t.Errorf("%q was taken", ref)
		}
	}
}

func TestParseSource(t *testing.T) {
	s, err := ParseSource("postgres://app:s3cret@db:5433/shop?sslmode=require", "other")
	if err != nil || s.Password != "s3cret" || s.URL != "postgres://app@db:5433/shop?sslmode=require" {
		t.Errorf("got %+v, %v", s, err)
	}
	s, err = ParseSource("postgresql://app@db/shop?password=s3cret", "")
	if err != nil || s.Password != "s3cret" || strings.Contains(s.URL, "s3cret") {
		t.Errorf("got %+v, %v", s, err)
	}
	if s, err = ParseSource("postgres://app@db/shop", "env"); err != nil || s.Password != "env" {
		t.Errorf("got %+v, %v", s, err)
	}
	for _, bad := range []string{"", "db", "http://app:s3cret@db/x", "postgres:///shop", "postgres://db/shop", "postgres://app:s3cret@db:port/%zz"} {
		_, err := ParseSource(bad, "")
		if KindOf(err) != KindInvalid || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCertificatesAreLookedAtBeforeTheSourceIs(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := file("ca", "-----BEGIN CERTIFICATE-----\n")
	locked := file("locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
	older := file("older", "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n")
	for _, c := range []struct {
		files     TLSFiles
		query     string
		want, say string // the URL's parameters, or a word of the error
	}{
		{TLSFiles{}, "", "", ""},
		{TLSFiles{RootCert: ca}, "", "sslmode=verify-full", ""},
		{TLSFiles{}, "sslrootcert=" + ca, "sslmode=verify-full", ""},
		{TLSFiles{RootCert: ca}, "sslmode=verify-ca", "sslmode=verify-ca", ""},
		{TLSFiles{RootCert: ca}, "sslmode=prefer", "", "go on without TLS"},
		{TLSFiles{RootCert: filepath.Join(dir, "none")}, "", "", "no such file"},
		{TLSFiles{RootCert: file("der", "0\x82")}, "", "", "holds no PEM"},
		{TLSFiles{Cert: ca}, "", "", "belong together"},
		{TLSFiles{Cert: ca, Key: locked}, "", "", "passphrase"},
		{TLSFiles{Cert: ca, Key: older}, "", "", "passphrase"},
		{TLSFiles{Cert: ca, Key: ca}, "", "", "failed to"},
	} {
		source := contract.Source{URL: "postgres://app@db/shop?" + c.query}
		err := AddTLS(&source, c.files)
		if c.say != "" {
			if KindOf(err) != KindInvalid || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%+v: %v does not say %q", c, err, c.say)
			}
			continue
		}
		if _, query, _ := strings.Cut(source.URL, "?"); err != nil || query != c.want {
			t.Errorf("%+v: %v, %s", c, err, source.URL)
		}
	}
}

func TestTheNextSeedingClearsWhatAKilledOneLeft(t *testing.T) {
	f := seedFake()
	f.volumes["leftover"] = &volume.Volume{Name: "leftover", Driver: contract.DriverNameInEngine,
		Labels: map[string]string{LabelHelper: "shop"}, Status: statusMap(contract.Status{Kind: contract.KindStaging})}
	f.volumes["other"] = &volume.Volume{Name: "other", Driver: contract.DriverNameInEngine,
		Labels: map[string]string{LabelHelper: "catalog"}, Status: statusMap(contract.Status{Kind: contract.KindStaging})}
	if _, err := createSeed(context.Background(), f, SeedCreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if f.volumes["leftover"] != nil || f.volumes["other"] == nil {
		t.Errorf("volumes are %v", f.volumes)
	}
}

func TestASeedNameInUseIsRefusedBeforeTheSourceIsAsked(t *testing.T) {
	f := seedFake()
	f.addSeed("shop", 1)
	_, err := createSeed(context.Background(), f, SeedCreateOptions{})
	wantKind(t, err, KindConflict)
	for _, c := range f.calls {
		if strings.HasPrefix(c, "container") {
			t.Errorf("it did %q", c)
		}
	}
}

func TestCheckRate(t *testing.T) {
	for rate, ok := range map[int64]bool{0: true, 32 << 10: true, 1 << 30: true, 1: false, 32<<10 - 1: false, 1<<30 + 1: false, -1: false} {
		if err := checkRate(rate); (err == nil) != ok {
			t.Errorf("%d: %v", rate, err)
		} else if err != nil && KindOf(err) != KindInvalid {
			t.Errorf("%d: %v is no KindInvalid", rate, err)
		}
	}
}
