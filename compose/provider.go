package compose

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/pgbranch/docker-pgbranch/engine"
)

// ProviderType is the `type:` of a provider service that is a branch: Compose runs
// docker-pgbranch for it.
const ProviderType = "pgbranch"

// Messages to Compose, one JSON object each on standard output. Anything else there makes
// Compose give up (compose pkg/compose/plugins.go, executePlugin).
const (
	messageInfo   = "info"
	messageError  = "error"
	messageSetEnv = "setenv"
	// messageRawSetEnv sets a variable without the service's name before it. Compose knows
	// it from 5.2 on, and gives up at it before.
	messageRawSetEnv = "rawsetenv"
)

// Reporter writes messages to Compose.
type Reporter struct{ enc *json.Encoder }

// NewReporter makes a Reporter.
func NewReporter(w io.Writer) *Reporter {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return &Reporter{enc}
}

func (r *Reporter) send(kind, text string) error {
	return r.enc.Encode(struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}{kind, text})
}

// Info shows a line while Compose waits.
func (r *Reporter) Info(format string, args ...any) error {
	return r.send(messageInfo, fmt.Sprintf(format, args...))
}

// Error ends the service's command with a text that Compose shows.
func (r *Reporter) Error(text string) error { return r.send(messageError, text) }

// Export gives the dependants their variables. Compose puts the service's name in
// capitals before each; where that is no name that a shell could read, and Compose can,
// they are set once more with '_' for what a shell does not take.
func (r *Reporter) Export(service string, s engine.Service, raw bool) error {
	vars := [][2]string{
		{"URL", serviceURL(s)}, {"HOST", s.Host}, {"PORT", strconv.Itoa(s.Port)},
		{"USER", s.User}, {"PASSWORD", s.Password}, {"DATABASE", s.Database},
	}
	for _, v := range vars {
		if err := r.send(messageSetEnv, v[0]+"="+v[1]); err != nil {
			return err
		}
		if raw {
			if err := r.send(messageRawSetEnv, ShellName(service)+"_"+v[0]+"="+v[1]); err != nil {
				return err
			}
		}
	}
	return nil
}

func serviceURL(s engine.Service) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(s.User, s.Password),
		Host: s.Host + ":" + strconv.Itoa(s.Port), Path: "/" + s.Database}
	return u.String()
}

var notShell = regexp.MustCompile(`[^A-Z0-9_]`)

// ShellName is a service's name as the beginning of a variable that a shell can read.
func ShellName(service string) string {
	return notShell.ReplaceAllString(strings.ToUpper(service), "_")
}

// NeedsRaw says whether Compose's own variables for the service are out of a shell's
// reach.
func NeedsRaw(service string) bool { return ShellName(service) != strings.ToUpper(service) }

// KnowsRaw says whether a version of Compose, such as "2.40.3-3" or "v5.2.0", knows
// rawsetenv. One that cannot be read does not.
func KnowsRaw(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(strings.TrimSpace(version), "v"), "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major > 5 || major == 5 && minor >= 2
}

// parameter describes one option of a provider service.
type parameter struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Required    bool   `json:"required"`
	Type        string `json:"type"`
	Default     string `json:"default,omitempty"`
}

type parameters struct {
	Parameters []parameter `json:"parameters"`
}

// Names of a provider service's options.
const (
	OptionSeed      = "seed"
	OptionBranch    = "branch"
	OptionUser      = "user"
	OptionDatabase  = "database"
	OptionPassword  = "password"
	OptionPublish   = "publish"
	OptionCow       = "cow"
	OptionTTL       = "ttl"
	OptionEphemeral = "ephemeral"
	OptionContext   = "context"
)

// Metadata is the answer to `compose metadata`. Compose passes on only the options that
// it lists for a command, and calls stop, from 5.2 on, only where it is listed.
func Metadata() any {
	which := []parameter{
		{Name: OptionBranch, Description: "What the branch is called after PROJECT_SERVICE_, as in ${BRANCH:-main}", Type: "string"},
		{Name: OptionContext, Description: "Docker context of the engine that runs it; Compose does not pass on --context", Type: "string"},
	}
	up := append([]parameter{
		{Name: OptionSeed, Description: "Seed to branch from, NAME or NAME@GENERATION", Required: true, Type: "string"},
		{Name: OptionUser, Description: "Role that the dependants use, by default that of the seed's source", Type: "string"},
		{Name: OptionDatabase, Description: "Database that the dependants use, by default that of the seed's source", Type: "string"},
		{Name: OptionPassword, Description: "Password of that role in this branch, by default one of the branch's own", Type: "string"},
		{Name: OptionPublish, Description: "PORT or IP:PORT on the engine's host, by default a free port of 127.0.0.1", Type: "string"},
		{Name: OptionCow, Description: "How to copy on write: auto, file or off", Type: "string", Default: "auto"},
		{Name: OptionTTL, Description: "How long the branch is wanted, as in 24h", Type: "string"},
		{Name: OptionEphemeral, Description: "Whether down removes the branch's data", Type: "boolean", Default: "false"},
	}, which...)
	down := append([]parameter{
		{Name: OptionEphemeral, Description: "Whether down removes the branch's data", Type: "boolean", Default: "false"},
	}, which...)
	return struct {
		Description string     `json:"description"`
		Up          parameters `json:"up"`
		Down        parameters `json:"down"`
		Stop        parameters `json:"stop"`
	}{"A copy-on-write branch of Postgres", parameters{up}, parameters{down}, parameters{which}}
}
