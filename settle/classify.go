package settle

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// purpose is what a connection to the source was for; it decides what to advise.
type purpose int

const (
	forQueries purpose = iota
	forReplication
)

// connectFailure turns the failure of a connection to the source into what a
// person can act on. It never contains the password: pgx puts none in its errors,
// and of those only the server's own messages are repeated.
func (s source) connectFailure(err error, why purpose) *contract.AgentError {
	if pg := serverError(err); pg != nil {
		return s.refusal(pg, why)
	}
	if e := s.networkFailure(err); e != nil {
		return e
	}
	return s.protocolFailure(err)
}

// serverError is the last error that a server sent: with sslmode=prefer there is
// one for the attempt with TLS and one for that without.
func serverError(err error) *pgconn.PgError {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all := joined.Unwrap()
		for i := len(all) - 1; i >= 0; i-- {
			if pg := serverError(all[i]); pg != nil {
				return pg
			}
		}
		return nil
	}
	if pg, ok := err.(*pgconn.PgError); ok {
		return pg
	}
	if inner := errors.Unwrap(err); inner != nil {
		return serverError(inner)
	}
	return nil
}

// refusal explains an error that the source, or a pooler before it, answered with.
// Codes are of Postgres' errcodes.txt; texts of auth.c, postinit.c, walsender.c
// and proc.c, which are the same from 14 to 18 unless said.
func (s source) refusal(pg *pgconn.PgError, why purpose) *contract.AgentError {
	user, database := s.config.User, s.config.Database
	switch {
	case pg.Code == "28P01":
		if s.password == "" {
			return fail(contract.AgentErrPassword, "set PGPASSWORD, or use --password-stdin",
				"%s asks for a password of the role %q and none was given", s.address(), user)
		}
		if slices.ContainsFunc(s.tls, func(t tlsFile) bool { return t.parameter == "sslcert" }) {
			// clientcert=verify-full says the same of a certificate (ClientAuthentication in auth.c).
			return fail(contract.AgentErrPassword, "check the password, and that the client certificate names that role",
				"%s does not take the password of the role %q, or not with that certificate", s.address(), user)
		}
		return fail(contract.AgentErrPassword, "check PGPASSWORD, the URL's password or standard input; the URL's own comes first",
			"%s does not take the password of the role %q", s.address(), user)
	case pg.Code == "28000" && strings.Contains(pg.Message, "no pg_hba.conf entry for replication"):
		return fail(contract.AgentErrNoReplication, hbaHint("replication", user, pg.Message)+orLogical,
			"the source's pg_hba.conf lets nobody replicate as %q from here: %s", user, pg.Message)
	case pg.Code == "28000" && strings.Contains(pg.Message, "no pg_hba.conf entry"):
		return fail(contract.AgentErrPrivilege, hbaHint(database, user, pg.Message),
			"the source's pg_hba.conf lets nobody in as %q from here: %s", user, pg.Message)
	case pg.Code == "28000" && strings.Contains(pg.Message, "client certificate"), pg.Code == "28000" && strings.Contains(pg.Message, "certificate authentication failed"):
		return fail(contract.AgentErrPrivilege, hintClientCert, "%s refuses the role %q: %s", s.address(), user, pg.Message)
	case pg.Code == "28000":
		return fail(contract.AgentErrPrivilege, "", "%s refuses the role %q: %s", s.address(), user, pg.Message)
	case pg.Code == "3D000" && why == forQueries:
		return fail(contract.AgentErrPrivilege, "name an existing database in the URL; \"postgres\" exists nearly everywhere",
			"the source has no database %q", database)
	case pg.Code == "42501" && why == forQueries:
		return fail(contract.AgentErrPrivilege, fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s", quoteIdent(database), quoteIdent(user)),
			"the role %q may not connect to the database %q: %s", user, database, pg.Message)
	case pg.Code == "42501":
		return fail(contract.AgentErrNoReplication,
			fmt.Sprintf("as a superuser of the source: ALTER ROLE %s REPLICATION", quoteIdent(user))+orLogical,
			"the role %q may not copy the source: it lacks the attribute REPLICATION", user)
	case pg.Code == "53300" && strings.Contains(pg.Message, "max_wal_senders"):
		return senderFailure(pg)
	case pg.Code == "53300":
		return fail(contract.AgentErrUnreachable, "try again when fewer clients are connected, or raise max_connections",
			"%s has no connection left: %s", s.address(), pg.Message)
	case pg.Code == "57P03":
		return fail(contract.AgentErrUnreachable, "wait until it is up; a standby needs hot_standby=on",
			"%s does not accept connections now: %s", s.address(), pg.Message)
	case why == forReplication:
		return pooler(pg.Message)
	}
	return fail(contract.AgentErrUnreachable, "", "%s refuses the connection: %s (%s)", s.address(), pg.Message, pg.Code)
}

// orLogical ends a hint where a provider may allow no replication at all.
const orLogical = "; or copy one database of it by a dump, with --logical"

// senderFailure is for a source whose WAL senders are off or all in use
// (InitProcess in proc.c). pg_basebackup needs two.
func senderFailure(pg *pgconn.PgError) *contract.AgentError {
	if strings.Contains(pg.Message, "(currently 0)") {
		return fail(contract.AgentErrNoReplication,
			"set wal_level=replica and max_wal_senders=4 on the source and restart it"+orLogical,
			"the source has replication switched off: max_wal_senders is 0")
	}
	return fail(contract.AgentErrNoReplication,
		"end a replication connection or raise max_wal_senders; a copy needs two, one for files and one for WAL",
		"all WAL senders of the source are in use: %s", pg.Message)
}

