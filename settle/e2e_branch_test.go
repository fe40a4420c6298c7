//go:build e2e

package settle

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func TestReadyAndDial(t *testing.T) {
	src := plainSource(t)
	stage, _ := src.settled(t, nil)
	container, volume := startBranch(t, pg17, stage, "ready-branch")
	ev, err := ready(container, "--user", "app", "--database", "shop")
	assert.NilError(t, err, "%+v", ev.Error)
	assert.Equal(t, ev.Stage, contract.StageReady)

	t.Run("no such database", func(t *testing.T) {
		began := time.Now()
		ev, err := ready(container, "--database", "nosuch")
		assert.Assert(t, err != nil)
		assert.Assert(t, strings.Contains(ev.Error.Message, `database "nosuch" does not exist`), ev.Error.Message)
		assert.Assert(t, time.Since(began) < 20*time.Second, "it waited")
	})
	t.Run("its own time", func(t *testing.T) {
		// In the container, so that docker exec is not measured.
		out := docker(t, "exec", container, "bash", "-c",
			`TIMEFORMAT=%R; for i in $(seq 20); do time /pgoverlay agent ready --user app --database shop >/dev/null; done`)
		times := strings.Fields(out)
		slices.Sort(times)
		t.Logf("agent ready against a running server: median %s s, fastest %s s, slowest %s s", times[10], times[0], times[19])
	})
	t.Run("dial", func(t *testing.T) {
		config, err := pgx.ParseConfig("postgres://app@nowhere/shop?sslmode=disable")
		assert.NilError(t, err)
		config.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"nowhere"}, nil }
		config.DialFunc = func(context.Context, string, string) (net.Conn, error) { return dialIn(container) }
		conn, err := pgx.ConnectConfig(t.Context(), config)
		assert.NilError(t, err)
		var n int
		assert.NilError(t, conn.QueryRow(t.Context(), "SELECT 60000").Scan(&n))
		assert.Equal(t, n, 60000)
		assert.NilError(t, conn.Close(t.Context()))
	})
	t.Run("a server in recovery", func(t *testing.T) {
		docker(t, "stop", container)
		_, err := ready(container) // and one that is not there
		assert.Assert(t, err != nil)
		assert.NilError(t, os.WriteFile(filepath.Join(volume, "standby.signal"), nil, 0o644))
		docker(t, "start", container)
		ev, err := ready(container, "--timeout", "3s")
		assert.Assert(t, err != nil)
		assert.Equal(t, ev.Error.Code, contract.AgentErrNoServer)
		assert.Assert(t, strings.Contains(ev.Error.Message, "in recovery"), ev.Error.Message)
	})
}

// execConn is `docker exec … agent dial` as a connection.
type execConn struct {
	net.Conn // deadlines and addresses, unused
	in       io.WriteCloser
	out      io.Reader
	cmd      *exec.Cmd
}

func dialIn(container string) (net.Conn, error) {
	cmd := exec.Command("docker", "exec", "-i", container, "/pgoverlay", "agent", "dial")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	idle, _ := net.Pipe()
	return &execConn{Conn: idle, in: in, out: out, cmd: cmd}, cmd.Start()
}

func (c *execConn) Read(p []byte) (int, error)  { return c.out.Read(p) }
func (c *execConn) Write(p []byte) (int, error) { return c.in.Write(p) }
func (c *execConn) Close() error {
	c.in.Close()
	return c.cmd.Wait()
}

