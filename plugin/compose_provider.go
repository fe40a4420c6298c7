package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgbranch/docker-pgbranch/compose"
	"github.com/pgbranch/docker-pgbranch/engine"
)

func newComposeMetadataCommand(dockerCLI command.Cli) *cobra.Command {
	return &cobra.Command{
		Use:    "metadata",
		Short:  "Describe the provider service to Compose",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			enc := json.NewEncoder(dockerCLI.Out())
			enc.SetIndent("", "  ")
			return enc.Encode(compose.Metadata())
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

// ProviderArgs gives the arguments of a run without a plugin's name, as Compose does for
// a provider service, the form that docker gives them. Compose tells its provider
// nothing of --context, so an option of the service stands in for it.
func ProviderArgs(args []string) []string {
	with := []string{"docker"}
	if len(args) > 1 && args[0] == "compose" {
		for _, arg := range args {
			if name, ok := strings.CutPrefix(arg, "--"+compose.OptionContext+"="); ok && name != "" {
				with = append(with, "--context", name)
			}
		}
	}
	return append(append(with, "pgbranch"), args...)
}

// providerOptions are the options of a provider service.
type providerOptions struct {
	seed, branch, user, database, password, publish, cow, ttl, ephemeral, context string
}

// runProvider answers Compose: args are the command, its options and the service's name.
// Failures are messages as well, since Compose drops standard error.
func runProvider(ctx context.Context, dockerCLI command.Cli, project string, args []string) error {
	report := compose.NewReporter(dockerCLI.Out())
	err := provide(ctx, dockerCLI, report, project, args)
	if err == nil {
		return nil
	}
	_ = report.Error(message(err))
	return exitError(ctx, err)
}

func provide(ctx context.Context, dockerCLI command.Cli, report *compose.Reporter, project string, args []string) error {
	var o providerOptions
	flags := pflag.NewFlagSet(args[0], pflag.ContinueOnError)
	for name, value := range map[string]*string{
		compose.OptionSeed: &o.seed, compose.OptionBranch: &o.branch, compose.OptionUser: &o.user,
		compose.OptionDatabase: &o.database, compose.OptionPassword: &o.password, compose.OptionPublish: &o.publish,
		compose.OptionCow: &o.cow, compose.OptionTTL: &o.ttl, compose.OptionEphemeral: &o.ephemeral,
		compose.OptionContext: &o.context,
	} {
		flags.StringVar(value, name, "", "")
	}
	invalid := func(object, cause string) error {
		return &engine.Error{Kind: engine.KindInvalid, Object: object, Cause: cause, Hint: "docs/compose.md lists the options of the provider"}
	}
	if err := flags.Parse(args[1:]); err != nil {
		return invalid("provider "+compose.ProviderType, err.Error())
	}
	if project == "" || flags.NArg() != 1 {
		return invalid("provider "+compose.ProviderType, "is to be run by Compose")
	}
	service := flags.Arg(0)
	ephemeral := false
	if o.ephemeral != "" {
		var err error
		if ephemeral, err = strconv.ParseBool(o.ephemeral); err != nil {
			return invalid("option ephemeral", strconv.Quote(o.ephemeral)+" is neither true nor false")
		}
	}
	branch := project + "_" + service
	if o.branch != "" {
		branch += "_" + o.branch
	}
	eng := newEngine(dockerCLI)
	switch args[0] {
	case "up":
		return provideUp(ctx, dockerCLI, report, engine.ServiceOptions{Project: project, Service: service, Branch: branch}, o)
	case "stop":
		return eng.ServiceStop(ctx, branch)
	case "down":
		return eng.ServiceDown(ctx, branch, ephemeral)
	}
	return invalid("provider "+compose.ProviderType, fmt.Sprintf("does not know the command %q", args[0]))
}

func provideUp(ctx context.Context, dockerCLI command.Cli, report *compose.Reporter, s engine.ServiceOptions, o providerOptions) error {
	if err := required("option seed", o.seed, "name the seed: options: {seed: NAME}"); err != nil {
		return err
	}
	s.From, s.Cow, s.User, s.Database, s.Password, s.Timeout = o.seed, o.cow, o.user, o.database, o.password, readyTimeout
	var err error
	if o.ttl != "" {
		if s.TTL, err = time.ParseDuration(o.ttl); err != nil || s.TTL <= 0 {
			return &engine.Error{Kind: engine.KindInvalid, Object: "option ttl", Cause: strconv.Quote(o.ttl) + " is no duration", Hint: "write one such as 24h"}
		}
	}
	if o.publish != "" {
		if s.Publish, err = engine.ParsePublish(o.publish); err != nil {
			return err
		}
	}
	s.Progress = func(p engine.Progress) { _ = report.Info("%s %s", p.Stage, p.Message) }
	// Which engine this is cannot be taken for granted: see ProviderArgs.
	_ = report.Info("branch %s of %s on %s", s.Branch, o.seed, dockerCLI.Client().DaemonHost())
	up, err := newEngine(dockerCLI).ServiceUp(ctx, s)
	if err != nil {
		return err
	}
	_ = report.Info("branch %s of %s, on port %d of %s", up.Branch.Branch, up.Branch.SeedRef(), up.Branch.Port, up.Branch.HostIP)
	raw := compose.NeedsRaw(s.Service) && compose.KnowsRaw(composeVersion(ctx))
	return report.Export(s.Service, up, raw)
}

// envComposeVersion says which Compose runs the provider where that cannot be found out.
const envComposeVersion = "PGBRANCH_COMPOSE_VERSION"

// composeVersion asks the Compose that runs this provider for its version: it passes none
// on. Where it cannot be told which program that is, docker's own Compose is asked.
func composeVersion(ctx context.Context) string {
	if v := os.Getenv(envComposeVersion); v != "" {
		return v
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	words := []string{"docker", "compose", "version", "--short"}
	if parent, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", os.Getppid())); err == nil && filepath.Base(parent) == "docker-compose" {
		words = []string{parent, "version", "--short"}
	}
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).Output()
	if err != nil {
		return ""
	}
	return string(out)
}
