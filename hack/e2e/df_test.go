//go:build e2e

package e2e

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
)

type owner struct {
	Name, Kind, Table, Database, Path string
	OwnedBytes                        int64
}

// df gives what owns a branch's bytes.
func df(t *testing.T, name string) (list []owner, stderr string) {
	t.Helper()
	r := try("df", "--format", "json", name)
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	for line := range strings.Lines(r.stdout) {
		var o owner
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		list = append(list, o)
	}
	return list, r.stderr
}

func TestDfNamesWhatOwnsTheBytes(t *testing.T) {
	name := prefix + "df"
	branch(t, name, mainSeed(t))
	sql(t, name, "shop", "UPDATE small SET name = 'changed' WHERE id = 7",
		"CREATE TABLE mine (id int PRIMARY KEY, doc text)", "ALTER TABLE mine ALTER doc SET STORAGE EXTERNAL",
		"INSERT INTO mine SELECT g, repeat('x', 9000) FROM generate_series(1, 1000) g", "CHECKPOINT")
	sql(t, name, "crm", "DELETE FROM contact WHERE id = 1", "CHECKPOINT")
	running, note := df(t, name)
	t.Logf("\n%s", pgbranch(t, "df", name))
	if note != "" {
		t.Errorf("said %q", note)
	}
	found := map[string]owner{}
	var sum int64
	for i, o := range running {
		found[o.Kind+" "+o.Database+" "+o.Name] = o
		sum += o.OwnedBytes
		if i > 0 && o.OwnedBytes > running[i-1].OwnedBytes {
			t.Errorf("%s comes after what owns less", o.Name)
		}
		if o.Kind == "relation" {
			t.Errorf("%s has no name", o.Path)
		}
	}
	for _, want := range []string{"table shop public.small", "index shop public.mine_pkey", "table crm public.contact", "wal  WAL"} {
		if found[want].OwnedBytes == 0 {
			t.Errorf("%q is not in %v", want, found)
		}
	}
	if found["index shop public.mine_pkey"].Table != "public.mine" {
		t.Errorf("the index is of %q", found["index shop public.mine_pkey"].Table)
	}
	// 1000 rows of 9000 bytes, 4 chunks of 1996 and one more each, in TOAST.
	toast := running[0]
	if toast.Kind != "toast" || toast.Table != "public.mine" || toast.OwnedBytes < 9<<20 || toast.OwnedBytes > 20<<20 {
		t.Errorf("the largest is %+v", toast)
	}
	if pgbranch(t, "psql", name, "--", "-d", "shop", "-qAtXc", "SELECT 1"); sum == 0 {
		t.Error("nothing is owned")
	}
	pgbranch(t, "stop", name)
	stopped, note := df(t, name)
	if !strings.Contains(note, "does not run") {
		t.Errorf("a stopped branch: said %q", note)
	}
	byPath := map[string]bool{}
	sum = 0
	for _, o := range stopped {
		byPath[o.Path] = true
		sum += o.OwnedBytes
	}
	if !byPath[toast.Path] {
		t.Errorf("stopped, %s is not in %v", toast.Path, stopped)
	}
	if owned := pgbranch(t, "inspect", "-f", "{{.ownedBytes}}", name); owned != strconv.FormatInt(sum, 10) {
		t.Errorf("df sums up to %d, inspect says %s", sum, owned)
	}
	if all := pgbranch(t, "df", "--format", "{{.Kind}} {{.Name}} {{.State}}"); !strings.Contains(all, "branch "+name+" stopped") || !strings.Contains(all, "seed "+prefix+"shop@1") {
		t.Errorf("df says\n%s", all)
	}
	if r := try("df", prefix+"nobody"); r.code != 3 {
		t.Errorf("df of nothing: exit %d, %s", r.code, r.stderr)
	}
}
