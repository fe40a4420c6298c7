package settle

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
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
	tls      []tlsFile
	config   *pgx.ConnConfig
	// files are those that config names. pgx reads a client's certificate and key at each
	// connection (prepareTLSConfigForConnect in pgconn/config.go), so they stay open.
	files []*os.File
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

	clean := u.String()
	tls := tlsFiles(s)
	var files []*os.File
	for _, t := range tls {
		f, err := memoryFile(t.parameter, t.text, account{})
		if err != nil {
			return source{}, err
		}
		files = append(files, f)
		query.Set(t.parameter, fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	}
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
	return source{url: clean, password: s.Password, tls: tls, config: config, files: files}, nil
}

// tlsFile is one file that libpq and pgx read for TLS.
type tlsFile struct{ parameter, environment, text string }

// tlsFiles are those that came along. What the URL says of such files is of another
// machine, and was read there.
func tlsFiles(s contract.Source) []tlsFile {
	all := []tlsFile{
		{"sslrootcert", "PGSSLROOTCERT", s.RootCert}, {"sslcert", "PGSSLCERT", s.Cert}, {"sslkey", "PGSSLKEY", s.Key},
	}
	return slices.DeleteFunc(all, func(t tlsFile) bool { return t.text == "" })
}

// give hands the password and the files for TLS to a child, in memory only. release is
// for when the child has started.
func (s source) give(cmd *exec.Cmd, a account) (release func(), err error) {
	release = func() {
		for _, f := range cmd.ExtraFiles {
			f.Close()
		}
	}
	add := func(variable string, f *os.File, err error) error {
		if err == nil {
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
			// The first of ExtraFiles is descriptor 3.
			cmd.Env = append(cmd.Env, fmt.Sprintf("%s=/proc/self/fd/%d", variable, 2+len(cmd.ExtraFiles)))
		}
		return err
	}
	if s.password != "" {
		f, passErr := passFile(s.password, a)
		err = add("PGPASSFILE", f, passErr)
	}
	for _, t := range s.tls {
		if err == nil {
			f, fileErr := memoryFile(t.parameter, t.text, a)
			err = add(t.environment, f, fileErr)
		}
	}
	if err != nil {
		release()
	}
	return release, err
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
