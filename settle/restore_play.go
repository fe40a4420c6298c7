package settle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract/dumpfile"
)

// player plays the SQL of a dump on the private server as psql does without
// ON_ERROR_STOP: a statement that fails is noted, and the next one comes. It makes the
// roles that the dump names and nobody has made.
type player struct {
	server *server
	events *events
	major  int
	// locale is that of databases the script makes, "" for the script's own.
	locale string
	dump   contract.Dump

	conn     *pgconn.PgConn
	database string
	// visited are the databases that statements went to after a \connect.
	visited []string
	// opened and finished count the heads and the ends that pg_dump and pg_dumpall write.
	opened, finished int
	newer            error
}

// begin connects to where statements go that come before any \connect, and makes that
// database where it has a name of its own.
func (p *player) begin(ctx context.Context, database string) error {
	if err := p.connect(ctx, "postgres"); err != nil {
		return err
	}
	if database == "" || database == "postgres" {
		return nil
	}
	if err := p.run(ctx, "CREATE DATABASE "+quoteIdent(database)); err != nil {
		return fail(contract.AgentErrDump, "name another with --database", "the database %q cannot be made: %s", database, errorText(err))
	}
	return p.connect(ctx, database)
}

// connect leaves the session for one in another database, with the server's own defaults.
func (p *player) connect(ctx context.Context, database string) error {
	p.close(ctx)
	config, err := localConfig(p.server.run.dir, 5432, p.server.superuser, database, "pgoverlay restore")
	if err != nil {
		return err
	}
	config.RuntimeParams["client_encoding"] = "UTF8"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	p.conn, p.database = conn, database
	return nil
}

func (p *player) close(ctx context.Context) {
	if p.conn != nil {
		_ = p.conn.Close(context.WithoutCancel(ctx))
		p.conn = nil
	}
}

// play plays one script to its end. Its error is one that ends the restore.
func (p *player) play(ctx context.Context, from io.Reader) error {
	p.opened, p.finished = 0, 0
	s := newScript(from)
	s.comment = p.comment
	for {
		next, err := s.next()
		if p.newer != nil {
			return p.newer
		}
		if err == io.EOF {
			return p.whole()
		}
		if err != nil {
			return err
		}
		if err := p.one(ctx, s, next); err != nil {
			return err
		}
	}
}

// comment takes notice of what pg_dump and pg_dumpall say of their dumps in comments
// (RestoreArchive in pg_backup_archiver.c, main in pg_dumpall.c).
func (p *player) comment(text string) {
	switch strings.TrimSpace(text) {
	case "-- PostgreSQL database dump", "-- PostgreSQL database cluster dump":
		p.opened++
	case "-- PostgreSQL database dump complete", "-- PostgreSQL database cluster dump complete":
		p.finished++
	}
	if version := dumpfile.SourceOf(text); version != "" {
		if p.dump.ServerVersion == "" {
			p.dump.ServerVersion = version
		}
		if err := refuseNewer(version, p.major); err != nil {
			p.newer = err
		}
	}
}

// whole refuses a script that has a beginning of pg_dump's and not its end: cut off
// between two statements it looks like a whole one.
func (p *player) whole() error {
	if p.opened == p.finished {
		return nil
	}
	return errors.New(`the line "-- PostgreSQL database dump complete" is missing at its end`)
}

// one plays one piece. Its error is one that ends the restore.
func (p *player) one(ctx context.Context, s *script, next piece) error {
	if next.command {
		return p.command(ctx, s, next)
	}
	slow := time.AfterFunc(sayAfter, func() {
		p.events.say(contract.StageRestore, "in line %d for a while: %s", next.line, beginning(next.text, 80))
	})
	defer slow.Stop()
	var err error
	switch {
	case copyFrom().MatchString(next.text):
		if err = p.copy(ctx, s, next); errors.Is(err, errNoData) {
			return err
		}
	default:
		err = p.run(ctx, p.adapt(next.text))
		if databaseExists(err) && p.replaceDatabase(ctx, next.text) {
			err = p.run(ctx, p.adapt(next.text))
		}
	}
	if err == nil {
		if m := conformingStrings().FindStringSubmatch(next.text); m != nil {
			s.escapes = strings.EqualFold(m[1], "off")
		}
		return nil
	}
	return p.failed(ctx, next, err)
}

