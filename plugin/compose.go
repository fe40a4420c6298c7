package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli-plugins/metadata"
	cliplugin "github.com/docker/cli/cli-plugins/plugin"
	"github.com/docker/cli/cli-plugins/socket"
	"github.com/docker/cli/cli/command"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgbranch/docker-pgbranch/compose"
	"github.com/pgbranch/docker-pgbranch/engine"
)

// composeOptions are Compose's own global flags.
type composeOptions struct {
	source compose.Source
	// flags are parsed only to find where the command begins, and passed on as they came.
	flags *pflag.FlagSet
}

func newComposeCommand(dockerCLI command.Cli) *cobra.Command {
	var opts composeOptions
	cmd := &cobra.Command{
		Use:   "compose [OPTIONS] COMMAND",
		Short: "Run Compose with the databases as branches",
		Long: `Run docker compose with the override file that "docker pgbranch compose init" has
written, and everything else as it stands. A project whose own files make the branches
needs no override. Before a database would come up on other data than its file says,
this refuses.
` + exitHelp,
		Example: `  docker pgbranch compose init --seed shop
  docker pgbranch compose up -d
  BRANCH=feature-x docker pgbranch compose up -d`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			if cliplugin.RunningStandalone() {
				return runProvider(cmd.Context(), dockerCLI, opts.source.Name, args)
			}
			return exitError(cmd.Context(), runCompose(cmd.Context(), dockerCLI, opts, args))
		},
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.PersistentFlags()
	flags.StringArrayVarP(&opts.source.Files, "file", "f", nil, "Compose configuration files")
	flags.StringVar(&opts.source.ProjectDir, "project-directory", "", "Specify an alternate working directory")
	flags.StringVarP(&opts.source.Name, "project-name", "p", "", "Project name")
	flags.StringArrayVar(&opts.source.EnvFiles, "env-file", nil, "Specify an alternate environment file")
	flags.StringArrayVar(&opts.source.Profiles, "profile", nil, "Specify a profile to enable")
	own := cmd.Flags()
	own.Bool("all-resources", false, "Include all resources, even those not used by services")
	own.String("ansi", "auto", "Control when to print ANSI control characters")
	own.Bool("compatibility", false, "Run compose in backward compatibility mode")
	own.Bool("dry-run", false, "Execute command in dry run mode")
	own.Int("parallel", -1, "Control max parallelism, -1 for unlimited")
	own.String("progress", "", "Set type of progress output (auto, tty, plain, json, quiet)")
	own.SetInterspersed(false)
	opts.flags = own
	cmd.AddCommand(newComposeInitCommand(dockerCLI, &opts.source), newComposeMetadataCommand(dockerCLI))
	return cmd
}

// runCompose runs docker compose with the override, where there is one.
func runCompose(ctx context.Context, dockerCLI command.Cli, opts composeOptions, args []string) error {
	files, dir, err := opts.source.Find()
	if err != nil {
		return err
	}
	override, err := opts.source.OverridePath()
	if err != nil {
		return err
	}
	source := opts.source
	source.Files, source.ProjectDir = files, dir
	if _, err := os.Stat(override); err == nil && !slices.Contains(files, override) {
		source.Files = append(source.Files, override)
	}
	project, err := source.Load(ctx)
	if err != nil {
		return err
	}
	if !project.HasBranches() {
		return &engine.Error{Kind: engine.KindInvalid, Object: fmt.Sprintf("compose project %q", project.Name),
			Cause: "has no branch in its files", Hint: "docker pgbranch compose init --seed NAME writes " + compose.OverrideFile}
	}
	if starts(args[0]) {
		if err := checkVolumes(ctx, dockerCLI, project); err != nil {
			return err
		}
	}
	return execCompose(ctx, dockerCLI, source, opts.flags, args)
}

// starts says whether a command of Compose may start containers.
func starts(verb string) bool {
	return slices.Contains([]string{"up", "create", "run", "start", "restart", "watch"}, verb)
}

// checkVolumes refuses to go on over a volume that is not what the files ask for.
func checkVolumes(ctx context.Context, dockerCLI command.Cli, project *compose.Project) error {
	eng := newEngine(dockerCLI)
	for _, key := range project.BranchVolumes() {
		b, err := eng.Branch(ctx, project.Volumes[key].Name)
		if engine.KindOf(err) == engine.KindNotFound {
			continue
		}
		if err != nil {
			return err
		}
		for _, note := range project.VolumeDrift(key, b) {
			return &engine.Error{Kind: engine.KindConflict, Object: fmt.Sprintf("branch %q", b.Branch), Cause: note.Detail, Hint: note.Fix}
		}
	}
	return nil
}

// execCompose hands over to docker compose, and ends as it ends.
func execCompose(ctx context.Context, dockerCLI command.Cli, source compose.Source, flags *pflag.FlagSet, args []string) error {
	docker := os.Getenv(metadata.ReexecEnvvar)
	if docker == "" {
		docker = "docker"
	}
	words := []string{"compose", "--project-directory", source.ProjectDir}
	for _, f := range source.Files {
		words = append(words, "-f", f)
	}
	flags.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "file", "project-directory":
		case "env-file", "profile":
			for _, v := range f.Value.(pflag.SliceValue).GetSlice() {
				words = append(words, "--"+f.Name, v)
			}
		default:
			words = append(words, "--"+f.Name+"="+f.Value.String())
		}
	})
	cmd := exec.CommandContext(ctx, docker, append(words, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, metadata.ReexecEnvvar+"=") || strings.HasPrefix(v, socket.EnvKey+"=")
	})
	// A flag of docker's own goes no further than docker itself.
	if name := dockerCLI.CurrentContext(); name != command.DefaultContextName {
		cmd.Env = append(cmd.Env, "DOCKER_CONTEXT="+name)
	} else if host := dockerCLI.DockerEndpoint().Host; host != "" {
		cmd.Env = append(cmd.Env, "DOCKER_HOST="+host)
	}
	cmd.Cancel = func() error {
		if dockerCLI.In().IsTerminal() {
			return nil // the terminal has told the whole process group
		}
		return cmd.Process.Signal(syscall.SIGTERM)
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return cli.StatusError{StatusCode: max(exit.ExitCode(), exitFailure)}
	}
	if err != nil {
		return &engine.Error{Kind: engine.KindSetup, Object: "docker compose", Cause: "cannot be run", Err: err,
			Hint: "install the Compose plugin of docker"}
	}
	return nil
}
