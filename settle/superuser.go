package settle

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// ensureLogin sees that the settle can log in as the bootstrap superuser. Hardened
// sources take LOGIN from it; then it is lent until restoreLogin, by a server in
// single-user mode, which asks nobody for attributes
// (InitializeSessionUserIdStandalone in miscinit.c).
func (s *settler) ensureLogin(ctx context.Context) error {
	err := s.requireSuperuser(ctx)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "28000" || !strings.Contains(pg.Message, "not permitted to log in") {
		return err
	}
	if err := s.server.stop(ctx); err != nil {
		return err
	}
	if err := s.alterSingle(ctx, "ALTER ROLE "+quoteIdent(s.server.superuser)+" LOGIN"); err != nil {
		return err
	}
	s.lentLogin = true
	settings, _ := raise(s.own, s.control)
	if err := s.start(ctx, settings); err != nil {
		return err
	}
	return s.requireSuperuser(ctx)
}

// requireSuperuser refuses a bootstrap superuser that is none any more, which it can
// lose up to 15: the settle could not open the databases.
func (s *settler) requireSuperuser(ctx context.Context) error {
	return s.server.inAny(ctx, func(conn *pgx.Conn) error {
		var is bool
		if err := conn.QueryRow(ctx, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user").Scan(&is); err != nil || is {
			return err
		}
		return fail(contract.AgentErrFailed, fmt.Sprintf("as a superuser of the source: ALTER ROLE %s SUPERUSER", quoteIdent(s.server.superuser)),
			"the role %q, which made the source's cluster, is no superuser any more", s.server.superuser)
	})
}

// restoreLogin takes back what ensureLogin has lent, and freezes what that writes. No
// connection can be made after it.
func (s *settler) restoreLogin(ctx context.Context, conn *pgx.Conn) error {
	if !s.lentLogin {
		return nil
	}
	if _, err := conn.Exec(ctx, "ALTER ROLE "+quoteIdent(s.server.superuser)+" NOLOGIN"); err != nil {
		return err
	}
	return vacuum(ctx, conn, freezeOptions, "pg_catalog.pg_authid")
}

// alterSingle runs one statement in single-user mode, with the private server's
// configuration.
func (s *settler) alterSingle(ctx context.Context, statement string) error {
	path, err := tool("postgres")
	if err != nil {
		return err
	}
	// With -j a statement ends at an empty line, and any error ends the server
	// (interactive_getc and PostgresMain in postgres.c; exit_on_error).
	cmd := exec.CommandContext(ctx, path, "--single", "-j", "-D", s.data,
		"-c", "config_file="+filepath.Join(s.server.run.dir, "postgresql.conf"), "-c", "exit_on_error=on", "template1")
	cmd.Dir, cmd.Env = s.server.run.dir, environment(s.server.run.dir)
	cmd.SysProcAttr = s.account.attributes(syscall.SIGQUIT)
	cmd.Stdin = strings.NewReader(statement + ";\n\n")
	cmd.Stdout, cmd.Stderr = s.server.log, s.server.log
	if err := cmd.Run(); err != nil {
		return fail(contract.AgentErrFailed, "", "single-user mode: %s", exitText(err))
	}
	return nil
}
