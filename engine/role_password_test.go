package engine

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestScramSecretIsOfOnePassword(t *testing.T) {
	secret, err := scramSecret("sesame", "a salt", 4096)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(secret, "SCRAM-SHA-256$4096:YSBzYWx0$") || strings.Contains(secret, "sesame") {
		t.Errorf("secret is %q", secret)
	}
	if !scramMatches(secret, "sesame") || scramMatches(secret, "sesamE") || scramMatches(secret, "") {
		t.Error("the secret does not tell its password from another")
	}
	for _, other := range []string{"", "md5" + strings.Repeat("0", 32), "SCRAM-SHA-256$x", "SCRAM-SHA-256$4096:!$a:b", "SCRAM-SHA-256$999999999:YQ==$a:b"} {
		if scramMatches(other, "sesame") {
			t.Errorf("%q matches", other)
		}
	}
}

func TestBranchPasswordIsTheBranchsOwn(t *testing.T) {
	f := newFake()
	password := func(name string, at time.Time) string {
		p, err := newEngine(f).branchPassword(context.Background(), Branch{Branch: name, CreatedAt: at})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	at := time.Unix(1, 0)
	p := password("bx", at)
	if p != password("bx", at) || len(p) < 20 {
		t.Errorf("password %q is not stable, or short", p)
	}
	if p == password("by", at) || p == password("bx", at.Add(time.Second)) {
		t.Error("two branches have one password")
	}
	f.plugin.Settings.Env = nil
	_, err := newEngine(f).branchPassword(context.Background(), Branch{Branch: "bx", CreatedAt: at})
	wantKind(t, err, KindSetup)
}
