package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/docker/cli/cli"
	"github.com/docker/cli/cli/command"
	"github.com/docker/cli/cli/command/completion"
	"github.com/docker/cli/opts"
	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/pgbranch/docker-pgbranch/engine"
)

type seedCreateOptions struct {
	from, network, image, progress string
	fromDump, database, locale     string
	passwordStdin, next, force     bool
	logical                        bool
	maxRate                        opts.MemBytes
	tls                            engine.TLSFiles
}

func newSeedCreateCommand(dockerCLI command.Cli) *cobra.Command {
	var opts seedCreateOptions
	cmd := &cobra.Command{
		Use:   "create [OPTIONS] SEED --from postgres://USER@HOST:PORT/DATABASE | --from-dump FILE",
		Short: "Create a seed from a running server, or from a dump",
		Long: `Copy a running server with pg_basebackup, settle the copy with no network, and seal it.
The user needs the REPLICATION attribute, and the source's pg_hba.conf a line that
lets it in for replication.

Where a provider allows no replication, --logical copies the URL's one database with
pg_dump, and --from-dump restores a dump that you have, also of an older major: plain
SQL, that compressed with gzip or zstd, the custom, tar and directory formats, or - for
standard input. Roles that a dump names and does not make are made without a login.
Statements that fail are listed; where one may have cost data, nothing is sealed unless
you insist with --force. The superuser of such a seed is postgres. Its password is
PGPASSWORD or --password-stdin with --from-dump, or else the dump's own; where there is
none, one is made and shown once.

The password comes from the URL, PGPASSWORD or --password-stdin. It is kept nowhere;
but what stands in a URL, this machine's process list shows while the command runs.
Files for TLS are read here and kept nowhere either: --ssl-root-cert and its kin, or
sslrootcert, sslcert and sslkey in the URL.
The source's host is looked up from inside the engine: name the Docker network that
it is on with --network. For a source on localhost the engine's own host is meant.
` + exitHelp,
		Example: `  PGPASSWORD=… docker pgbranch seed create shop --from postgres://app@db.internal/shop
  docker pgbranch seed create shop --from postgres://postgres@db/shop --network my_default --password-stdin < secret
  docker pgbranch seed create shop --from-dump shop.dump
  zstd -dc shop.sql.zst | docker pgbranch seed create shop --from-dump - --image postgres:17
  PGPASSWORD=… docker pgbranch seed create shop --from postgres://app@shop.rds.example/shop --logical`,
		Args: cli.ExactArgs(1),
		RunE: run(reaping(dockerCLI, func(ctx context.Context, args []string) error {
			return runSeedCreate(ctx, dockerCLI, args[0], opts)
		})),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.from, "from", "", "URL of the server to copy")
	flags.StringVar(&opts.fromDump, "from-dump", "", "Dump to restore: a file, a folder in the directory format, or - for standard input")
	flags.BoolVar(&opts.logical, "logical", false, "Copy the one database of the URL with pg_dump, which needs no replication")
	flags.StringVar(&opts.database, "database", "", "Database to restore a dump into (default the dump's own, or postgres)")
	flags.StringVar(&opts.locale, "locale", "", "Locale of a restored cluster and of its databases (default the image's and the dump's)")
	flags.StringVar(&opts.network, "network", "", "Docker network from which the server can be reached")
	flags.StringVar(&opts.image, "image", "", "Image to settle the seed with and to run its branches (default postgres:MAJOR of the source)")
	flags.BoolVar(&opts.passwordStdin, "password-stdin", false, "Read the password from standard input")
	flags.StringVar(&opts.tls.RootCert, "ssl-root-cert", "", "File of the authority to check the server's certificate against (default sslmode then verify-full)")
	flags.StringVar(&opts.tls.Cert, "ssl-cert", "", "File of a client certificate")
	flags.StringVar(&opts.tls.Key, "ssl-key", "", "File of the client certificate's key, without a passphrase")
	flags.BoolVar(&opts.next, "next", false, "Add a generation to a seed that exists")
	flags.Var(&opts.maxRate, "max-rate", "Most that the source sends each second, such as 20m")
	flags.BoolVar(&opts.force, "force", false, "Use the image though it lacks a locale or an extension of the source or sorts text otherwise, or seal a dump of which statements failed that may cost data")
	flags.StringVar(&opts.progress, "progress", progressAuto, progressHelp)
	_ = cmd.RegisterFlagCompletionFunc("network", completion.NetworkNames(dockerCLI))
	_ = cmd.RegisterFlagCompletionFunc("image", completion.ImageNames(dockerCLI, -1))
	_ = cmd.RegisterFlagCompletionFunc("progress", completion.FromList(progressModes...))
	return cmd
}

func runSeedCreate(ctx context.Context, dockerCLI command.Cli, name string, opts seedCreateOptions) error {
	if err := checkSeedCreate(opts); err != nil {
		return err
	}
	password := os.Getenv("PGPASSWORD")
	if opts.passwordStdin {
		var err error
		if password, err = readPassword(dockerCLI.In()); err != nil {
			return err
		}
	}
	create := engine.SeedCreateOptions{
		Name: name, Network: opts.network, Image: opts.image, Next: opts.next, Force: opts.force, MaxRate: opts.maxRate.Value(),
	}
	if opts.fromDump == "" {
		var err error
		if create.Source, err = engine.ParseSource(opts.from, password); err != nil {
			return err
		}
		if err := engine.AddTLS(&create.Source, opts.tls); err != nil {
			return err
		}
		password = "" // it is the source's
	}
	progress, err := newProgress(dockerCLI.Err(), opts.progress)
	if err != nil {
		return err
	}
	create.Progress = progress.report
	started := time.Now()
	var seed engine.Seed
	if opts.fromDump == "" && !opts.logical {
		seed, err = newEngine(dockerCLI).CreateSeed(ctx, create)
		password = ""
	} else {
		seed, password, err = restoreSeed(ctx, dockerCLI, opts, create, password)
	}
	progress.close()
	if err != nil {
		return err
	}
	if opts.progress != progressQuiet && opts.progress != progressJSON {
		_, _ = fmt.Fprintf(dockerCLI.Err(), "seed of Postgres %d, %s, sealed after %s\n", seed.Manifest.Major,
			units.BytesSize(float64(seed.Manifest.Bytes)), time.Since(started).Round(100*time.Millisecond))
	}
	sayUnfit(dockerCLI, seed.Manifest.Unfit)
	if seed.Manifest.Dump != nil {
		sayRestored(dockerCLI.Err(), seed, password)
	}
	_, err = fmt.Fprintln(dockerCLI.Out(), seed.Ref())
	return err
}

// readPassword reads the first line.
func readPassword(in io.Reader) (string, error) {
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", &engine.Error{Kind: engine.KindInvalid, Object: "--password-stdin", Cause: "standard input holds no password",
			Hint: "pipe it in: … --password-stdin < file"}
	}
	return line, nil
}