// sayAfter is how long a statement may take before its name is shown.
const sayAfter = 3 * time.Second

// failed notes a statement that the server has refused. Any other failure is returned.
func (p *player) failed(ctx context.Context, next piece, err error) error {
	var pg *pgconn.PgError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !errors.As(err, &pg), p.conn == nil, p.conn.IsClosed():
		return fail(contract.AgentErrFailed, "", "the server ended at line %d, %s: %s", next.line, beginning(next.text, 80), err)
	case expected(next.text, pg):
		return nil
	}
	f := contract.FailedStatement{Line: next.line, Database: p.database, Statement: shown(next.text),
		Message: failureText(pg), Code: pg.Code, Data: !harmless(next.text, pg)}
	if f.Data {
		p.dump.FailedData++
	}
	if len(p.dump.Failed) < contract.MostFailed {
		p.dump.Failed = append(p.dump.Failed, f)
	} else {
		p.dump.FailedMore++
	}
	return nil
}

// mostRoles bounds the roles that one statement may name.
const mostRoles = 100

// run runs one statement, and makes the roles that it misses.
func (p *player) run(ctx context.Context, text string) error {
	for range mostRoles {
		err := p.attempt(ctx, text)
		role := missingRole(err)
		if role == "" || !p.makeRole(ctx, role) {
			return err
		}
	}
	return p.attempt(ctx, text)
}

// attempt runs one statement. In a transaction of the script's own it gets a savepoint,
// so that its failure is not that of all that follows.
func (p *player) attempt(ctx context.Context, text string) error {
	if p.conn.TxStatus() != 'T' || !savable(text) {
		return p.exec(ctx, text)
	}
	if err := p.exec(ctx, "SAVEPOINT pgoverlay"); err != nil {
		return err
	}
	err := p.exec(ctx, text)
	if err != nil && p.conn.TxStatus() == 'E' {
		if err2 := p.exec(ctx, "ROLLBACK TO SAVEPOINT pgoverlay"); err2 != nil {
			return err
		}
	}
	if err2 := p.exec(ctx, "RELEASE SAVEPOINT pgoverlay"); err == nil {
		err = err2
	}
	return err
}

// exec runs one statement and forgets its rows.
func (p *player) exec(ctx context.Context, text string) error {
	results := p.conn.Exec(ctx, text)
	for results.NextResult() {
		rows := results.ResultReader()
		for rows.NextRow() {
		}
		_, _ = rows.Close()
	}
	return results.Close()
}

// errNoData is a script that ends within a COPY's data.
var errNoData = errors.New("the data of a COPY is cut off")

// copy runs a COPY with the data behind it. Data of a COPY that fails is skipped.
func (p *player) copy(ctx context.Context, s *script, next piece) error {
	data, err := s.copyData(next.line)
	if err != nil {
		return errors.Join(errNoData, err)
	}
	_, err = p.conn.CopyFrom(ctx, data, next.text)
	if err2 := data.drain(); err2 != nil {
		return errors.Join(errNoData, err2)
	}
	return err
}

// makeRole makes a role, and says whether it is there now and was not. Outside of a
// transaction of the script's it has a connection of its own: the script's may have given
// its rights away. Inside of one, the script's would go on believing that the role is
// missing: it remembers that it found none until it hears of other sessions' changes, at
// the next transaction's beginning (AcceptInvalidationMessages in inval.c).
func (p *player) makeRole(ctx context.Context, name string) bool {
	create := "CREATE ROLE " + quoteIdent(name) + " NOLOGIN"
	made := false
	if p.conn.TxStatus() == 'T' {
		made = p.attempt(ctx, create) == nil
	} else {
		admin := &player{server: p.server}
		if admin.connect(ctx, "template1") != nil {
			return false
		}
		made = admin.exec(ctx, create) == nil
		admin.close(ctx)
	}
	if made && !slices.Contains(p.dump.Roles, name) {
		p.dump.Roles = append(p.dump.Roles, name)
	}
	return made
}

