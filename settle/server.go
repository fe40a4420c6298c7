package settle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

const (
	// stalledAfter is how long the private server may show no sign of work while it
	// recovers or stops. There is no other deadline: recovery of a large copy on a
	// slow disk may take hours.
	stalledAfter = 5 * time.Minute
	// quitGrace is how long an immediate shutdown may take before SIGKILL.
	quitGrace = 10 * time.Second
	// serverLogLines are kept of the private server's log.
	serverLogLines = 30
)

// server is the settle's private server on the copy: its own configuration, no
// network, and a socket directory that only the account may enter.
type server struct {
	account account
	major   int
	data    string
	run     scratch
	// inPlace says that the cluster has tablespaces.
	inPlace bool
	// superuser is the bootstrap superuser's role.
	superuser string
	// extra are more lines of its configuration; they hold over the others.
	extra string

	log    *tail
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the postmaster is gone
	result error         // how it ended; read it after ended is closed
}

// start starts the postmaster with these of the ownSettings. It does not wait.
func (s *server) start(settings map[string]string) error {
	if err := s.configure(settings); err != nil {
		return err
	}
	path, err := tool("postgres")
	if err != nil {
		return err
	}
	s.cmd = exec.Command(path, "-D", s.data, "-c", "config_file="+filepath.Join(s.run.dir, "postgresql.conf"))
	s.cmd.Dir = s.run.dir
	s.cmd.Env = environment(s.run.dir)
	// SIGQUIT takes the server's children along, should the agent be killed.
	s.cmd.SysProcAttr = s.account.attributes(syscall.SIGQUIT)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	// A stray child may hold the log pipe; the postmaster's end is what counts.
	s.cmd.WaitDelay = time.Second
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.ended = make(chan struct{})
	go func() {
		s.result = s.cmd.Wait()
		close(s.ended)
	}()
	return nil
}

// configure writes the private server's configuration.
func (s *server) configure(settings map[string]string) error {
	files := map[string]string{
		"postgresql.conf": privateConf(s.major, s.data, s.run.dir, s.inPlace, settings) + s.extra,
		"hba.conf":        "local all all trust\n",
		"ident.conf":      "",
	}
	for name, text := range files {
		path := filepath.Join(s.run.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
		if err := s.account.own(path); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) running() bool {
	if s.ended == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// awaitReady waits for the end of recovery, which is when the postmaster says that
// it is ready: without a signal file there is no hot standby. report gets the
// startup process' title when it changes.
func (s *server) awaitReady(ctx context.Context, report func(title string)) error {
	watch := newWatch(s.cmd.Process.Pid)
	pause := 5 * time.Millisecond
	for {
		if status, pid := postmasterStatus(s.data); status == statusReady && pid == s.cmd.Process.Pid {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ended:
			return fmt.Errorf("the server ended during recovery: %s", exitText(s.result))
		case <-time.After(pause):
		}
		pause = min(pause*5/4, 100*time.Millisecond)
		title, alive := watch.look()
		if title != "" {
			report(title)
		}
		if !alive {
			return fmt.Errorf("recovery made no progress for %s", stalledAfter)
		}
	}
}

// connectAny connects to a database that every cluster has and that allows
// connections.
func (s *server) connectAny(ctx context.Context) (*pgx.Conn, error) {
	var first error
	for _, database := range []string{"postgres", "template1"} {
		conn, err := s.connect(ctx, database)
		var pg *pgconn.PgError
		if err == nil || !errors.As(err, &pg) || pg.Code != "3D000" && pg.Code != "55000" {
			return conn, err // 3D000: dropped; 55000: datallowconn is false
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// connect connects as the bootstrap superuser. Settings given at the start of a
// connection hold over ALTER ROLE and ALTER DATABASE … SET (PGC_S_CLIENT in guc.h),
// which may load libraries, limit statements or forbid writes.
func (s *server) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig("sslmode=disable")
	if err != nil {
		return nil, err
	}
	config.Host, config.Port = s.run.dir, 5432
	config.User, config.Password, config.Database = s.superuser, "", database
	config.Fallbacks = nil
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	config.RuntimeParams = map[string]string{
		"application_name":                    "pgoverlay settle",
		"session_preload_libraries":           "",
		"local_preload_libraries":             "",
		"session_replication_role":            "replica", // no triggers of the source's own
		"role":                                "none",
		"search_path":                         "pg_catalog",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": "0",
		"default_transaction_read_only":       "off",
		"default_transaction_isolation":       "read committed",
		"maintenance_work_mem":                freezeMemory,
		"vacuum_cost_delay":                   "0",
		"vacuum_freeze_min_age":               "0",
		"vacuum_freeze_table_age":             "0",
		"vacuum_multixact_freeze_min_age":     "0",
		"vacuum_multixact_freeze_table_age":   "0",
	}
	if s.major >= 17 {
		config.RuntimeParams["transaction_timeout"] = "0"
		config.RuntimeParams["event_triggers"] = "off"
	}
	return pgx.ConnectConfig(ctx, config)
}

// stop shuts down as `pg_ctl stop -m fast` does and waits for the end.
func (s *server) stop(ctx context.Context) error {
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	watch := newWatch(s.cmd.Process.Pid)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ended:
			if s.result != nil && !errors.Is(s.result, exec.ErrWaitDelay) {
				return fmt.Errorf("the server did not stop cleanly: %s", exitText(s.result))
			}
			return nil
		case <-time.After(200 * time.Millisecond):
			if _, alive := watch.look(); !alive {
				return fmt.Errorf("the server did not stop within %s", stalledAfter)
			}
		}
	}
}

// kill ends the server and all its processes, whatever state they are in, and
// leaves nothing outside the staging volume.
func (s *server) kill() {
	if s.running() {
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		select {
		case <-s.ended:
		case <-time.After(quitGrace):
			// Its children notice that their postmaster is gone.
			_ = s.cmd.Process.Kill()
			<-s.ended
		}
	}
	s.run.remove()
}

// failure adds the end of the server's log to the error of a step.
func (s *server) failure(step string, err error) error {
	var known *contract.AgentError
	if !errors.As(err, &known) {
		known = fail(contract.AgentErrFailed, "", "%s: %s", step, errorText(err))
	}
	if len(known.Log) == 0 {
		known.Log = s.log.lines()
	}
	return known
}

// errorText is an error with the detail and the context that a server sent along:
// "while scanning block 1 of relation …".
func errorText(err error) string {
	text := err.Error()
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		for _, more := range []string{pg.Detail, pg.Where} {
			if more != "" {
				text += "; " + more
			}
		}
	}
	return text
}
