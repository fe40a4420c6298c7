package engine

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// ParseSource splits a Postgres connection URL into the source without its
// password and the password. A password given apart (PGPASSWORD, standard input)
// stands in where the URL has none.
//
// It fails with KindInvalid, and never repeats the URL's password.
func ParseSource(raw, password string) (contract.Source, error) {
	invalid := func(cause string) error {
		return &Error{Kind: KindInvalid, Object: "--from", Cause: cause,
			Hint: "write it as postgres://USER@HOST:PORT/DATABASE"}
	}
	if err := notAServer(raw); err != nil {
		return contract.Source{}, err
	}
	u, err := url.Parse(raw)
	if err != nil {
		// net/url's error repeats its input, and with it the password.
		return contract.Source{}, invalid("is not a URL")
	}
	switch {
	case u.Scheme != "postgres" && u.Scheme != "postgresql":
		return contract.Source{}, invalid("does not start with postgres://")
	case u.Hostname() == "":
		return contract.Source{}, invalid("names no host")
	case u.User.Username() == "":
		return contract.Source{}, invalid("names no user")
	}
	query := u.Query()
	if own, ok := u.User.Password(); ok {
		password = own
	}
	if own := query.Get("password"); own != "" {
		password = own
		query.Del("password")
	}
	clean := *u
	clean.User = url.User(u.User.Username())
	clean.RawQuery = query.Encode()
	clean.Fragment, clean.RawFragment = "", ""
	return contract.Source{URL: clean.String(), Password: password}, nil
}

// TLSFiles are the paths of PEM files on the user's machine.
type TLSFiles struct{ RootCert, Cert, Key string }

// AddTLS reads the files for TLS into the source: a helper container sees none of the
// user's. files come first, and then those that the URL names in libpq's way.
//
// It fails with KindInvalid for a file that cannot be read, and where the URL's sslmode
// would go on without TLS, or without a check, all the same.
func AddTLS(source *contract.Source, files TLSFiles) error {
	u, err := url.Parse(source.URL)
	if err != nil {
		return err
	}
	query := u.Query()
	for _, f := range []struct {
		flag, parameter, path string
		into                  *string
	}{
		{"--ssl-root-cert", "sslrootcert", files.RootCert, &source.RootCert},
		{"--ssl-cert", "sslcert", files.Cert, &source.Cert},
		{"--ssl-key", "sslkey", files.Key, &source.Key},
	} {
		named := query.Get(f.parameter)
		if f.path == "" && named != "system" {
			f.path = named
		}
		if f.path == "" {
			continue
		}
		query.Del(f.parameter)
		text, err := os.ReadFile(f.path)
		if err == nil && !strings.Contains(string(text), "-----BEGIN ") {
			err = fmt.Errorf("%s: holds no PEM", f.path)
		}
		if err != nil {
			return &Error{Kind: KindInvalid, Object: f.flag, Cause: err.Error(), Hint: "name a file on this machine"}
		}
		*f.into = string(text)
	}
	if (source.Cert == "") != (source.Key == "") {
		return &Error{Kind: KindInvalid, Object: "--ssl-cert", Cause: "a client's certificate and its key belong together",
			Hint: "give both --ssl-cert and --ssl-key"}
	}
	if err := checkPair(source); err != nil {
		return err
	}
	if err := demandTLS(query, source); err != nil {
		return err
	}
	u.RawQuery = query.Encode()
	source.URL = u.String()
	return nil
}

// checkPair refuses what no server could be shown, before anything is asked.
func checkPair(source *contract.Source) error {
	if source.Cert == "" {
		return nil
	}
	// PKCS#8 and the older form of OpenSSL's, whose own decryption Go gave up.
	if strings.Contains(source.Key, "BEGIN ENCRYPTED PRIVATE KEY") || strings.Contains(source.Key, "Proc-Type: 4,ENCRYPTED") {
		return &Error{Kind: KindInvalid, Object: "--ssl-key", Cause: "the key has a passphrase",
			Hint: "take it off, into a file that only you can read: openssl pkey -in KEY -out FILE"}
	}
	if _, err := tls.X509KeyPair([]byte(source.Cert), []byte(source.Key)); err != nil {
		return &Error{Kind: KindInvalid, Object: "--ssl-key", Cause: strings.TrimPrefix(err.Error(), "tls: "),
			Hint: "give the key of the certificate that --ssl-cert names"}
	}
	return nil
}

// demandTLS sees to it that who gives certificates gets TLS: libpq's default would go on
// without.
func demandTLS(query url.Values, source *contract.Source) error {
	mode := query.Get("sslmode")
	switch {
	case source.RootCert == "" && source.Cert == "":
		return nil
	case mode == "" && source.RootCert != "":
		query.Set("sslmode", "verify-full")
	case mode == "":
		query.Set("sslmode", "require")
	case mode == "disable" || mode == "allow" || mode == "prefer":
		return &Error{Kind: KindInvalid, Object: "--from", Cause: fmt.Sprintf("sslmode=%s would go on without TLS, though certificates are given", mode),
			Hint: "write sslmode=verify-full, or leave it out"}
	}
	return nil
}

// loopback reports whether a source's host names the machine that asks: in a
// helper container that would be the container itself.
func loopback(source contract.Source) bool {
	u, err := url.Parse(source.URL)
	if err != nil {
		return false
	}
	host := u.Hostname()
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// describe gives a source as the manifest keeps it: "host:port/database".
func describe(p contract.Probe) string {
	return fmt.Sprintf("%s/%s", net.JoinHostPort(p.Host, fmt.Sprint(p.Port)), p.Database)
}

// connectionURL gives the URL of a branch's published port, with a password where one
// is given.
func connectionURL(b Branch, password string) string {
	host := b.HostIP
	if host == "" || host == "0.0.0.0" || host == "::" {
		host = "127.0.0.1"
	}
	u := url.URL{
		Scheme: "postgres",
		Host:   net.JoinHostPort(host, fmt.Sprint(b.Port)),
	}
	if b.Manifest != nil {
		u.User = url.User(b.Manifest.User)
		if password != "" {
			u.User = url.UserPassword(b.Manifest.User, password)
		}
		u.Path = "/" + b.Manifest.Database
	}
	return u.String()
}
