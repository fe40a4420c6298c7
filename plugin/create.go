package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/command/completion"
	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// readyTimeout is how long a verb waits for a server's first answer. A settled
// seed answers within a second; the rest is for a slow machine.
const readyTimeout = time.Minute

type createOptions struct {
	from, image, cow, publish, network, progress string
	conf                                         []string
	ttl, timeout                                 time.Duration
	timings, git, rotatePassword, force          bool
}

func newCreateCommand(dockerCLI command.Cli) *cobra.Command {
	var opts createOptions
	cmd := &cobra.Command{
		Use:   "create [OPTIONS] {BRANCH | --git} --from SEED[@GEN]",
		Short: "Create a branch and start it",
		Long: `Create a branch of a seed: a volume, and an unprivileged container of the seed's own
image that runs it, published on 127.0.0.1. Prints the branch's name when Postgres
has answered a query.

The branch has the source's settings, save those that a branch cannot have or that ask
for a bigger machine: ` + "`docker pgbranch seed inspect SEED`" + ` lists them. --conf sets one
for this branch alone; it holds over restarts and resets.

Roles log in with the passwords that they have in the source. --rotate-password gives the
user of the source's URL another one, random and kept in this branch alone, which is
printed once to standard error and by ` + "`docker pgbranch url BRANCH`" + `.

With --git the branch is named for the git branch that is checked out. Letters, digits,
"." and "-" stay; "/" becomes "_-", "_" becomes "__", and any other byte "_" and its
two hex digits, so that no two git branches share a name: feature/x is feature_-x. A
name beyond 128 characters is cut and ends with a digest. ls and inspect show the
git branch itself.
` + exitHelp,
		Example: `  docker pgbranch create feature-x --from shop
  docker pgbranch create feature-x --from shop@2 -p 5433
  docker pgbranch create feature-x --from shop -c work_mem=64MB -c log_statement=all
  docker pgbranch create --git --from shop --ttl 24h`,
		Args: func(cmd *cobra.Command, args []string) error {
			if opts.git {
				return cli.NoArgs(cmd, args)
			}
			return cli.ExactArgs(1)(cmd, args)
		},
		RunE: run(func(ctx context.Context, args []string) error {
			name, git := strings.Join(args, ""), ""
			if opts.git {
				var err error
				if git, err = currentGitBranch(ctx); err != nil {
					return err
				}
				name = engine.GitName(git)
			}
			return runCreate(ctx, dockerCLI, name, git, opts)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.from, "from", "", "Seed to branch from, NAME (the newest generation) or NAME@GEN")
	flags.StringVarP(&opts.publish, "publish", "p", "", "Publish Postgres on PORT or IP:PORT (default a free port on 127.0.0.1)")
	flags.StringVar(&opts.network, "network", "", "Join this network, with the branch's name as address")
	flags.StringVar(&opts.image, "image", "", "Image to run the branch with (default the one that settled the seed)")
	flags.BoolVar(&opts.force, "force", false, "Use the image though it lacks what the seed needs, or sorts text otherwise")
	flags.BoolVar(&opts.rotatePassword, "rotate-password", false, "Give the source's user a password that only this branch has")
	flags.StringArrayVarP(&opts.conf, "conf", "c", nil, "Set a setting of Postgres for this branch, NAME=VALUE")
	flags.StringVar(&opts.cow, "cow", contract.CowAuto, "How to copy on write: auto, file, off")
	flags.DurationVar(&opts.ttl, "ttl", 0, "How long the branch is wanted, as in 24h (default for ever)")
	flags.DurationVar(&opts.timeout, "timeout", readyTimeout, "How long to wait for the first query")
	flags.StringVar(&opts.progress, "progress", progressAuto, progressHelp)
	flags.BoolVar(&opts.git, "git", false, "Name the branch for the git branch that is checked out")
	flags.BoolVar(&opts.timings, "timings", false, "Print where the time went")
	_ = cmd.RegisterFlagCompletionFunc("from", completeSeeds(dockerCLI))
	_ = cmd.RegisterFlagCompletionFunc("network", completion.NetworkNames(dockerCLI))
	_ = cmd.RegisterFlagCompletionFunc("image", completion.ImageNames(dockerCLI, -1))
	_ = cmd.RegisterFlagCompletionFunc("cow", completion.FromList(contract.CowAuto, contract.CowFile, contract.CowOff))
	_ = cmd.RegisterFlagCompletionFunc("progress", completion.FromList(progressModes...))
	return cmd
}

func runCreate(ctx context.Context, dockerCLI command.Cli, name, git string, opts createOptions) error {
	if err := required("--from", opts.from, "name the seed to branch from; `docker pgbranch seed ls` lists them"); err != nil {
		return err
	}
	var publish engine.Publish
	if opts.publish != "" {
		var err error
		if publish, err = engine.ParsePublish(opts.publish); err != nil {
			return err
		}
	}
	if opts.ttl < 0 {
		return &engine.Error{Kind: engine.KindInvalid, Object: "--ttl", Cause: "is negative", Hint: "write a duration such as 24h"}
	}
	settings, err := engine.ParseSettings(opts.conf)
	if err != nil {
		return err
	}
	progress, err := newProgress(dockerCLI.Err(), opts.progress)
	if err != nil {
		return err
	}
	started := time.Now()
	reaped := reapBeside(ctx, dockerCLI)
	create := func() (engine.Branch, engine.Split, error) {
		return newEngine(dockerCLI).Create(ctx, engine.CreateOptions{
			Name: name, Git: git, From: opts.from, Cow: opts.cow, TTL: opts.ttl,
			Publish: publish, Network: opts.network, Settings: settings, RotatePassword: opts.rotatePassword, Image: opts.image, Force: opts.force, Timeout: opts.timeout, Progress: progress.report,
		})
	}
	branch, split, err := create()
	if gone := reaped(); engine.KindOf(err) == engine.KindConflict && slices.Contains(gone.Branches, name) {
		// The name was that of a branch that had expired.
		branch, split, err = create()
	}
	progress.close()
	if err != nil {
		return err
	}
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	_, _ = fmt.Fprintf(dockerCLI.Err(), "branch of %s, ready after %s on %s:%d, owns %s\n", branch.SeedRef(),
		ms(time.Since(started)), branch.HostIP, branch.Port, units.BytesSize(float64(branch.OwnedBytes)))
	sayLogin(dockerCLI, branch)
	sayUnfit(dockerCLI, branch.Unfit)
	if branch.CowMode == contract.ModeEager && opts.cow != contract.CowOff {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "warning: the branch is eager, each file that Postgres opens is copied: %s\n", branch.CowReason)
	}
	if opts.timings {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "volume %s, container create %s, start %s, ready %s\n",
			ms(split.Volume), ms(split.Container), ms(split.Start), ms(split.Ready))
	}
	_, err = fmt.Fprintln(dockerCLI.Out(), branch.Branch)
	return err
}

// sayLogin tells how to log in: nobody should find out by chance that a branch takes
// the passwords of production.
func sayLogin(dockerCLI command.Cli, branch engine.Branch) {
	if branch.Manifest == nil {
		return
	}
	if branch.Password == "" && branch.Manifest.Dump != nil {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "log in as %s with its password in the seed; --rotate-password gives a branch its own\n", branch.Manifest.User)
		return
	}
	if branch.Password == "" {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "log in as %s with its password in the source; --rotate-password gives a branch its own\n", branch.Manifest.User)
		return
	}
	_, _ = fmt.Fprintf(dockerCLI.Err(), "log in as %s with the password %s, which only this branch has; `docker pgbranch url %s` shows it again\n",
		branch.Manifest.User, branch.Password, branch.Branch)
}

// sayUnfit warns of what an image lacks or does otherwise.
func sayUnfit(dockerCLI command.Cli, unfit []contract.Unfit) {
	for _, u := range unfit {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "warning: %s: %s\n", u.What, u.Why)
	}
}
