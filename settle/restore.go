package settle

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract/dumpfile"
)

// restorer makes a cluster in a staging volume and restores one dump into it. The
// cluster rests, cleanly shut down, when it is done.
type restorer struct {
	req     contract.RestoreRequest
	events  *events
	account account
	data    string
	major   int
	server  *server
	// received is the dump as it comes from the caller, nil where it lies in the staging
	// volume.
	received *reception
}

func runRestore(ctx context.Context, in *input, ev *events) (contract.AgentEvent, error) {
	r := &restorer{events: ev}
	rest, err := in.requestBefore(&r.req)
	if err != nil {
		return contract.AgentEvent{}, err
	}
	holdStage(r.req.Stage)
	if r.req.Staged {
		in.watch(rest)
	} else {
		// The request's own line ends first.
		if _, err := io.ReadFull(rest, make([]byte, len("\n"))); err != nil {
			return contract.AgentEvent{}, err
		}
		r.received = &reception{in: in, rest: rest, frames: dumpfile.Receive(rest), progress: func(done int64) {
			ev.progress(contract.StageRestore, done, r.req.Bytes)
		}}
	}
	if err := r.prepare(ctx); err != nil {
		return contract.AgentEvent{}, err
	}
	defer r.server.kill()
	result, err := r.restore(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		err = r.server.failure("restore", err)
		r.server.kill()
		r.undo()
		return contract.AgentEvent{}, err
	}
	return contract.AgentEvent{Stage: contract.StageRestore, Restore: result}, nil
}

// prepare makes the empty cluster's folder and touches nothing else.
func (r *restorer) prepare(ctx context.Context) (err error) {
	if r.account, err = postgresAccount(); err != nil {
		return err
	}
	if r.data, err = dataDir(r.req.Stage, r.req.DataDir); err != nil {
		return err
	}
	if entries, err := os.ReadDir(r.data); err == nil && len(entries) > 0 {
		return fail(contract.AgentErrFailed, "", "the staging volume already holds a cluster")
	}
	if r.major, err = imageMajor(ctx, r.account, "postgres"); err != nil {
		return err
	}
	if err := refuseImageMajor(r.major); err != nil {
		return err
	}
	if err := refuseNewer(r.req.Dump.ServerVersion, r.major); err != nil {
		return err
	}
	if err := r.account.makeDataDir(r.req.Stage, r.req.DataDir); err != nil {
		return err
	}
	run, err := newScratch(r.account)
	if err != nil {
		return err
	}
	r.server = &server{account: r.account, major: r.major, data: r.data, run: run, superuser: contract.DumpSuperuser,
		extra: restoreConf, log: newTail(serverLogLines)}
	return nil
}

// refuseImageMajor refuses the image of a major whose files the settle does not know.
func refuseImageMajor(image int) error {
	if image < contract.OldestMajor || image > contract.NewestMajor {
		return fail(contract.AgentErrMajor, fmt.Sprintf("use --image postgres:%d", contract.NewestMajor),
			"the image has Postgres %d, and seeds are made of %d to %d", image, contract.OldestMajor, contract.NewestMajor)
	}
	return nil
}

// refuseNewer refuses the dump of a server that is newer than the image's: what it needs
// may not exist there.
func refuseNewer(version string, image int) error {
	if major := dumpfile.Major(version); major > image {
		return fail(contract.AgentErrMajor, fmt.Sprintf("use --image postgres:%d", major),
			"the dump is of Postgres %s and the image has Postgres %d", version, image)
	}
	return nil
}

// restoreSettings are those of the ownSettings that matter to a cluster whose one client
// is the restore. Many locks, because a script may make all its tables in one transaction;
// wal_level=minimal, because nobody follows. The settle gives it a branch's.
var restoreSettings = map[string]string{
	"wal_level": "minimal", "wal_log_hints": "off", "track_commit_timestamp": "off", "max_connections": "10",
	"max_worker_processes": "8", "max_wal_senders": "0", "max_prepared_transactions": "0",
	"max_locks_per_transaction": "8192", "full_page_writes": "off", "default_statistics_target": "100",
}