func pooler(said string) *contract.AgentError {
	return fail(contract.AgentErrNoReplication,
		"give the address of the Postgres server itself, not of a pooler or proxy in front of it"+orLogical,
		"the source does not speak the replication protocol, as if it were a connection pooler: %s", said)
}

// fullPool explains a server that answered a moment ago and lets a replication connection
// wait: PgBouncer, from 1.23 on, takes one to the server for each, and queues clients
// where its pool has none left.
func (s source) fullPool(err error) error {
	var known *contract.AgentError
	if !errors.As(err, &known) || known.Hint != hintSilent {
		return err
	}
	return fail(contract.AgentErrNoReplication,
		"give the address of the Postgres server itself, or raise the pool's size: a copy needs three connections at a time",
		"%s answers queries and lets a replication connection wait for more than %s, as a connection pooler does whose pool is full",
		s.address(), connectTimeout)
}

// hbaHint is the exact line that pg_hba.conf lacks. The server names the address
// that it saw and whether the connection was encrypted.
func hbaHint(database, user, message string) string {
	kind, address := "host", "all"
	if _, after, ok := strings.Cut(message, `host "`); ok {
		if host, _, ok := strings.Cut(after, `"`); ok {
			if ip, err := netip.ParseAddr(host); err == nil {
				address = netip.PrefixFrom(ip, ip.BitLen()).String()
			} else {
				kind, address = "local", ""
			}
		}
	}
	if database != "replication" {
		database = quoteHBA(database)
	}
	line := strings.Join(strings.Fields(strings.Join([]string{kind, database, quoteHBA(user), address, "scram-sha-256"}, " ")), "  ")
	return fmt.Sprintf("add this line to the source's pg_hba.conf and run SELECT pg_reload_conf(): %s", line)
}

// networkFailure explains a failure below the Postgres protocol, nil if it is none.
func (s source) networkFailure(err error) *contract.AgentError {
	address := s.address()
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fail(contract.AgentErrUnreachable,
			"is the server running, and does its listen_addresses include that address? \"localhost\" here is the helper container; use host.docker.internal, or --network",
			"connection to %s was refused", address)
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		return s.noRoute(err)
	case errors.As(err, &dns) && !dns.IsTimeout:
		return fail(contract.AgentErrUnreachable,
			"names are looked up from inside a container; a container of a Docker network has its name only there: --network",
			"there is no host %q", s.config.Host)
	case errors.Is(err, os.ErrNotExist) && strings.HasPrefix(s.config.Host, "/"):
		return fail(contract.AgentErrUnreachable, "give a host name: a socket of another machine or container is not here",
			"there is no server socket in %s", s.config.Host)
	case pgconn.Timeout(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT), isTimeout(err):
		return fail(contract.AgentErrUnreachable, hintSilent, "%s does not answer within %s", address, connectTimeout)
	}
	return nil
}

const hintSilent = "a firewall may drop the packets, or there is no Postgres server on that port; --network names the Docker network to go through"

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// noRoute is for a container that cannot reach any address of the host, most
// often because Docker's default bridge has no IPv6.
func (s source) noRoute(err error) *contract.AgentError {
	hint := "--network names the Docker network to go through"
	var op *net.OpError
	if errors.As(err, &op) {
		if tcp, ok := op.Addr.(*net.TCPAddr); ok && tcp.IP.To4() == nil {
			hint = "that is an IPv6 address and the helper container has no IPv6 route: use an IPv4 address of the source, or --network with a network that has IPv6 (or host)"
		}
	}
	return fail(contract.AgentErrUnreachable, hint, "there is no route to %s", s.address())
}

// protocolFailure is for what answers but not as Postgres does, or not with the
// TLS asked for.
func (s source) protocolFailure(err error) *contract.AgentError {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	var remote *net.OpError
	switch {
	case errors.As(err, &alert), errors.As(err, &remote) && remote.Op == "remote error":
		return fail(contract.AgentErrPrivilege, hintClientCert, "%s does not take the client certificate: %s", s.address(), lastLine(err))
	case errors.As(err, &unknown), errors.As(err, &name), errors.As(err, &invalid):
		return fail(contract.AgentErrUnreachable, "name the file of its authority with --ssl-root-cert; sslmode=require encrypts and does not verify",
			"the TLS certificate of %s is not trusted: %s", s.address(), lastLine(err))
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return fail(contract.AgentErrUnreachable, "sslmode=disable connects without, over a network that you trust",
			"%s does not offer TLS, which sslmode demands", s.address())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fail(contract.AgentErrUnreachable, "is there a Postgres server on that port?",
			"%s closed the connection before it said anything that Postgres says", s.address())
	}
	return fail(contract.AgentErrUnreachable, "is there a Postgres server on that port?",
		"%s does not answer as a Postgres server does: %s", s.address(), lastLine(err))
}

const hintClientCert = "give one that names the role and that the source's ssl_ca_file trusts, with --ssl-cert and --ssl-key"

// lastLine is the last line of an error's text, without what precedes it.
func lastLine(err error) string {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
