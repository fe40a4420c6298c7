package engine

import (
	"strings"
	"testing"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func TestGitNames(t *testing.T) {
	for git, want := range map[string]string{
		"main":             "main",
		"feature/foo":      "feature_-foo",
		"feature-foo":      "feature-foo",
		"feature_foo":      "feature__foo",
		"Feature/Foo":      "Feature_-Foo",
		"fix/a_b/c":        "fix_-a__b_-c",
		"fix-#12":          "fix-_2312",
		"dependabot/go@1":  "dependabot_-go_401",
		"_x":               "0_.__x",
		"x":                "0_.x",
		"äh":               "0_._c3_a4h",
		"0":                "0_.0",
		"a/-rf":            "a_--rf",
		"emoji-\U0001F600": "emoji-_f0_9f_98_80",
	} {
		if got := GitName(git); got != want || !contract.ValidName(got) {
			t.Errorf("%q gives %q, want %q", git, got, want)
		}
		if back, ok := GitBranch(want); !ok || back != git {
			t.Errorf("%q gives back %q, %v; want %q", want, back, ok, git)
		}
	}
	for _, name := range []string{"a_", "a_z1", "a_2", "0_.main", "a_._b", "main_.0123456789ab"} {
		if back, ok := GitBranch(name); ok {
			t.Errorf("%q is no name of ours and gives %q", name, back)
		}
	}
}

func TestLongGitNamesAreCutAndStillTellApart(t *testing.T) {
	seen := map[string]string{}
	for _, lead := range []string{"", "_"} {
		for n := 100; n < 300; n++ {
			for _, c := range []string{"a", "/b", "#"} {
				git := lead + strings.Repeat(c, n)
				name := GitName(git)
				if !contract.ValidName(name) {
					t.Fatalf("%d of %q give %q", n, c, name)
				}
				if other, taken := seen[name]; taken {
					t.Fatalf("%q and %q both give %q", git, other, name)
				}
				seen[name] = git
				if back, ok := GitBranch(name); ok && back != git {
					t.Fatalf("%q gives back %q", name, back)
				}
			}
		}
	}
}

// No two git branches share a name.
func FuzzGitName(f *testing.F) {
	f.Add("feature/x", "feature_-x")
	f.Add("0_.x", "x")
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == "" || b == "" {
			return
		}
		name := GitName(a)
		if !contract.ValidName(name) {
			t.Fatalf("%q gives %q", a, name)
		}
		if a != b && name == GitName(b) {
			t.Fatalf("%q and %q both give %q", a, b, name)
		}
	})
}