// restoreConf holds over what the settle's server has. A checkpoint is cheap without
// fsync, and WAL as big as the data is not.
const restoreConf = "max_wal_size = '1GB'\n"

func (r *restorer) restore(ctx context.Context) (*contract.RestoreResult, error) {
	r.events.say(contract.StageRestore, "make the cluster")
	if err := r.initdb(ctx); err != nil {
		return nil, err
	}
	if err := r.server.start(restoreSettings); err != nil {
		return nil, err
	}
	if err := r.server.awaitReady(ctx, func(string) {}); err != nil {
		return nil, err
	}
	player := &player{server: r.server, events: r.events, major: r.major, locale: r.req.Locale, dump: r.req.Dump}
	defer player.close(ctx)
	if err := r.play(ctx, player); err != nil {
		return nil, player.explain(err)
	}
	if err := player.verdict(r.req.Force); err != nil {
		return nil, err
	}
	player.close(ctx)
	result := &contract.RestoreResult{Dump: player.dump, Database: player.mainDatabase(r.req.Database)}
	if err := r.login(ctx, result); err != nil {
		return nil, err
	}
	r.events.say(contract.StageRestore, "stop")
	if err := r.server.stop(ctx); err != nil {
		return nil, err
	}
	return result, os.RemoveAll(filepath.Join(r.req.Stage, contract.StagedDump))
}

// initdb makes the cluster as the stock image does: in the image's own locale, unless the
// caller names one, and in UTF8 whatever that says.
func (r *restorer) initdb(ctx context.Context) error {
	_, err := r.account.output(ctx, "initdb", "--pgdata="+r.data, "--username="+contract.DumpSuperuser, "--encoding=UTF8",
		"--locale="+r.locale(), "--auth=trust", "--no-sync", "--no-instructions")
	return err
}

func (r *restorer) locale() string {
	for _, value := range []string{r.req.Locale, os.Getenv("LC_ALL"), os.Getenv("LANG")} {
		if value != "" {
			return value
		}
	}
	return "C"
}

// play plays the dump, whatever its format, as SQL.
func (r *restorer) play(ctx context.Context, p *player) error {
	if err := p.begin(ctx, r.req.Database); err != nil {
		return err
	}
	if r.received == nil {
		return r.playStaged(ctx, p)
	}
	clear, err := dumpfile.Decompress(r.received, r.req.Dump.Compression)
	if err != nil {
		return r.damaged(err)
	}
	defer clear.Close()
	switch r.req.Dump.Format {
	case dumpfile.Plain:
		err = p.play(ctx, clear)
	case dumpfile.Directory:
		dir := filepath.Join(r.req.Stage, contract.StagedDump)
		if err = r.unpack(clear, dir); err == nil {
			err = r.playArchive(ctx, p, nil, dir)
		}
	default:
		err = r.playArchive(ctx, p, clear, "")
	}
	if r.received.err != nil && !errors.Is(r.received.err, io.EOF) {
		return r.received.err
	}
	if err != nil {
		return r.damaged(err)
	}
	// What is behind the dump's own end, such as the padding of a tar. A compressor's
	// checksum is among it.
	if _, err := io.Copy(io.Discard, clear); err != nil {
		return r.damaged(err)
	}
	_, err = io.Copy(io.Discard, r.received)
	return err
}

// damaged says of a failure to read the dump that it is one.
func (r *restorer) damaged(err error) error {
	var known *contract.AgentError
	if errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	if r.received != nil && errors.Is(r.received.err, dumpfile.ErrGone) {
		return err
	}
	return fail(contract.AgentErrDump, "fetch or write it again, and look whether pg_dump ended well", "the dump is damaged, or cut off: %s", err)
}

