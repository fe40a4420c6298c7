//go:build e2e

package e2e

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// logIn opens a session as the source's user over a branch's published port and gives
// the error.
func logIn(branchURL, password string) error {
	u, err := url.Parse(branchURL)
	if err != nil {
		return err
	}
	if password != "" {
		u.User = url.UserPassword(u.User.Username(), password)
	}
	conn, err := pgx.Connect(context.Background(), u.String())
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	var one int
	return conn.QueryRow(context.Background(), "SELECT count(*) FROM item").Scan(&one)
}

// The source's own password works in a branch whatever the source's pg_hba.conf said,
// over the published port and the network, and from nowhere else.
func TestLoginOfTheSource(t *testing.T) {
	seed := oddSeed(t)
	name := prefix + "login"
	network := prefix + "loginnet"
	docker(t, "network", "create", network)
	t.Cleanup(func() { command("", "docker", "network", "rm", network) })
	r := try("create", name, "--from", seed, "--network", network)
	t.Cleanup(func() { try("rm", "-f", name) })
	if r.code != 0 || !strings.Contains(r.stderr, "as app with its password in the source") {
		t.Fatalf("exit %d, and who can log in is not said: %s", r.code, r.stderr)
	}
	at := pgbranch(t, "url", name)
	if err := logIn(at, oddPassword); err != nil {
		t.Errorf("the source's password over %s: %v", at, err)
	}
	for _, wrong := range []string{"wrong", ""} {
		if err := logIn(at, wrong); err == nil || !strings.Contains(err.Error(), "28P01") && !strings.Contains(err.Error(), "password") {
			t.Errorf("the password %q: %v", wrong, err)
		}
	}
	other := command(oddPassword, "docker", "run", "-i", "--rm", "--name", prefix+"neighbour", "--network", network, "--entrypoint", "sh", "postgres:17", "-c",
		`PGPASSWORD=$(cat) psql -qAtX -h `+name+` -U app shop -c 'SELECT 1' && ! psql -wqAtX -h `+name+` -U app shop -c 'SELECT 1'`)
	if other.code != 0 || other.stdout != "1" {
		t.Errorf("from a neighbour on its network: exit %d %s %s", other.code, other.stdout, other.stderr)
	}
	_, port, err := net.SplitHostPort(strings.TrimSuffix(strings.SplitN(at, "@", 2)[1], "/shop"))
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for _, a := range addresses {
		ip := a.(*net.IPNet).IP
		if ip.IsLoopback() || ip.To4() == nil {
			continue
		}
		looked++
		if conn, err := net.DialTimeout("tcp", net.JoinHostPort(ip.String(), port), time.Second); err == nil {
			conn.Close()
			t.Errorf("the branch is reached at %s", ip)
		}
	}
	if looked == 0 {
		t.Error("this machine has no other address: nothing was shown")
	}
}

// A branch's own password is in its volume and in what `url` prints, and nowhere else;
// the source's is of no use then. It stays over restarts and a reset.
func TestLoginOfABranch(t *testing.T) {
	seed := oddSeed(t)
	name := prefix + "rotated"
	r := try("create", name, "--from", seed, "--rotate-password", "-c", "log_statement=all", "-c", "log_min_duration_statement=0")
	t.Cleanup(func() { try("rm", "-f", name) })
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	at := pgbranch(t, "url", name)
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := u.User.Password()
	if len(own) < 20 || !strings.Contains(r.stderr, own) || strings.Contains(r.stdout, own) {
		t.Fatalf("create says %q and %q, url %q", r.stdout, r.stderr, at)
	}
	check := func(when string) {
		t.Helper()
		if now := pgbranch(t, "url", name); now != at {
			t.Errorf("%s: the URL is another", when)
		}
		if err := logIn(at, ""); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if err := logIn(at, oddPassword); err == nil {
			t.Errorf("%s: the source's password is taken", when)
		}
	}
	check("at first")
	pgbranch(t, "stop", name)
	if r := try("url", name); r.code != 4 || strings.Contains(r.stdout+r.stderr, own) {
		t.Errorf("url of a stopped branch: exit %d %s", r.code, r.stderr)
	}
	pgbranch(t, "start", name)
	check("after a restart")
	pgbranch(t, "reset", "-f", name)
	check("after a reset")

	for what, text := range map[string]string{
		"docker inspect":        docker(t, "inspect", "pgbranch-"+name),
		"docker volume inspect": docker(t, "volume", "inspect", name),
		"docker logs":           docker(t, "logs", "pgbranch-"+name) + command("", "docker", "logs", "pgbranch-"+name).stderr,
		"pgbranch inspect":      pgbranch(t, "inspect", name),
		"pgbranch ls":           pgbranch(t, "ls", "--format", "json"),
	} {
		if strings.Contains(text, own) {
			t.Errorf("the password is in %s", what)
		}
		if what == "docker logs" && !strings.Contains(text, "SELECT count(*) FROM item") {
			t.Error("statements are not logged: nothing was shown")
		}
	}
	var holds []string
	root := upper(t, name)
	walk(t, root, func(path string, info os.FileInfo) {
		if !info.Mode().IsRegular() {
			return
		}
		if body, err := os.ReadFile(filepath.Join(root, path)); err == nil && strings.Contains(string(body), own) {
			holds = append(holds, path+" "+info.Mode().String())
		}
	})
	if len(holds) != 1 || holds[0] != "pgoverlay.password -rw-------" {
		t.Errorf("the password is in %q", holds)
	}
}
