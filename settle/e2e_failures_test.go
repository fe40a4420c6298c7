//go:build e2e

package settle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// roles are what the failures need of a source.
const roles = `
CREATE ROLE app LOGIN REPLICATION PASSWORD 'p:w\d "é''xK7zQneedle';
CREATE ROLE weak LOGIN PASSWORD 'p:w\d "é''xK7zQneedle';
CREATE ROLE barred LOGIN REPLICATION PASSWORD 'p:w\d "é''xK7zQneedle';
CREATE ROLE locked NOLOGIN PASSWORD 'p:w\d "é''xK7zQneedle';
CREATE DATABASE shop OWNER app;
\c shop
CREATE TABLE big AS SELECT i, repeat('x', 900) AS x FROM generate_series(1, 60000) i;
CREATE INDEX sorted ON big (i);
`

// gateway is the host's address in the tests' network: servers of the test process
// listen there.
func gateway(t *testing.T) string {
	t.Helper()
	name, err := network()
	assert.NilError(t, err)
	return docker(t, "network", "inspect", "-f", "{{(index .IPAM.Config 0).Gateway}}", name)
}

func (s *sourceServer) ip(t *testing.T) string {
	t.Helper()
	return docker(t, "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", s.name)
}

// proxy passes connections on to a server, at most rate bytes a second where that
// is not 0. It answers a startup packet that holds refuse as PgBouncer would, and
// drops that parameter where swallow is set.
type proxy struct {
	to              string
	rate            int
	refuse, swallow bool
}

func (p proxy) listen(t *testing.T) (host, port string) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(gateway(t), "0"))
	assert.NilError(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	host, port, err = net.SplitHostPort(listener.Addr().String())
	assert.NilError(t, err)
	return host, port
}

func (p proxy) serve(client net.Conn) {
	defer client.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(client, head); err != nil {
		return
	}
	body := make([]byte, binary.BigEndian.Uint32(head)-4)
	if _, err := io.ReadFull(client, body); err != nil {
		return
	}
	replication := []byte("replication\x00true\x00")
	if p.refuse && bytes.Contains(body, replication) {
		fields := "SFATAL\x00VFATAL\x00C08P01\x00Munsupported startup parameter: replication\x00\x00"
		packet := append([]byte{'E'}, binary.BigEndian.AppendUint32(nil, uint32(len(fields)+4))...)
		_, _ = client.Write(append(packet, fields...))
		return
	}
	if p.swallow {
		body = bytes.Replace(body, replication, nil, 1)
	}
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer server.Close()
	_, _ = server.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...))
	go func() {
		_, _ = io.Copy(server, client)
		server.Close()
	}()
	if p.rate == 0 {
		_, _ = io.Copy(client, server)
		return
	}
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		if _, err := io.CopyN(client, server, int64(p.rate/50)); err != nil {
			return
		}
	}
}

