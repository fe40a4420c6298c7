package engine

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// ParseSettings reads the values of --conf, NAME=VALUE each, into a branch's own
// settings. Names are in lower case, as the server compares them.
//
// It fails with KindInvalid, naming the setting.
func ParseSettings(values []string) (map[string]string, error) {
	settings := map[string]string{}
	for _, v := range values {
		name, value, ok := strings.Cut(v, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		invalid := func(cause string) error {
			return &Error{Kind: KindInvalid, Object: fmt.Sprintf("--conf %q", v), Cause: cause, Hint: "write it like work_mem=64MB"}
		}
		if !ok {
			return nil, invalid("has no value")
		}
		if err := contract.CheckSetting(name, value); err != nil {
			return nil, invalid(err.Error())
		}
		if _, twice := settings[name]; twice {
			return nil, invalid(name + " is set twice")
		}
		settings[name] = value
	}
	return settings, nil
}

// badSetting matches the server's complaint about one setting (guc.c, guc-file.l), and
// what it says of it.
var badSetting = regexp.MustCompile(`(?:LOG|FATAL):  ((?:invalid value for parameter|unrecognized configuration parameter|parameter|-?[0-9.]+[ A-Za-z0-9]* is outside the valid range for parameter) "([A-Za-z0-9_.$]+)".*)`)

// blameSetting turns the failure of a branch's start into one that names the setting of
// its own that the server did not take. Any other error passes through.
func blameSetting(err error, settings map[string]string) error {
	var failure *Error
	if !errors.As(err, &failure) {
		return err
	}
	for _, line := range failure.Log {
		m := badSetting.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if value, ours := settings[strings.ToLower(m[2])]; ours {
			return &Error{Kind: KindInvalid, Object: fmt.Sprintf("--conf %q", m[2]+"="+value),
				Cause: "Postgres does not take it: " + m[1], Hint: "leave it out or correct it; nothing was left behind"}
		}
	}
	return err
}
