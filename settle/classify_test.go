package settle

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func refused(code, message string) error {
	return fmt.Errorf("server error: %w", &pgconn.PgError{Severity: "FATAL", Code: code, Message: message})
}

func dial(ip string, err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: 5432}, Err: os.NewSyscallError("connect", err)}
}

func TestConnectFailure(t *testing.T) {
	const replicationLine = `no pg_hba.conf entry for replication connection from host "172.17.0.3", user "app", no encryption`
	for name, tc := range map[string]struct {
		err            error
		why            purpose
		noPassword     bool
		code           string
		message, hints string
	}{
		"wrong password": {err: refused("28P01", `password authentication failed for user "app"`), code: contract.AgentErrPassword,
			message: "does not take the password"},
		"no password": {err: refused("28P01", "x"), noPassword: true, code: contract.AgentErrPassword,
			message: "none was given", hints: "PGPASSWORD"},
		"no replication line": {err: refused("28000", replicationLine), why: forReplication, code: contract.AgentErrNoReplication,
			message: "replicate", hints: "host  replication  app  172.17.0.3/32  scram-sha-256"},
		"no line": {err: refused("28000", `no pg_hba.conf entry for host "fd00::3", user "app", database "shop", SSL encryption`),
			code: contract.AgentErrPrivilege, hints: "host  shop  app  fd00::3/128  scram-sha-256"},
		"no login":    {err: refused("28000", `role "app" is not permitted to log in`), code: contract.AgentErrPrivilege, message: "permitted to log in"},
		"no database": {err: refused("3D000", `database "shop" does not exist`), code: contract.AgentErrPrivilege, message: `no database "shop"`},
		"no REPLICATION, 17": {err: refused("42501", "permission denied to start WAL sender"), why: forReplication,
			code: contract.AgentErrNoReplication, hints: `ALTER ROLE "app" REPLICATION`},
		"no REPLICATION, 15": {err: refused("42501", "must be superuser or replication role to start walsender"), why: forReplication,
			code: contract.AgentErrNoReplication, hints: `ALTER ROLE "app" REPLICATION`},
		"no CONNECT": {err: refused("42501", `permission denied for database "shop"`), code: contract.AgentErrPrivilege, hints: "GRANT CONNECT"},
		"no senders": {err: refused("53300", "number of requested standby connections exceeds max_wal_senders (currently 0)"), why: forReplication,
			code: contract.AgentErrNoReplication, message: "max_wal_senders is 0", hints: "wal_level=replica"},
		"senders in use": {err: refused("53300", `number of requested standby connections exceeds "max_wal_senders" (currently 1)`), why: forReplication,
			code: contract.AgentErrNoReplication, message: "in use", hints: "needs two"},
		"full":     {err: refused("53300", "sorry, too many clients already"), code: contract.AgentErrUnreachable, message: "no connection left"},
		"starting": {err: refused("57P03", "the database system is starting up"), code: contract.AgentErrUnreachable, message: "starting up"},
		"pooler": {err: refused("08P01", "unsupported startup parameter: replication"), why: forReplication,
			code: contract.AgentErrNoReplication, message: "connection pooler", hints: "not of a pooler"},
		"the last server error counts": {err: errors.Join(
			refused("28000", `no pg_hba.conf entry for host "10.0.0.9", user "app", database "shop", SSL encryption`),
			refused("28P01", "x")), code: contract.AgentErrPassword},
		"refused":    {err: dial("10.0.0.1", syscall.ECONNREFUSED), code: contract.AgentErrUnreachable, message: "was refused", hints: "listen_addresses"},
		"IPv6 only":  {err: dial("2001:db8::1", syscall.ENETUNREACH), code: contract.AgentErrUnreachable, message: "no route", hints: "IPv6"},
		"no route":   {err: dial("10.0.0.1", syscall.EHOSTUNREACH), code: contract.AgentErrUnreachable, message: "no route", hints: "--network"},
		"no host":    {err: &net.DNSError{Err: "no such host", Name: "db", IsNotFound: true}, code: contract.AgentErrUnreachable, message: "no host"},
		"timeout":    {err: fmt.Errorf("x: %w", context.DeadlineExceeded), code: contract.AgentErrUnreachable, message: "within 10s"},
		"no TLS":     {err: errors.New("tls error: server refused TLS connection"), code: contract.AgentErrUnreachable, message: "does not offer TLS"},
		"bad CA":     {err: fmt.Errorf("tls: %w", x509.UnknownAuthorityError{}), code: contract.AgentErrUnreachable, message: "not trusted", hints: "--ssl-root-cert"},
		"closed":     {err: fmt.Errorf("x: %w", io.ErrUnexpectedEOF), code: contract.AgentErrUnreachable, message: "closed the connection"},
		"other":      {err: errors.New("unknown message type: H"), code: contract.AgentErrUnreachable, message: "does not answer as a Postgres"},
		"other code": {err: refused("XX000", "odd"), code: contract.AgentErrUnreachable, message: "odd"},
	} {
		t.Run(name, func(t *testing.T) {
			src := contract.Source{URL: "postgres://app@db.example/shop", Password: "hunter2"}
			if tc.noPassword {
				src.Password = ""
			}
			s, err := parseSource(src)
			assert.NilError(t, err)
			got := s.connectFailure(tc.err, tc.why)
			assert.Equal(t, got.Code, tc.code, got.Message)
			assert.Assert(t, strings.Contains(got.Message, tc.message), got.Message)
			assert.Assert(t, strings.Contains(got.Hint, tc.hints), got.Hint)
			assert.Assert(t, !strings.Contains(got.Message+got.Hint, "hunter2"))
		})
	}
}
