//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The contract of the stock image that the product and its users rely on. These
// tests say whether the images that hack/images.sh provides, stand-ins or not,
// keep it.

var majors = []int{15, 17, 18}

const imagePassword = "s3cret image"

// eachMajor runs a test for every major as a subtest.
func eachMajor(t *testing.T, test func(t *testing.T, major int)) {
	for _, major := range majors {
		t.Run(strconv.Itoa(major), func(t *testing.T) { test(t, major) })
	}
}

func imageOf(major int) string { return "postgres:" + strconv.Itoa(major) }

// pgdata is where the image of a major keeps the cluster.
func pgdata(major int) string {
	if major < 18 {
		return "/var/lib/postgresql/data"
	}
	return "/var/lib/postgresql/" + strconv.Itoa(major) + "/docker"
}

// volumeTarget is where the image of a major has its volume.
func volumeTarget(major int) string {
	if major < 18 {
		return "/var/lib/postgresql/data"
	}
	return "/var/lib/postgresql"
}

// inImage runs a command in a fresh container, instead of the entrypoint.
func inImage(t *testing.T, major int, script string) string {
	t.Helper()
	return docker(t, "run", "--rm", "--network", "none", "--entrypoint", "bash", imageOf(major), "-ec", script)
}

// imageVolume makes a volume that is removed at the test's end. Containers that
// use it are to be made later, so that they are removed before it.
func imageVolume(t *testing.T, major int) string {
	t.Helper()
	name := prefix + "image-" + strconv.Itoa(major) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	docker(t, "volume", "create", name)
	t.Cleanup(func() { command("", "docker", "volume", "rm", "-f", name) })
	return name
}

// createServer makes a container of the image; flags go before the image, args
// after it. It is removed at the test's end.
func createServer(t *testing.T, major int, flags []string, args ...string) string {
	t.Helper()
	name := prefix + "image-" + strconv.Itoa(major) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	t.Cleanup(func() { command("", "docker", "rm", "-f", "-v", name) })
	docker(t, slices.Concat([]string{"create", "--name", name}, flags, []string{imageOf(major)}, args)...)
	return name
}

// startServer starts a container and waits until its server takes connections
// over TCP, which the temporary server of the initialization does not.
func startServer(t *testing.T, container string) {
	t.Helper()
	docker(t, "start", container)
	waitForServer(t, container)
}

func waitForServer(t *testing.T, container string) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if command("", "docker", "exec", container, "pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres").code == 0 {
			return
		}
		running := command("", "docker", "inspect", "-f", "{{.State.Running}}", container).stdout
		if running != "true" || time.Now().After(end) {
			r := command("", "docker", "logs", container)
			t.Fatalf("the server is not up (container running: %s)\n%s\n%s", running, r.stdout, r.stderr)
		}
	}
}

// query runs SQL in the container over the unix socket.
func query(t *testing.T, container, user, database, statement string) string {
	t.Helper()
	return docker(t, "exec", container, "psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-U", user, "-d", database, "-c", statement)
}

// stopServer stops a container as `docker stop` does, and gives its exit status.
func stopServer(t *testing.T, container string) string {
	t.Helper()
	docker(t, "stop", "--time", "60", container)
	return docker(t, "inspect", "-f", "{{.State.ExitCode}}", container)
}

// refused runs the image to its end, which must be a failure before a server
// starts, and gives what it said.
func refused(t *testing.T, major int, flags []string) string {
	t.Helper()
	container := createServer(t, major, flags)
	r := command("", "timeout", "60", "docker", "start", "-a", container)
	if code := docker(t, "inspect", "-f", "{{.State.ExitCode}}", container); code != "1" {
		t.Fatalf("exit %s, want 1\n%s\n%s", code, r.stdout, r.stderr)
	}
	return r.stderr
}

func TestImageConfig(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		var config struct {
			User, StopSignal      string
			Env, Entrypoint, Cmd  []string
			ExposedPorts, Volumes map[string]struct{}
		}
		raw := docker(t, "image", "inspect", "-f", "{{json .Config}}", imageOf(major))
		if err := json.Unmarshal([]byte(raw), &config); err != nil {
			t.Fatal(err)
		}
		equal := func(what string, got, want any) {
			t.Helper()
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		equal("Entrypoint", config.Entrypoint, []string{"docker-entrypoint.sh"})
		equal("Cmd", config.Cmd, []string{"postgres"})
		equal("StopSignal", config.StopSignal, "SIGINT")
		equal("User", config.User, "")
		equal("ExposedPorts", config.ExposedPorts, map[string]struct{}{"5432/tcp": {}})
		equal("Volumes", config.Volumes, map[string]struct{}{volumeTarget(major): {}})

		env := map[string]string{}
		for _, pair := range config.Env {
			name, value, _ := strings.Cut(pair, "=")
			env[name] = value
		}
		equal("PGDATA", env["PGDATA"], pgdata(major))
		equal("PG_MAJOR", env["PG_MAJOR"], strconv.Itoa(major))
		equal("LANG", env["LANG"], "en_US.utf8")
		if bin := "/usr/lib/postgresql/" + strconv.Itoa(major) + "/bin"; !slices.Contains(strings.Split(env["PATH"], ":"), bin) {
			t.Errorf("PATH %s lacks %s", env["PATH"], bin)
		}
	})
}