func TestProbeFailures(t *testing.T) {
	src := startSource(t, pg17, "probe", roles)
	docker(t, "exec", src.name, "bash", "-c", `cat >"$PGDATA/pg_hba.conf" <<-END
		local all all trust
		host all all 127.0.0.1/32 trust
		host all barred all reject
		host all app,weak,locked all scram-sha-256
		host replication weak,locked all scram-sha-256
	END`)
	src.sql(t, "postgres", "SELECT pg_reload_conf()")
	host, port := gateway(t), ""
	bouncer, bouncerPort := proxy{to: net.JoinHostPort(src.ip(t), "5432"), refuse: true}.listen(t)
	_, blindPort := proxy{to: net.JoinHostPort(src.ip(t), "5432"), swallow: true}.listen(t)
	web, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	assert.NilError(t, err)
	defer web.Close()
	go func() { _ = http.Serve(web, http.NotFoundHandler()) }()
	_, port, err = net.SplitHostPort(web.Addr().String())
	assert.NilError(t, err)
	greeter, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	assert.NilError(t, err)
	defer greeter.Close()
	go func() {
		for conn, err := greeter.Accept(); err == nil; conn, err = greeter.Accept() {
			fmt.Fprint(conn, "SSH-2.0-OpenSSH\r\n")
		}
	}()

	for _, tc := range []struct {
		name, url, password string
		code, message, hint string
	}{
		{"unknown host", "postgres://app@nowhere.invalid/shop", password, contract.AgentErrUnreachable, `no host "nowhere.invalid"`, "--network"},
		{"refused", "postgres://app@" + src.name + ":5433/shop", password, contract.AgentErrUnreachable, "was refused", "listen_addresses"},
		{"wrong password", src.url("app", "shop"), "wrong", contract.AgentErrPassword, "does not take the password", ""},
		{"no password", src.url("app", "shop"), "", contract.AgentErrPassword, "none was given", "PGPASSWORD"},
		{"unknown role", src.url("nobody", "shop"), password, contract.AgentErrPrivilege, "lets nobody in", "nobody  "},
		{"no login", src.url("locked", "shop"), password, contract.AgentErrPrivilege, "not permitted to log in", ""},
		{"no pg_hba line", src.url("other", "shop"), password, contract.AgentErrPrivilege, "lets nobody in", "host  shop  other  "},
		{"rejected by pg_hba", src.url("barred", "shop"), password, contract.AgentErrPrivilege, "rejects", ""},
		{"no replication line", src.url("app", "shop"), password, contract.AgentErrNoReplication, "replicate", "host  replication  app  "},
		{"no REPLICATION", src.url("weak", "shop"), password, contract.AgentErrNoReplication, "lacks the attribute REPLICATION", `ALTER ROLE "weak" REPLICATION`},
		{"no database", src.url("app", "nosuch"), password, contract.AgentErrPrivilege, `no database "nosuch"`, "postgres"},
		{"no TLS", src.url("app", "shop") + "?sslmode=require", password, contract.AgentErrUnreachable, "does not offer TLS", "sslmode=disable"},
		{"pooler", "postgres://weak@" + net.JoinHostPort(bouncer, bouncerPort) + "/shop?sslmode=disable", password, contract.AgentErrNoReplication, "pooler", "not of a pooler"},
		{"pooler that ignores it", "postgres://weak@" + net.JoinHostPort(bouncer, blindPort) + "/shop?sslmode=disable", password, contract.AgentErrNoReplication, "pooler", "not of a pooler"},
		{"no Postgres", "postgres://app@" + greeter.Addr().String() + "/shop", password, contract.AgentErrUnreachable, "does not answer as a Postgres server", "Postgres server on that port"},
		{"no Postgres and silent", "postgres://app@" + net.JoinHostPort(host, port) + "/shop?sslmode=disable", password, contract.AgentErrUnreachable, "", "Postgres server on that port"},
		{"IPv6 only", "postgres://app@[2001:db8::1]/shop", password, contract.AgentErrUnreachable, "no route", "IPv6"},
		{"no URL", "mysql://x", password, contract.AgentErrUnreachable, "not a Postgres URL", "postgres://USER"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := src.probe(t, contract.Source{URL: tc.url, Password: tc.password}).failed(t)
			assert.Equal(t, e.Code, tc.code, "%+v", e)
			assert.Assert(t, strings.Contains(e.Message, tc.message), "%+v", e)
			assert.Assert(t, strings.Contains(e.Hint, tc.hint), "%+v", e)
		})
	}
	t.Run("the hint's line helps", func(t *testing.T) {
		e := src.probe(t, src.asApp()).failed(t)
		_, line, ok := strings.Cut(e.Hint, "pg_reload_conf(): ")
		assert.Assert(t, ok, e.Hint)
		docker(t, "exec", src.name, "bash", "-c", `echo "$0" >>"$PGDATA/pg_hba.conf"`, line)
		src.sql(t, "postgres", "SELECT pg_reload_conf()")
		// The next container may get another address; the line names this one.
		again := src.probe(t, src.asApp())
		if again.code != 0 {
			assert.Equal(t, again.last.Error.Code, contract.AgentErrNoReplication, again.raw)
		}
	})
	t.Run("silent", func(t *testing.T) {
		docker(t, "pause", src.name)
		defer docker(t, "unpause", src.name)
		o := src.probe(t, src.asApp())
		e := o.failed(t)
		assert.Equal(t, e.Code, contract.AgentErrUnreachable)
		assert.Assert(t, strings.Contains(e.Message, "does not answer within"), e.Message)
		assert.Assert(t, o.took < 30*time.Second, "%s", o.took)
	})
}

func TestProbeWithoutWALSenders(t *testing.T) {
	src := startSource(t, pg17, "senders", roles, "-c", "max_wal_senders=1")
	e := src.probe(t, src.asApp()).failed(t)
	assert.Equal(t, e.Code, contract.AgentErrNoReplication)
	assert.Assert(t, strings.Contains(e.Message, "in use") && strings.Contains(e.Hint, "needs two"), "%+v", e)

	src.sql(t, "postgres", "ALTER SYSTEM SET wal_level = minimal")
	docker(t, "stop", src.name)
	none := startSource(t, pg17, "nosenders", roles, "-c", "max_wal_senders=0", "-c", "wal_level=minimal")
	e = none.probe(t, none.asApp()).failed(t)
	assert.Equal(t, e.Code, contract.AgentErrNoReplication)
	assert.Assert(t, strings.Contains(e.Message, "max_wal_senders is 0") && strings.Contains(e.Hint, "wal_level=replica"), "%+v", e)
}

