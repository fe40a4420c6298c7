package engine

import (
	"errors"
	"strings"
	"testing"
)

// Who names files or a container hears why they are not taken, and what to do.
func TestASourceThatIsNoServer(t *testing.T) {
	for from, want := range map[string][]string{
		"/var/lib/postgresql/data": {"is a path", "-v /var/lib/postgresql/data:/var/lib"},
		"./pgdata":                 {"is a path", "-v ./pgdata:"},
		"../pgdata":                {"is a path", "-v ../pgdata:"},
		"~/pgdata":                 {"is a path", "-v ~/pgdata:"},
		".":                        {"is a path"},
		"file:///srv/pgdata":       {"names files", "-v /srv/pgdata:"},
		"volume:shop_pgdata":       {"names files", "-v shop_pgdata:"},
		"volume://shop_pgdata":     {"names files", "-v shop_pgdata:"},
		"container:shop-db-1":      {"names a container", "postgres://USER@shop-db-1/DATABASE"},
		"container://shop-db-1":    {"names a container", "postgres://USER@shop-db-1/DATABASE"},
	} {
		_, err := ParseSource(from, "s3cret")
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Kind != KindInvalid || !strings.Contains(refusal.Cause, "a server that runs") {
			t.Errorf("%q: %v", from, err)
			continue
		}
		for _, w := range append(want, "--from postgres://", "--network") {
			if !strings.Contains(refusal.Cause+"\n"+refusal.Hint, w) {
				t.Errorf("%q: %q, %q do not say %q", from, refusal.Cause, refusal.Hint, w)
			}
		}
	}
	for _, from := range []string{"postgres://app@db/shop", "postgresql://volume:x@file/container"} {
		if _, err := ParseSource(from, ""); err != nil {
			t.Errorf("%q: %v", from, err)
		}
	}
}