func TestImageContents(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		m := strconv.Itoa(major)
		checks := []struct{ what, script, want string }{
			{"user", "getent passwd postgres | cut -d: -f3,4,6", "999:999:/var/lib/postgresql"},
			{"socket directory", "stat -c '%a %U %G' /var/run/postgresql/.", "3777 postgres postgres"},
			{"home", "stat -c '%a %U' /var/lib/postgresql", "1777 postgres"},
			{"volume", "stat -c '%a %U' " + volumeTarget(major), "1777 postgres"},
			{"no cluster of the package's making", "find /var/lib/postgresql /etc/postgresql -type f 2>/dev/null || true", ""},
			{"init directory", "ls -d /docker-entrypoint-initdb.d", "/docker-entrypoint-initdb.d"},
			{"listen_addresses", "grep ^listen_addresses /usr/share/postgresql/" + m + "/postgresql.conf.sample | cut -d\"'\" -f2", "*"},
			{"locale", "locale -a | grep -x en_US.utf8", "en_US.utf8"},
			{"time zones", "ls /usr/share/zoneinfo/Europe/Berlin", "/usr/share/zoneinfo/Europe/Berlin"},
			{"version", "postgres --version | grep -o 'PostgreSQL) [0-9]*'", "PostgreSQL) " + m},
			{"programs", "for p in initdb pg_ctl pg_controldata pg_resetwal psql pg_dump pg_restore pg_basebackup pg_amcheck pgbench gzip xz zstd; do command -v $p >/dev/null || echo $p; done", ""},
			{"contrib", "cd /usr/share/postgresql/" + m + "/extension; ls amcheck.control pg_stat_statements.control postgres_fdw.control | wc -l", "3"},
		}
		// One container for all: each answer ends with a line of its own.
		var script strings.Builder
		for _, c := range checks {
			fmt.Fprintf(&script, "(%s)\necho ----\n", c.script)
		}
		answers := strings.Split(inImage(t, major, script.String()), "----")
		for i, c := range checks {
			if got := strings.Trim(answers[i], "\n"); got != c.want {
				t.Errorf("%s: %q, want %q", c.what, got, c.want)
			}
		}
	})
}

// A stand-in goes to no mirror: the builder's may not be the user's.
func TestStandInHasNoMirror(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		label := docker(t, "image", "inspect", "-f", `{{index .Config.Labels "io.github.pgbranch.stand-in"}}`, imageOf(major))
		if label != "true" {
			t.Logf("%s is not a stand-in", imageOf(major))
			return
		}
		if got := inImage(t, major, "find /etc/apt/sources.list* /var/lib/apt/lists -type f -size +0 2>/dev/null || true; cat /etc/apt/apt.conf.d/* | grep -i proxy || true"); got != "" {
			t.Errorf("left in the image: %s", got)
		}
	})
}

func TestImageDemandsPassword(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		if said := refused(t, major, nil); !strings.Contains(said, "POSTGRES_PASSWORD") {
			t.Errorf("it does not say what is missing: %s", said)
		}
		if said := refused(t, major, []string{"-e", "POSTGRES_PASSWORD="}); !strings.Contains(said, "POSTGRES_PASSWORD") {
			t.Errorf("it does not say what is missing: %s", said)
		}
	})
}

// initFiles fills a folder with one file of each kind that the image runs.
func initFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, mode os.FileMode, content []byte) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // whatever the umask is
			t.Fatal(err)
		}
	}
	decode := func(s string) []byte {
		t.Helper()
		raw, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := io.WriteString(z, "INSERT INTO ran VALUES ('c.sql.gz');"); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	// What initialization looks like from inside: who runs it, and what listens.
	write("a-executed.sh", 0o755, []byte(`#!/bin/bash
set -e
psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" <<-END
	CREATE TABLE ran (what text);
	CREATE TABLE seen AS SELECT '$(id -u)' AS uid, current_setting('listen_addresses') AS listening;
	INSERT INTO ran VALUES ('a-executed.sh');
END
`))
	write("b-sourced.sh", 0o644, []byte(`docker_process_sql -c "INSERT INTO ran VALUES ('b-sourced.sh')"`+"\n"))
	write("b.sql", 0o644, []byte("INSERT INTO ran VALUES ('b.sql');\n"))
	write("c.sql.gz", 0o644, zipped.Bytes())
	// xz and zstd of: INSERT INTO ran VALUES ('d.sql.xz'); and ('e.sql.zst');
	write("d.sql.xz", 0o644, decode("/Td6WFoAAAFpIt42AgAhARwAAAAQz1jMAQAkSU5TRVJUIElOVE8gcmFuIFZBTFVFUyAoJ2Quc3FsLnh6Jyk7CgAAAAAGs8aRAAE5JdbsBmWQQpkNAQAAAAABWVo="))
	write("e.sql.zst", 0o644, decode("KLUv/QRoMQEASU5TRVJUIElOVE8gcmFuIFZBTFVFUyAoJ2Uuc3FsLnpzdCcpOwr8JEdx"))
	write("f.txt", 0o644, []byte("not SQL"))
	return dir
}

