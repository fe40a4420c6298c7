package settle

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// socketDir is where the stock image's server has its socket.
const socketDir = "/var/run/postgresql"

// Pauses between two attempts of ready: a branch answers within some tens of
// milliseconds, and one that recovers should not be polled to death.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 50 * time.Millisecond
)

// errInRecovery is why a server that answers queries is not ready: it would refuse
// to write.
var errInRecovery = errors.New("the server is in recovery")

var errStarting = errors.New("the server is starting or stopping")

// runReady waits until the server of this container answers a query and takes
// writes. It is on the way of every branch's creation, so it does nothing else.
func runReady(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("pgoverlay agent ready", flag.ContinueOnError)
	flags.SetOutput(stderr)
	user := flags.String("user", "postgres", "role to log in as")
	database := flags.String("database", "postgres", "database to connect to")
	timeout := flags.Duration("timeout", time.Minute, "how long to wait")
	dir := flags.String("socket-dir", socketDir, "directory of the server's unix socket")
	port := flags.Uint("port", 5432, "port, which names the socket")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *port > 65535 {
		return exitUsage
	}
	ev := newEvents(stdout)
	config, err := localConfig(*dir, uint16(*port), *user, *database, "pgoverlay ready")
	if err != nil {
		ev.last(contract.AgentEvent{Error: fail(contract.AgentErrFailed, "", "%s", err)})
		return exitFailed
	}

	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	if err := awaitServer(ctx, config); err != nil {
		ev.last(contract.AgentEvent{Error: notReady(err, *timeout)})
		return exitFailed
	}
	ev.say(contract.StageReady, "")
	return exitOK
}

// localConfig is of a connection to the container's own server over its socket, which
// asks for no password. Nothing of the environment is in it.
func localConfig(dir string, port uint16, user, database, application string) (*pgconn.Config, error) {
	config, err := pgconn.ParseConfig("sslmode=disable connect_timeout=10")
	if err != nil {
		return nil, err
	}
	config.Host, config.Port = dir, port
	config.User, config.Database, config.Password = user, database, ""
	config.Fallbacks, config.RuntimeParams = nil, map[string]string{"application_name": application}
	return config, nil
}

// awaitServer asks until the server answers, refuses for good, or ctx ends. The
// error is that of the last attempt which ctx did not cut short.
func awaitServer(ctx context.Context, config *pgconn.Config) error {
	err := errors.New("nothing was tried")
	for pause := firstPause; ; pause = min(pause*6/5, lastPause) {
		now := errStarting
		if !busy() {
			now = askServer(ctx, config)
		}
		if now == nil || final(now) {
			return now
		}
		if ctx.Err() == nil {
			err = now
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// busy says that the server of the container's PGDATA reports itself as starting or
// stopping: a connection would only cost it a process and a line in its log.
func busy() bool {
	data, ok := os.LookupEnv("PGDATA")
	if !ok {
		return false
	}
	status, _ := postmasterStatus(data)
	return status == statusStarting || status == statusStopping
}

func askServer(ctx context.Context, config *pgconn.Config) error {
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	results, err := conn.Exec(ctx, "SELECT pg_catalog.pg_is_in_recovery()").ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != "f" {
		return errInRecovery
	}
	return nil
}

// final says whether waiting cannot help: the role, the database or the way in does
// not exist (classes 28 and 3D of errcodes.txt).
func final(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && len(pg.Code) == 5 && (pg.Code[:2] == "28" || pg.Code[:2] == "3D")
}

func notReady(err error, timeout time.Duration) *contract.AgentError {
	why := lastLine(err)
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		why = pg.Message
	}
	if final(err) {
		return fail(contract.AgentErrNoServer, "", "the server refuses the query: %s", why)
	}
	return fail(contract.AgentErrNoServer, "docker logs shows what the server says",
		"the server does not answer after %s: %s", fmt.Sprint(timeout), why)
}
