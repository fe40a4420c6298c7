package engine

import (
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
)

func TestNoteOfABranchInTheWrongPlace(t *testing.T) {
	for _, tc := range []struct {
		target, pgdata string
		noted          bool
	}{
		{"/var/lib/postgresql/data", "/var/lib/postgresql/data/", false},
		{"/srv/pg", "/srv/pg", false},
		{"/backup", "", false},
		{"/var/lib/postgresql", "/var/lib/postgresql/data", true},
		{"/var/lib/postgresql/data", "/var/lib/postgresql/data/pgdata", true},
	} {
		b := Branch{Branch: "bx", Container: "c", Manifest: testManifest()}
		c := container.InspectResponse{ContainerJSONBase: &container.ContainerJSONBase{}, Config: &container.Config{},
			Mounts: []container.MountPoint{{Name: "bx", Destination: tc.target}}}
		if tc.pgdata != "" {
			c.Config.Env = []string{"PGDATA=" + tc.pgdata}
		}
		b.notePlace(c)
		if noted := len(b.Notes) > 0; noted != tc.noted || noted && !strings.Contains(b.Notes[0].Fix, "-v bx:/var/lib/postgresql/data") {
			t.Errorf("%+v: notes are %q", tc, b.Notes)
		}
	}
}

func TestNoteOfOptionsThatDockerMadeUp(t *testing.T) {
	for asked, noted := range map[string]bool{"shop": false, "shop@2": false, "": false, "shop@1": true, "crm": true} {
		b := Branch{Branch: "bx", Seed: "shop", Generation: 2}
		b.noteOptions(map[string]string{"seed": asked})
		if len(b.Notes) > 0 != noted {
			t.Errorf("seed=%s: notes are %q", asked, b.Notes)
		}
	}
}

func TestComposeOrigin(t *testing.T) {
	volume := map[string]string{labelComposeProject: "p", labelComposeVolume: "data"}
	o := composeOrigin(volume, map[string]string{labelComposeProject: "p", labelComposeFiles: "/a/compose.yaml,/a/b.yaml", labelComposeDir: "/a"})
	if o.Volume != "data" || len(o.Files) != 2 || o.WorkingDir != "/a" || o.EnvFiles != nil && len(o.EnvFiles) > 0 {
		t.Errorf("origin is %+v", o)
	}
	if o := composeOrigin(volume, map[string]string{labelComposeProject: "other", labelComposeFiles: "/x"}); len(o.Files) > 0 {
		t.Error("the files of another project's container were taken")
	}
	if composeOrigin(nil, nil) != nil {
		t.Error("a volume that Compose did not make has an origin")
	}
}