// The main course: initialization with every setting, a clean stop, and a second
// container on the same volume that finds all in place.
func TestImageInitializesOnce(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		volume := imageVolume(t, major)
		secrets := t.TempDir()
		if err := os.WriteFile(filepath.Join(secrets, "password"), []byte(imagePassword+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		flags := []string{"-v", volume + ":" + volumeTarget(major), "-p", "127.0.0.1::5432",
			"-e", "POSTGRES_USER=app owner", "-e", `POSTGRES_DB=sh'o"p`, "-e", "POSTGRES_PASSWORD_FILE=/secrets/password",
			"-e", `POSTGRES_INITDB_ARGS=--data-checksums --lc-messages='C'`}

		first := createServer(t, major, flags, "-c", "max_connections=42")
		docker(t, "cp", secrets+"/.", first+":/secrets")
		docker(t, "cp", initFiles(t)+"/.", first+":/docker-entrypoint-initdb.d")
		startServer(t, first)
		q := func(container, statement string) string {
			t.Helper()
			return query(t, container, "app owner", `sh'o"p`, statement)
		}
		ran := strings.Join([]string{"a-executed.sh", "b-sourced.sh", "b.sql", "c.sql.gz", "d.sql.xz", "e.sql.zst"}, "\n")
		check := func(container string) {
			t.Helper()
			for statement, want := range map[string]string{
				"SELECT what FROM ran":            ran,
				"SELECT uid, listening FROM seen": "999|",
				"SHOW listen_addresses":           "*",
				"SHOW data_checksums":             "on",
				"SHOW max_connections":            "42",
				"SHOW server_encoding":            "UTF8",
				"SELECT datcollate FROM pg_database WHERE datname=current_database()": "en_US.utf8",
			} {
				if got := q(container, statement); got != want {
					t.Errorf("%s: %q, want %q", statement, got, want)
				}
			}
		}
		check(first)
		checkProcess(t, first)
		checkAuthentication(t, first)
		checkPublishedPort(t, first)

		q(first, "CREATE TABLE kept AS SELECT 'yes' AS answer")
		if code := stopServer(t, first); code != "0" {
			t.Errorf("stopped with exit %s, want 0", code)
		}
		// A file of another owner, as a restored backup has.
		foreign := pgdata(major) + "/base/foreign"
		docker(t, "run", "--rm", "--network", "none", "-v", volume+":"+volumeTarget(major), "--entrypoint", "bash", imageOf(major), "-ec",
			"pg_controldata | grep -q 'cluster state: *shut down$'; touch "+foreign+"; chown 1234:1234 "+foreign)

		// No password: an initialized volume demands none.
		second := createServer(t, major, []string{"-v", volume + ":" + volumeTarget(major)}, "postgres", "-c", "max_connections=42")
		docker(t, "cp", initFiles(t)+"/.", second+":/docker-entrypoint-initdb.d")
		startServer(t, second)
		check(second)
		if got := q(second, "SELECT answer FROM kept"); got != "yes" {
			t.Errorf("kept: %q", got)
		}
		if got := docker(t, "exec", second, "stat", "-c", "%U", foreign); got != "postgres" {
			t.Errorf("owner of a foreign file after the start: %s", got)
		}
		if got := docker(t, "exec", second, "stat", "-c", "%a %U", pgdata(major)); got != "700 postgres" {
			t.Errorf("PGDATA: %s", got)
		}
		if code := stopServer(t, second); code != "0" {
			t.Errorf("stopped with exit %s, want 0", code)
		}
	})
}

// checkProcess: the server itself is PID 1, and nothing of it is root's.
func checkProcess(t *testing.T, container string) {
	t.Helper()
	// As postgres: root in the container has no CAP_SYS_PTRACE to read the link.
	got := docker(t, "exec", "-u", "postgres", container, "bash", "-c",
		`basename "$(readlink /proc/1/exe)"; awk '/^Uid|^Gid/ { print $2, $3 } /^CapEff/ { print $2 }' /proc/1/status`)
	if want := "postgres\n999 999\n999 999\n0000000000000000"; got != want {
		t.Errorf("PID 1: %q, want %q", got, want)
	}
}