// replaceDatabase takes the database postgres, which initdb makes and which is empty yet,
// out of the way of a script that makes it with an encoding, locale and settings of its own.
func (p *player) replaceDatabase(ctx context.Context, text string) bool {
	if databaseOf(text) != "postgres" || p.database != "postgres" || len(p.visited) > 0 {
		return false
	}
	return p.connect(ctx, "template1") == nil && p.exec(ctx, "DROP DATABASE postgres") == nil
}

// command carries out one of psql's commands that dumps have.
func (p *player) command(ctx context.Context, s *script, next piece) error {
	word, rest, _ := strings.Cut(strings.TrimSpace(next.text), " ")
	switch word {
	case `\restrict`, `\unrestrict`, `\echo`, `\qecho`, `\timing`, `\pset`:
		return nil
	case `\set`:
		if name, _, _ := strings.Cut(strings.TrimSpace(rest), " "); strings.HasPrefix(name, "ON_ERROR_") || name == "VERBOSITY" {
			return nil
		}
	case `\encoding`:
		if err := p.run(ctx, "SET client_encoding = "+quoteLiteral(strings.TrimSpace(rest))); err != nil {
			return p.failed(ctx, next, err)
		}
		return nil
	case `\c`, `\connect`:
		database, ok := connectDatabase(rest)
		if !ok {
			break
		}
		if database == "" {
			database = p.database
		}
		s.escapes = false
		if err := p.connect(ctx, database); err != nil {
			return p.unreachable(database, next.line, err)
		}
		if !slices.Contains(p.visited, database) {
			p.visited = append(p.visited, database)
		}
		return nil
	}
	return fail(contract.AgentErrDump, "give what pg_dump or pg_dumpall has written, or run the script with psql on a server and make the seed of that",
		"line %d has a command of psql that no dump has: %s", next.line, beginning(next.text, 80))
}

func (p *player) unreachable(database string, line int64, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	return fail(contract.AgentErrDump, "an encoding or locale that the image lacks can be replaced with --locale",
		"line %d wants the database %q, which could not be made: %s", line, database, pg.Message)
}

// mainDatabase is the database that a client of the seed gets: the named one, or the one
// that the script went to last.
func (p *player) mainDatabase(named string) string {
	if named != "" {
		return named
	}
	for _, name := range slices.Backward(p.visited) {
		if name != "template1" && name != "postgres" {
			return name
		}
	}
	return "postgres"
}

// explain adds the statements that failed to the error that ended the restore.
func (p *player) explain(err error) error {
	var known *contract.AgentError
	if errors.As(err, &known) && len(known.Log) == 0 && p.dump.FailedData > 0 {
		known.Log = p.lines()
	}
	return err
}

// mostShown is how many failed statements an error shows.
const mostShown = 20

func (p *player) lines() []string {
	var lines []string
	for _, f := range p.dump.Failed {
		if f.Data && len(lines) < mostShown {
			lines = append(lines, fmt.Sprintf("line %d, database %s: %s: %s", f.Line, f.Database, f.Statement, f.Message))
		}
	}
	if more := p.dump.FailedData - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more", more))
	}
	return lines
}

// verdict refuses a restore that may have lost data.
func (p *player) verdict(force bool) error {
	if p.dump.FailedData == 0 || force {
		return nil
	}
	e := fail(contract.AgentErrDump, "mend the dump, use an image that has what it needs, or insist with --force",
		"%s of the dump failed that may cost data", statements(p.dump.FailedData))
	e.Log = p.lines()
	return e
}

func statements(n int) string {
	if n == 1 {
		return "1 statement"
	}
	return fmt.Sprintf("%d statements", n)
}
