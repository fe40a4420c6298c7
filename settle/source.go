package settle

import (
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Bounds on a connection to a source: one address, and all addresses and TLS
// attempts together.
const (
	dialTimeout    = 5 * time.Second
	connectTimeout = 10 * time.Second
)

// source is where a copy comes from. Its URL carries no password.
type source struct {
	url      string
	password string
	config   *pgx.ConnConfig
}

// clientOnly are libpq's parameters that pgx does not know and would send to the
// server as settings. They concern libpq's own sockets and libraries.
var clientOnly = []string{
	"hostaddr", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
	"gssencmode", "gsslib", "gssdelegation", "sslcompression", "sslcrl", "sslcrldir", "requirepeer",
	"ssl_min_protocol_version", "ssl_max_protocol_version", "load_balance_hosts", "fallback_application_name",
	"sslkeylogfile", "scram_client_key", "scram_server_key", "replication",
}

// parseSource checks the URL and takes any password out of it: the URL becomes an
// argument of pg_basebackup.
func parseSource(s contract.Source) (source, error) {
	bad := func(problem string) error {
		return fail(contract.AgentErrUnreachable, "write it as postgres://USER@HOST:PORT/DATABASE",
			"the source's URL %s", problem)
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return source{}, bad("cannot be read") // the error would quote it
	}
	if u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return source{}, bad("is not a Postgres URL")
	}
	query := u.Query()
	for _, key := range []string{"password", "passfile", "service", "servicefile", "replication"} {
		query.Del(key)
	}
	user := u.User.Username()
	if user == "" {
		user = query.Get("user")
	}
	if user == "" {
		return source{}, bad("names no user")
	}
	query.Del("user")
	u.User = url.User(user)
	if !query.Has("connect_timeout") {
		query.Set("connect_timeout", strconv.Itoa(int(connectTimeout/time.Second)))
	}
	// libpq decodes %20 but not + (conninfo_uri_decode in fe-connect.c).
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")

	config, err := pgx.ParseConfig(u.String())
	if err != nil {
		return source{}, bad("cannot be used: " + parseProblem(err))
	}
	config.Password = s.Password
	config.ConnectTimeout = dialTimeout
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	for _, key := range clientOnly {
		delete(config.RuntimeParams, key)
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "pgbranch"
	}
	return source{url: u.String(), password: s.Password, config: config}, nil
}

// parseProblem is pgx's reason without the connection string that it quotes.
func parseProblem(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		return text[i+len("`: "):]
	}
	return "a parameter is not valid"
}

// replication is the configuration of a physical replication connection.
func (s source) replication() *pgx.ConnConfig {
	config := s.config.Copy()
	config.RuntimeParams["replication"] = "true"
	return config
}

// address is "host:port" for messages.
func (s source) address() string {
	if strings.HasPrefix(s.config.Host, "/") {
		return s.config.Host
	}
	return net.JoinHostPort(s.config.Host, strconv.Itoa(int(s.config.Port)))
}
