package engine

import (
	"fmt"
	"net"
	"net/url"
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
