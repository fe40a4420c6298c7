package plugin

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/docker/cli/cli/command"

	"github.com/pgbranch/docker-pgbranch/engine"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract/dumpfile"
)

// checkSeedCreate refuses options that do not go together.
func checkSeedCreate(opts seedCreateOptions) error {
	wrong := func(object, cause, hint string) error {
		return &engine.Error{Kind: engine.KindInvalid, Object: object, Cause: cause, Hint: hint}
	}
	if opts.fromDump == "" {
		if err := required("--from", opts.from, "name the server to copy: postgres://USER@HOST:PORT/DATABASE, or a dump with --from-dump"); err != nil {
			return err
		}
		switch {
		case !opts.logical && (opts.database != "" || opts.locale != ""):
			return wrong("--database, --locale", "a physical copy has the databases and locales of its source", "leave them out, or copy one database with --logical")
		case opts.logical && opts.maxRate.Value() != 0:
			return wrong("--max-rate", "pg_dump knows no such bound", "leave it out")
		}
		return nil
	}
	switch {
	case opts.from != "":
		return wrong("--from-dump", "a seed is made from a server or from a dump", "leave out --from or --from-dump")
	case opts.logical:
		return wrong("--logical", "says how to copy a server, and there is none", "leave it out: --from-dump restores the dump that you have")
	case opts.maxRate.Value() != 0:
		return wrong("--max-rate", "there is no source to spare", "leave it out")
	case opts.fromDump == "-" && opts.passwordStdin:
		return wrong("--password-stdin", "standard input is the dump", "give the password by PGPASSWORD")
	}
	return nil
}

// restoreSeed makes a seed of a dump, or of a server by one.
func restoreSeed(ctx context.Context, dockerCLI command.Cli, opts seedCreateOptions, create engine.SeedCreateOptions, password string) (engine.Seed, string, error) {
	restore := engine.SeedDumpOptions{SeedCreateOptions: create, Database: opts.database, Locale: opts.locale, Password: password}
	if opts.fromDump != "" {
		if opts.fromDump == "-" && dockerCLI.In().IsTerminal() {
			return engine.Seed{}, "", &engine.Error{Kind: engine.KindInvalid, Object: "--from-dump", Cause: "standard input is a terminal",
				Hint: "pipe the dump in, or name its file"}
		}
		dump, err := engine.OpenDump(opts.fromDump, dockerCLI.In())
		if err != nil {
			return engine.Seed{}, "", err
		}
		if opts.fromDump != "-" {
			defer dump.Close()
		}
		restore.Dump = dump
	}
	return newEngine(dockerCLI).CreateSeedFromDump(ctx, restore)
}

// mostSaid is how many failed statements are printed; `seed inspect` has all.
const mostSaid = 10

// sayRestored tells what was made beside what the dump makes, what was left out of it, and
// how to log in.
func sayRestored(out io.Writer, seed engine.Seed, password string) {
	m := seed.Manifest
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	if from := dumpfile.Major(m.Dump.ServerVersion); from != 0 && from != m.Major {
		say("note: the dump is of Postgres %d, and the seed has %d", from, m.Major)
	}
	for _, note := range m.Dump.Notes {
		say("note: %s", note)
	}
	if len(m.Dump.Roles) > 0 {
		say("made %s that the dump names, with no login: %s", roles(len(m.Dump.Roles)), strings.Join(m.Dump.Roles, ", "))
	}
	if n := len(m.Dump.Failed) + m.Dump.FailedMore; n > 0 {
		if m.Dump.FailedData > 0 {
			say("warning: %d of the statements that failed may have cost data", m.Dump.FailedData)
		}
		say("warning: %d of the dump's statements failed and were skipped; `docker pgbranch seed inspect %s` lists them", n, seed.Ref())
		for _, f := range m.Dump.Failed[:min(mostSaid, len(m.Dump.Failed))] {
			say("  line %d, database %s: %s: %s", f.Line, f.Database, f.Statement, f.Message)
		}
		if n > mostSaid {
			say("  … and %d more", n-mostSaid)
		}
	}
	if password != "" {
		say("log in as %s with the password %s, which is shown this once; `create --rotate-password` gives a branch its own", contract.DumpSuperuser, password)
	}
}

func roles(n int) string {
	if n == 1 {
		return "1 role"
	}
	return fmt.Sprintf("%d roles", n)
}