// A source that keeps its configuration in /etc, as Debian's do, and a locale for
// messages that the image has not.
func TestSettleForeignConfigurations(t *testing.T) {
	src := plainSource(t)
	t.Run("none", func(t *testing.T) {
		stage, manifest := src.settled(t, func(data string) {
			for _, name := range []string{mainConf, autoConf, hbaConf, identConf} {
				assert.NilError(t, os.Remove(filepath.Join(data, name)))
			}
		})
		assert.Assert(t, slices.ContainsFunc(manifest.Neutralised, func(c contract.Change) bool { return c.What == mainConf }))
		container, _ := startBranch(t, pg17, stage, "foreign-none")
		ev, err := ready(container, "--user", "app", "--database", "shop")
		assert.NilError(t, err, "%+v", ev.Error)
		assert.Equal(t, psql(t, container, "shop", "SHOW default_text_search_config"), "pg_catalog.english")
		checkLogin(t, pg17, container)
	})
	t.Run("of elsewhere", func(t *testing.T) {
		stage, manifest := src.settled(t, func(data string) {
			f, err := os.OpenFile(filepath.Join(data, mainConf), os.O_APPEND|os.O_WRONLY, 0)
			assert.NilError(t, err)
			defer f.Close()
			fmt.Fprint(f, "lc_messages = 'xx_YY.UTF-8'\ninclude_dir '/etc/postgresql/conf.d'\nexternal_pid_file = '/run/x/main.pid'\n",
				"hba_file = '/etc/postgresql/pg_hba.conf'\nssl = on\nssl_cert_file = '/etc/ssl/x.pem'\nhuge_pages = on\nshared_buffers = 600GB\n",
				"logging_collector = on\nlog_directory = '/var/log/x'\nlisten_addresses = '10.1.2.3'\nport = 6432\n",
				"shared_preload_libraries = 'not_here'\nunix_socket_directories = '/run/x'\nno_such_setting = 1\n",
				"synchronous_standby_names = '*'\nrecovery_target_time = '2020-01-01'\n")
			assert.NilError(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600))
			assert.NilError(t, os.WriteFile(filepath.Join(data, hbaConf), []byte("host all all 10.0.0.0/8 nonsense\n@missing\n"), 0o600))
		})
		var what []string
		for _, c := range manifest.Neutralised {
			what = append(what, c.What)
		}
		for _, name := range []string{"lc_messages", "include_dir /etc/postgresql/conf.d", "hba_file", "ssl", "huge_pages",
			"shared_buffers", "port", "listen_addresses", "standby.signal", "no_such_setting", "synchronous_standby_names", "recovery_target_time"} {
			assert.Assert(t, slices.Contains(what, name), "%s is not among %v", name, what)
		}
		container, _ := startBranch(t, pg17, stage, "foreign-conf", "--memory", "512m")
		ev, err := ready(container, "--user", "app", "--database", "shop")
		assert.NilError(t, err, "%+v\n%s", ev.Error, docker(t, "logs", container))
		psql(t, container, "shop", "SET statement_timeout = '5s'; INSERT INTO big VALUES (-1)")
		checkLogin(t, pg17, container)
	})
}

// A seed of a standby, and one of a branch, whose tablespaces are directories.
func TestSettleOtherSources(t *testing.T) {
	// The oldest and the newest: what both do, those between do.
	for _, m := range []major{majors[0], majors[len(majors)-1]} {
		t.Run(fmt.Sprint(m.number), func(t *testing.T) {
			t.Parallel()
			shared := intentionsOf(t, m)
			sentinel := shared.source.sql(t, "shop", "SELECT count(*), sum(id) FROM big")
			stage := shared.copied(t)
			t.Run("a standby", func(t *testing.T) {
				standby := startStandby(t, m, copyTree(t, stage, t.TempDir()))
				checkCopyOf(t, m, standby, sentinel)
				assert.Equal(t, psql(t, standby, "postgres", "SELECT pg_is_in_recovery()"), "t")
			})
			t.Run("a branch", func(t *testing.T) {
				shared.source.settle(stage, shared.probe, shared.backup).run(t).ok(t)
				container, _ := startBranch(t, m, stage, "parent")
				checkCopyOf(t, m, container, sentinel)
			})
		})
	}
}

// startStandby starts an unsettled copy as a standby that has lost its primary.
func startStandby(t *testing.T, m major, stage string) (container string) {
	t.Helper()
	data := filepath.Join(stage, contract.StagingRoot, m.dataDir)
	assert.NilError(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644))
	conf, err := os.OpenFile(filepath.Join(data, autoConf), os.O_APPEND|os.O_WRONLY, 0)
	assert.NilError(t, err)
	// A standby needs its primary's limits.
	fmt.Fprint(conf, "primary_conninfo = ''\nmax_connections = 120\nmax_prepared_transactions = 7\nwal_level = logical\n",
		"allow_in_place_tablespaces = on\n")
	assert.NilError(t, conf.Close())
	container, _ = startBranch(t, m, stage, "standby")
	return container
}

// checkCopyOf makes a seed of a server and a branch of that.
func checkCopyOf(t *testing.T, m major, container, sentinel string) {
	t.Helper()
	net, err := network()
	assert.NilError(t, err)
	_ = exec.Command("docker", "network", "connect", net, container).Run()
	s := &sourceServer{m, container}
	s.await(t)
	stage, probe, backup := s.staged(t)
	manifest := s.settle(stage, probe, backup).run(t).ok(t).Manifest
	assert.Equal(t, manifest.Major, m.number)
	branch, _ := startBranch(t, m, stage, "grandchild")
	ev, err := ready(branch, "--user", "app", "--database", "shop")
	assert.NilError(t, err, "%+v\n%s", ev.Error, docker(t, "logs", branch))
	assert.Equal(t, psql(t, branch, "shop", "SELECT count(*), sum(id) FROM big"), sentinel)
	assert.Equal(t, psql(t, branch, "shop", "SELECT count(*) FROM elsewhere WHERE a > 0"), "2000")
	assert.Equal(t, psql(t, branch, "postgres", "SELECT pg_is_in_recovery()"), "f")
	docker(t, "rm", "-fv", branch)
}