// nothingStaged sees that a failed base backup has left nothing to seal or to find.
func nothingStaged(t *testing.T, stage string) {
	t.Helper()
	assert.NilError(t, filepath.WalkDir(stage, func(path string, e fs.DirEntry, err error) error {
		assert.NilError(t, err)
		assert.Assert(t, e.IsDir(), "%s is left", path)
		return nil
	}))
	entries, err := os.ReadDir(stage)
	assert.NilError(t, err)
	for _, e := range entries {
		assert.Equal(t, e.Name(), contract.StagingRoot)
	}
	inside, err := os.ReadDir(filepath.Join(stage, contract.StagingRoot))
	assert.Assert(t, err != nil || len(inside) == 0, "%v is left", inside)
}

// noSlots waits until no backup is left on the source, and sees that no slot is.
func (s *sourceServer) noSlots(t *testing.T) {
	t.Helper()
	for range 100 {
		if s.sql(t, "postgres", "SELECT count(*) FROM pg_stat_replication") == "0" {
			assert.Equal(t, s.sql(t, "postgres", "SELECT count(*) FROM pg_replication_slots"), "0")
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("a backup still runs on the source")
}

func TestBaseBackupFailures(t *testing.T) {
	src := plainSource(t).source
	probe := src.probe(t, src.asApp()).ok(t).Probe
	slow, slowPort := proxy{to: net.JoinHostPort(src.ip(t), "5432"), rate: 8 << 20}.listen(t)
	slowly := contract.Source{URL: "postgres://app@" + net.JoinHostPort(slow, slowPort) + "/shop?sslmode=disable", Password: password}

	t.Run("other major", func(t *testing.T) {
		stage := t.TempDir()
		c := src.baseBackup(stage, src.asApp(), probe)
		c.image = majors[0].image
		e := c.run(t).failed(t)
		assert.Equal(t, e.Code, contract.AgentErrMajor)
		assert.Assert(t, strings.Contains(e.Message, "Postgres 17") && strings.Contains(e.Message, "Postgres 15"), e.Message)
		assert.Equal(t, e.Hint, "use --image postgres:17")
		nothingStaged(t, stage)
	})
	t.Run("wrong password", func(t *testing.T) {
		stage := t.TempDir()
		e := src.baseBackup(stage, contract.Source{URL: src.url("app", "shop"), Password: "wrong"}, probe).run(t).failed(t)
		assert.Equal(t, e.Code, contract.AgentErrPassword)
		nothingStaged(t, stage)
	})
	t.Run("pg_basebackup killed", func(t *testing.T) {
		stage := t.TempDir()
		c := src.baseBackup(stage, slowly, probe)
		c.during = func(r *running, ev contract.AgentEvent) {
			if ev.Done > 1<<20 && ev.Done < ev.Total {
				signalIn(r.name, "pg_basebackup", syscall.SIGKILL)
			}
		}
		e := c.run(t).failed(t)
		assert.Equal(t, e.Code, contract.AgentErrFailed)
		assert.Assert(t, strings.Contains(e.Message, "pg_basebackup failed: killed by signal 9"), e.Message)
		nothingStaged(t, stage)
		src.noSlots(t)
	})
	t.Run("source ends", func(t *testing.T) {
		stage := t.TempDir()
		c := src.baseBackup(stage, slowly, probe)
		ended := false
		c.during = func(_ *running, ev contract.AgentEvent) {
			if !ended && ev.Done > 1<<20 {
				ended = true
				src.sql(t, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
			}
		}
		e := c.run(t).failed(t)
		assert.Equal(t, e.Code, contract.AgentErrFailed)
		assert.Assert(t, len(e.Log) > 0, "%+v", e)
		assert.Assert(t, strings.Contains(e.Message, "pg_basebackup failed: exit status 1: "), e.Message)
		nothingStaged(t, stage)
		src.noSlots(t)
	})
	callerGone := func(r *running) { r.stdin.Close() }
	for _, tc := range []struct {
		percent int64
		by      string
		end     func(r *running)
	}{
		{10, "its caller's end", callerGone},
		{50, "SIGTERM", func(r *running) { _ = exec.Command("docker", "kill", "-s", "TERM", r.name).Run() }},
		{99, "its caller's end", callerGone},
	} {
		t.Run(fmt.Sprintf("interrupted at %d %% by %s", tc.percent, tc.by), func(t *testing.T) {
			const rate = 32 << 20
			stage := t.TempDir()
			c := src.baseBackup(stage, src.asApp(), probe)
			req := c.request.(contract.BaseBackupRequest)
			req.MaxRate = rate
			c.request = req
			var at contract.AgentEvent
			c.during = func(r *running, ev contract.AgentEvent) {
				if ev.Done > 0 && ev.Done*100 >= tc.percent*ev.Total && at.Done == 0 {
					at = ev
					tc.end(r)
				}
			}
			o := c.run(t)
			assert.Equal(t, o.failed(t).Code, contract.AgentErrInterrupted)
			assert.Assert(t, at.Done < at.Total, "%+v", at)
			assert.Assert(t, o.took.Seconds() > 0.8*float64(at.Done)/rate, "%d bytes in %s, at %d a second", at.Done, o.took, rate)
			nothingStaged(t, stage)
			src.noSlots(t)
		})
	}
	t.Run("a copy is there", func(t *testing.T) {
		stage := t.TempDir()
		file := filepath.Join(stage, contract.StagingRoot, "PG_VERSION")
		assert.NilError(t, os.Mkdir(filepath.Dir(file), 0o700))
		assert.NilError(t, os.WriteFile(file, []byte("17\n"), 0o600))
		e := src.baseBackup(stage, src.asApp(), probe).run(t).failed(t)
		assert.Assert(t, strings.Contains(e.Message, "already holds a copy"), e.Message)
		_, err := os.Stat(file)
		assert.NilError(t, err, "what was there is gone")
	})
	t.Run("no slots on the source", func(t *testing.T) {
		src.sql(t, "postgres", "ALTER SYSTEM SET max_replication_slots = 0")
		src.restart(t)
		defer func() {
			src.sql(t, "postgres", "ALTER SYSTEM RESET max_replication_slots")
			src.restart(t)
		}()
		stage := t.TempDir()
		src.baseBackup(stage, src.asApp(), src.probe(t, src.asApp()).ok(t).Probe).run(t).ok(t)
	})
}

// signalIn signals the processes of that name in a container.
func signalIn(container, name string, signal syscall.Signal) {
	out, _ := exec.Command("docker", "top", container, "-o", "pid,comm").Output()
	for _, line := range strings.Split(string(out), "\n") {
		var pid int
		var comm string
		if n, _ := fmt.Sscan(line, &pid, &comm); n == 2 && comm == name {
			_ = syscall.Kill(pid, signal)
		}
	}
}

// damage spoils a file's second page.
func damage(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	assert.NilError(t, err)
	defer f.Close()
	_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 8192), 8192)
	assert.NilError(t, err)
}

// holdHorizon has a transaction in the settle's private server, which goes on when it is
// there.
func holdHorizon(t *testing.T, container string) {
	t.Helper()
	pid, err := strconv.Atoi(docker(t, "inspect", "-f", "{{.State.Pid}}", container))
	assert.NilError(t, err)
	assert.NilError(t, syscall.Kill(pid, syscall.SIGSTOP))
	defer syscall.Kill(pid, syscall.SIGCONT)
	const in = `psql -h "$(echo /dev/shm/pgoverlay-*)" -XqAtU postgres -d shop `
	docker(t, "exec", "-d", "-u", "postgres", container, "sh", "-c", in+"-c 'BEGIN' -c 'SELECT txid_current()' -c 'SELECT pg_sleep(600)'")
	for range 300 {
		if docker(t, "exec", "-u", "postgres", container, "sh", "-c",
			in+"-c \"SELECT count(*) FROM pg_stat_activity WHERE query ~ 'sleep[(]600' AND backend_xid IS NOT NULL\"") == "1" {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("the transaction does not begin")
}

func TestSettleFailures(t *testing.T) {
	shared := plainSource(t)
	src := shared.source
	// fresh gives a staging volume as it was before any settle.
	fresh := func(t *testing.T) (stage, data string) {
		t.Helper()
		stage = shared.copied(t)
		return stage, filepath.Join(stage, contract.StagingRoot)
	}
	noManifest := func(t *testing.T, stage string) {
		t.Helper()
		matches, err := filepath.Glob(filepath.Join(stage, contract.StagingManifest+"*"))
		assert.NilError(t, err)
		assert.Equal(t, len(matches), 0, "%v", matches)
	}
	for name, tc := range map[string]struct {
		spoil         func(t *testing.T, data string)
		message, logs string
		code          string
	}{
		"WAL missing": {func(t *testing.T, data string) {
			segments, _ := filepath.Glob(filepath.Join(data, "pg_wal", "0*"))
			for _, s := range segments {
				assert.NilError(t, os.Remove(s))
			}
		}, "recover: the server ended during recovery", "could not locate required checkpoint record", contract.AgentErrFailed},
		"label missing": {func(t *testing.T, data string) {
			assert.NilError(t, os.Remove(filepath.Join(data, "backup_label")))
		}, "no backup_label", "", contract.AgentErrFailed},
		"incremental": {func(t *testing.T, data string) {
			f, err := os.OpenFile(filepath.Join(data, "backup_label"), os.O_APPEND|os.O_WRONLY, 0)
			assert.NilError(t, err)
			defer f.Close()
			_, err = f.WriteString("INCREMENTAL FROM LSN: 0/2000028\nINCREMENTAL FROM TLI: 1\n")
			assert.NilError(t, err)
		}, "recover: the server ended during recovery", "this is an incremental backup", contract.AgentErrFailed},
		"an index's file damaged": {func(t *testing.T, data string) {
			damage(t, filepath.Join(data, src.sql(t, "shop", "SELECT pg_relation_filepath('sorted')")))
		}, "pg_checksums failed", "checksum verification failed", contract.AgentErrFailed},
		"other major": {func(t *testing.T, data string) {
			assert.NilError(t, os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("16\n"), 0o600))
		}, "is of Postgres 16 and the image has Postgres 17", "", contract.AgentErrMajor},
		"tablespace outside": {func(t *testing.T, data string) {
			assert.NilError(t, os.Symlink("/etc", filepath.Join(data, "pg_tblspc", "99")))
		}, "tablespace 99 lies outside", "", contract.AgentErrFailed},
		"a table's file damaged": {func(t *testing.T, data string) {
			damage(t, filepath.Join(data, src.sql(t, "shop", "SELECT pg_relation_filepath('big')")))
		}, "of relation \"public.big\"", "invalid page", contract.AgentErrFailed},
		"an empty folder": {func(t *testing.T, data string) {
			assert.NilError(t, os.RemoveAll(data))
			assert.NilError(t, os.Mkdir(data, 0o700))
		}, "is no Postgres cluster", "", contract.AgentErrFailed},
	} {
		t.Run(name, func(t *testing.T) {
			stage, data := fresh(t)
			assert.NilError(t, os.WriteFile(filepath.Join(stage, contract.StagingManifest), []byte("{}"), 0o600))
			tc.spoil(t, data)
			e := src.settle(stage, shared.probe, shared.backup).run(t).failed(t)
			assert.Equal(t, e.Code, tc.code, "%+v", e)
			assert.Assert(t, strings.Contains(e.Message, tc.message), "%+v", e)
			assert.Assert(t, strings.Contains(strings.Join(e.Log, "\n"), tc.logs), "%q", e.Log)
			noManifest(t, stage)
		})
	}
	for _, at := range []string{"recover", "freeze", "checkpoint"} {
		t.Run("caller gone at "+at, func(t *testing.T) {
			stage, _ := fresh(t)
			c := src.settle(stage, shared.probe, shared.backup)
			c.during = func(r *running, ev contract.AgentEvent) {
				if ev.Message == at {
					r.stdin.Close()
				}
			}
			assert.Equal(t, c.run(t).failed(t).Code, contract.AgentErrInterrupted)
			noManifest(t, stage)
		})
	}
	t.Run("something holds the horizon back", func(t *testing.T) {
		stage, _ := fresh(t)
		c := src.settle(stage, shared.probe, shared.backup)
		c.during = func(r *running, ev contract.AgentEvent) {
			if ev.Message == "open all databases" {
				holdHorizon(t, r.name)
			}
		}
		e := c.run(t).failed(t)
		assert.Assert(t, strings.Contains(e.Message, "tables are not frozen: "), "%+v", e)
		assert.Assert(t, strings.Contains(e.Hint, "held back by: session of client backend"), "%+v", e)
		noManifest(t, stage)
	})
	t.Run("server killed in the freeze", func(t *testing.T) {
		stage, _ := fresh(t)
		c := src.settle(stage, shared.probe, shared.backup)
		c.during = func(r *running, ev contract.AgentEvent) {
			if ev.Stage == contract.StageFreeze && ev.Total > 0 {
				signalIn(r.name, "postgres", syscall.SIGKILL)
			}
		}
		e := c.run(t).failed(t)
		assert.Equal(t, e.Code, contract.AgentErrFailed)
		assert.Assert(t, strings.HasPrefix(e.Message, "freeze: "), "%+v", e)
		noManifest(t, stage)
	})
}