// playStaged plays what AgentDump has left.
func (r *restorer) playStaged(ctx context.Context, p *player) error {
	roles, err := os.Open(filepath.Join(r.req.Stage, contract.StagedRolesFile))
	switch {
	case err == nil:
		err = p.play(ctx, roles)
		roles.Close()
		if err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	return r.playArchive(ctx, p, nil, filepath.Join(r.req.Stage, contract.StagedDumpFile))
}

// playArchive has pg_restore make SQL of an archive, from a stream or from a path.
func (r *restorer) playArchive(ctx context.Context, p *player, from io.Reader, path string) error {
	program, err := tool("pg_restore")
	if err != nil {
		return err
	}
	// The one database that --create makes brings its encoding, locale, settings and
	// grants along.
	args := []string{"--file=-", "--no-tablespaces", "--format=" + r.req.Dump.Format}
	if r.req.Database == "" {
		args = append(args, "--create")
	}
	if path != "" {
		args = append(args, path)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = "/", environment("/")
	cmd.SysProcAttr = r.account.attributes(syscall.SIGKILL)
	cmd.Stdin = from
	log := newTail(lastLines)
	cmd.Stderr = log
	cmd.WaitDelay = stopGrace
	sql, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	playErr := p.play(ctx, sql)
	var unfinished errUnfinished
	if playErr != nil && !errors.As(playErr, &unfinished) {
		cancel()
		_ = cmd.Wait()
		return playErr
	}
	// What pg_restore says of its archive says more than where its SQL ends.
	if err := cmd.Wait(); err != nil {
		e := fail(contract.AgentErrDump, "fetch or write it again, and look whether pg_dump ended well",
			"the dump is damaged, or cut off: pg_restore: %s%s", exitText(err), toolError(log.lines()))
		e.Log = log.lines()
		return e
	}
	return playErr
}

// unpack takes a directory dump out of its tar. Such a dump has files only.
func (r *restorer) unpack(from io.Reader, dir string) error {
	if err := r.account.mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for files := tar.NewReader(from); ; {
		header, err := files.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		f, err := root.OpenFile(header.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, files)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if err := r.account.own(filepath.Join(dir, header.Name)); err != nil {
			return err
		}
	}
}

// login gives the superuser the caller's password, or one of chance where neither the
// caller nor the dump has one.
func (r *restorer) login(ctx context.Context, result *contract.RestoreResult) error {
	return r.server.inAny(ctx, func(conn *pgx.Conn) error {
		var has, exists bool
		if err := conn.QueryRow(ctx, "SELECT rolpassword IS NOT NULL FROM pg_authid WHERE oid = 10").Scan(&has); err != nil {
			return err
		}
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datallowconn AND datname = "+
			quoteLiteral(result.Database)+")").Scan(&exists); err != nil {
			return err
		}
		if !exists {
			result.Database = "postgres"
		}
		password := r.req.Password
		switch {
		case password == "" && has:
			result.Dump.Notes = append(result.Dump.Notes, "the role "+contract.DumpSuperuser+" has the password that the dump gives it")
			return nil
		case password == "":
			password = newPassword()
			result.Password = password
		}
		secret, err := scramVerifier(password)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "ALTER ROLE "+quoteIdent(contract.DumpSuperuser)+" LOGIN PASSWORD "+quoteLiteral(secret)+" VALID UNTIL 'infinity'")
		return err
	})
}

// undo empties the staging volume.
func (r *restorer) undo() {
	_ = os.RemoveAll(filepath.Join(r.req.Stage, contract.StagedDump))
	root := filepath.Join(r.req.Stage, contract.StagingRoot)
	entries, _ := os.ReadDir(root)
	for _, entry := range entries {
		_ = os.RemoveAll(filepath.Join(root, entry.Name()))
	}
}

// reception is the dump as it comes in. At its end the input becomes the sign of the
// caller's life; should the input end before, the caller is gone.
type reception struct {
	in       *input
	rest     io.Reader
	frames   io.Reader
	progress func(done int64)
	done     int64
	err      error
}

func (r *reception) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.frames.Read(p)
	r.done += int64(n)
	r.progress(r.done)
	if r.err = err; err == io.EOF {
		r.in.watch(r.rest)
	} else if err != nil {
		r.in.ended()
	}
	return n, err
}