func checkAuthentication(t *testing.T, container string) {
	t.Helper()
	if r := overTCP(t, container, "app owner", imagePassword); r.stdout != "1" {
		t.Errorf("with the right password: %s", r.stderr)
	}
	if r := overTCP(t, container, "app owner", "wrong"); !strings.Contains(r.stderr, "password authentication failed") {
		t.Errorf("with a wrong password: %q %q", r.stdout, r.stderr)
	}
	last := docker(t, "exec", container, "bash", "-c", `tail -n 1 "$PGDATA/pg_hba.conf"`)
	if got := strings.Join(strings.Fields(last), " "); got != "host all all all scram-sha-256" {
		t.Errorf("last rule of pg_hba.conf: %q", got)
	}
}

// overTCP selects 1 over the container's own network address, which initdb's
// rules for this machine do not cover.
func overTCP(t *testing.T, container, user, password string) result {
	t.Helper()
	return command("", "docker", "exec", "-e", "PGPASSWORD="+password, container, "bash", "-c",
		`exec psql -qAtX -w -h "$(hostname -i)" -U "$1" -d postgres -c "SELECT 1"`, "-", user)
}

// checkPublishedPort asks the server on its published port whether it speaks
// TLS: the shortest exchange that only a Postgres server completes.
func checkPublishedPort(t *testing.T, container string) {
	t.Helper()
	address := docker(t, "port", container, "5432/tcp")
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// SSLRequest: length 8, code 1234.5679 (pqcomm.h, NEGOTIATE_SSL_CODE).
	request := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 8), 1234<<16|5679)
	answer := make([]byte, 1)
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, answer); err != nil || answer[0] != 'N' {
		t.Errorf("published port %s answers %q, %v", address, answer, err)
	}
}

// 999 is the image's own postgres; 54321 has no name. The second one also shows
// that "trust" needs no password.
func TestImageRunsAsAnyUser(t *testing.T) {
	auth := map[string]string{"999": "POSTGRES_PASSWORD=" + imagePassword, "54321": "POSTGRES_HOST_AUTH_METHOD=trust"}
	eachMajor(t, func(t *testing.T, major int) {
		for uid, setting := range auth {
			server := createServer(t, major, []string{"--user", uid + ":" + uid, "-e", setting,
				"--tmpfs", volumeTarget(major) + ":uid=" + uid + ",gid=" + uid + ",mode=0700"})
			startServer(t, server)
			if got := docker(t, "exec", server, "stat", "-c", "%u", pgdata(major)+"/PG_VERSION"); got != uid {
				t.Errorf("PG_VERSION belongs to %s, want %s", got, uid)
			}
			if r := overTCP(t, server, "postgres", ""); (r.stdout == "1") != (uid == "54321") {
				t.Errorf("%s, without a password: %q %q", setting, r.stdout, r.stderr)
			}
			if code := stopServer(t, server); code != "0" {
				t.Errorf("uid %s: stopped with exit %s, want 0", uid, code)
			}
		}
	})
}

func TestImagePrintsWithoutData(t *testing.T) {
	eachMajor(t, func(t *testing.T, major int) {
		got := docker(t, "run", "--rm", "--network", "none", imageOf(major), "--version")
		if !strings.HasPrefix(got, "postgres (PostgreSQL) "+strconv.Itoa(major)) {
			t.Errorf("--version: %s", got)
		}
	})
}

// From 18 on the volume is one directory higher. A mount where it was, or a
// cluster that lies there, would be passed over by initdb.
func TestImage18RefusesOldLayout(t *testing.T) {
	t.Run("mount", func(t *testing.T) {
		volume := imageVolume(t, 18)
		said := refused(t, 18, []string{"-e", "POSTGRES_PASSWORD=x", "-v", volume + ":/var/lib/postgresql/data"})
		if !strings.Contains(said, "/var/lib/postgresql/data") {
			t.Errorf("it does not say which mount: %s", said)
		}
	})
	t.Run("cluster of 17", func(t *testing.T) {
		volume := imageVolume(t, 18)
		docker(t, "run", "--rm", "--network", "none", "-v", volume+":/v", "--entrypoint", "bash", imageOf(18), "-ec", "echo 17 >/v/PG_VERSION")
		said := refused(t, 18, []string{"-e", "POSTGRES_PASSWORD=x", "-v", volume + ":/var/lib/postgresql"})
		if !strings.Contains(said, "/var/lib/postgresql") {
			t.Errorf("it does not say which cluster: %s", said)
		}
	})
}
