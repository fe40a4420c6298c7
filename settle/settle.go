package settle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

type change = contract.Change

// settler does the work that is done once in a seed, so that its branches need not
// do it.
type settler struct {
	req     contract.SettleRequest
	events  *events
	account account
	data    string
	root    *os.Root // data
	major   int
	control controlData
	conf    *confFiles
	own     map[string]string // the ownSettings of a branch
	// lentLogin says that the superuser may log in for the time of the settle only.
	lentLogin bool
	// libraries are those that roles and databases of the source load.
	libraries []string
	server    *server
	all       []database
	freezer   *freezer
	manifest  contract.Manifest
}

// step is one step of the settle: what it is called in an error, the stage that it
// is reported under, and the work.
type step struct {
	name  string
	stage string
	do    func(*settler, context.Context) error
}

// steps in the order that they depend on: nothing of the source's settings may take
// effect, so files before the first start; what holds the horizon back before the
// freeze; writes to catalogs before their last freeze; and the manifest when all is
// on disk.
var steps = []step{
	{"read the copy", contract.StagePrepare, (*settler).readCopy},
	{"take out stale files", contract.StagePrepare, (*settler).clearStale},
	{"write the branch's configuration", contract.StagePrepare, func(s *settler, _ context.Context) error { return s.configure() }},
	{"ask for the branch's settings", contract.StagePrepare, (*settler).askSettings},
	{"recover", contract.StageRecover, (*settler).recover},
	{"log in as the superuser", contract.StageNeutralise, (*settler).ensureLogin},
	{"open all databases", contract.StageNeutralise, (*settler).open},
	{"neutralise", contract.StageNeutralise, (*settler).neutralise},
	{"run with the branch's limits", contract.StageNeutralise, (*settler).lower},
	{"freeze", contract.StageFreeze, (*settler).freeze},
	{"describe the databases", contract.StageFreeze, (*settler).describe},
	{"close template databases", contract.StageFreeze, (*settler).close},
	{"verify the freeze", contract.StageFreeze, func(s *settler, ctx context.Context) error { return s.freezer.verify(ctx) }},
	{"checkpoint", contract.StageCheckpoint, (*settler).checkpoint},
	{"stop", contract.StageCheckpoint, (*settler).stop},
	{"trim WAL", contract.StageCheckpoint, (*settler).trim},
	{"verify the seed's files", contract.StageCheckpoint, func(s *settler, _ context.Context) error { return verifyFiles(s.root) }},
	{"sync", contract.StageSync, (*settler).sync},
	{"write the manifest", contract.StageSync, (*settler).finish},
}

func runSettle(ctx context.Context, in *input, ev *events) (contract.AgentEvent, error) {
	s := &settler{events: ev}
	if err := in.request(&s.req); err != nil {
		return contract.AgentEvent{}, err
	}
	holdStage(s.req.Stage)
	if err := s.prepare(); err != nil {
		return contract.AgentEvent{}, err
	}
	defer s.root.Close()
	defer s.server.kill()
	for _, step := range steps {
		if ctx.Err() != nil {
			return contract.AgentEvent{}, context.Cause(ctx)
		}
		s.events.say(step.stage, "%s", step.name)
		if err := step.do(s, ctx); err != nil {
			return contract.AgentEvent{}, s.server.failure(step.name, err)
		}
	}
	return contract.AgentEvent{Stage: contract.StageSync, Manifest: &s.manifest}, nil
}

// prepare looks at the request and touches nothing but a manifest of an earlier
// attempt, which must not outlive the beginning of this one.
func (s *settler) prepare() (err error) {
	if s.data, err = dataDir(s.req.Stage, s.req.DataDir); err != nil {
		return err
	}
	if s.account, err = postgresAccount(); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(s.req.Stage, contract.StagingManifest)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if s.root, err = os.OpenRoot(s.data); err != nil {
		return fail(contract.AgentErrFailed, "", "the staging volume holds no copy: %s", err)
	}
	run, err := newScratch(s.account)
	if err != nil {
		return err
	}
	superuser := s.req.Manifest.Superuser
	if superuser == "" {
		superuser = "postgres"
	}
	s.server = &server{account: s.account, data: s.data, run: run, superuser: superuser, log: newTail(serverLogLines)}
	s.manifest = s.req.Manifest
	s.manifest.Neutralised = nil
	return nil
}

func (s *settler) change(changes ...change) {
	for _, c := range changes {
		if !slices.Contains(s.manifest.Neutralised, c) {
			s.manifest.Neutralised = append(s.manifest.Neutralised, c)
		}
	}
}

// readCopy refuses what is no copy, is of another major, or was taken from a running
// server without a backup: recovery would begin at the wrong place, and nobody
// would notice.
func (s *settler) readCopy(ctx context.Context) error {
	version, err := s.root.ReadFile("PG_VERSION")
	if err != nil {
		return fail(contract.AgentErrFailed, "", "the copy is no Postgres cluster: %s", err)
	}
	if s.major, err = strconv.Atoi(strings.TrimSpace(string(version))); err != nil {
		return fail(contract.AgentErrMajor, "", "the copy is of Postgres %s", strings.TrimSpace(string(version)))
	}
	image, err := imageMajor(ctx, s.account, "postgres")
	if err != nil {
		return err
	}
	if s.major != image {
		return fail(contract.AgentErrMajor, fmt.Sprintf("use --image postgres:%d", s.major),
			"the copy is of Postgres %d and the image has Postgres %d", s.major, image)
	}
	s.server.major = s.major
	if err := reachable(s.req.Stage); err != nil {
		return err
	}
	if s.control, err = s.account.controlData(ctx, s.data); err != nil {
		return err
	}
	if s.control.state != stateShutDown && s.control.state != stateShutDownInRecovery {
		if _, err := readBackupLabel(s.data); err != nil {
			return err
		}
	}
	s.server.inPlace, err = checkTablespaces(s.root)
	return err
}

func (s *settler) clearStale(context.Context) error {
	changes, err := clearStale(s.root)
	s.change(changes...)
	return err
}

// askSettings asks the image's server for a branch's settings. What it refuses to
// read is commented out, one round for each complaint: it stops at the first file
// with errors.
func (s *settler) askSettings(ctx context.Context) error {
	for {
		own, err := s.account.branchSettings(ctx, s.data)
		var known *contract.AgentError
		if err == nil {
			s.own = own
			s.keepStatisticsTarget()
			return nil
		}
		if !errors.As(err, &known) {
			return err
		}
		dropped, err := s.dropRefused(known.Log)
		if err != nil {
			return err
		}
		if !dropped {
			return known
		}
	}
}

// keepStatisticsTarget analyzes with the source's default_statistics_target where
// that is higher: statistics in less detail than the source's would change plans.
func (s *settler) keepStatisticsTarget() {
	const name = "default_statistics_target"
	mine, err1 := strconv.Atoi(s.own[name])
	source, err2 := strconv.Atoi(s.req.Settings[name])
	if err1 == nil && err2 == nil && source > mine {
		s.own[name] = s.req.Settings[name]
	}
}

// recoverAttempts bounds how often recovery begins again because the WAL itself
// raised a limit.
const recoverAttempts = 3

// recoverySignal asks for archive recovery, which ends on a timeline of its own.
const recoverySignal = "recovery.signal"

// recover starts the private server and waits for the end of recovery. The limits
// may have been raised while the backup ran: recovery then ends, with pg_control
// saying what it needs.
//
// The seed gets a new timeline: on the source's own, a standby, pg_rewind or an
// archive of the source would take a branch for the source, and the two differ.
// Postgres recovers nothing that way that was written with wal_level=minimal; no
// base backup is (CheckRequiredParameterValues in xlogrecovery.c).
func (s *settler) recover(ctx context.Context) error {
	if err := s.setAside(); err != nil {
		return err
	}
	if s.control.settings["wal_level"] != "minimal" {
		if err := s.conf.write(recoverySignal, ""); err != nil {
			return err
		}
	}
	for attempt := 1; ; attempt++ {
		settings, _ := raise(s.own, s.control)
		err := s.start(ctx, settings)
		if err == nil || ctx.Err() != nil || attempt == recoverAttempts {
			return err
		}
		control, err2 := s.account.controlData(ctx, s.data)
		if err2 != nil {
			return err
		}
		s.control = control
		if _, more := raise(settings, control); !more {
			return err
		}
	}
}

// start starts the private server without full page images and waits until it
// answers.
func (s *settler) start(ctx context.Context, settings map[string]string) error {
	quiet := map[string]string{}
	for name, value := range settings {
		quiet[name] = value
	}
	quiet["full_page_writes"] = "off"
	if err := s.server.start(quiet); err != nil {
		return err
	}
	return s.server.awaitReady(ctx, func(title string) { s.events.say(contract.StageRecover, "%s", title) })
}

// asideConf is postgresql.auto.conf while the private server runs, which would read
// it wherever its own configuration file is.
const asideConf = "pgoverlay.auto.conf"

func (s *settler) setAside() error { return s.root.Rename(autoConf, asideConf) }

func (s *settler) open(ctx context.Context) (err error) {
	s.all, err = s.server.openDatabases(ctx)
	return err
}

// neutralise goes through the databases once, and also notes what later steps need
// of each: a first connection to a database is dear.
func (s *settler) neutralise(ctx context.Context) error {
	n := &neutraliser{}
	err := s.server.inEach(ctx, s.all, func(conn *pgx.Conn, d *database) (err error) {
		if err := n.inDatabase(ctx, conn, *d); err != nil {
			return err
		}
		if d.extensions, err = extensionsOf(ctx, conn); err != nil {
			return err
		}
		if d.reported, err = findingsOf(ctx, conn, *d); err != nil {
			return err
		}
		if d.unlogged, err = unloggedIn(ctx, conn); err != nil {
			return err
		}
		d.tables, err = tablesOf(ctx, conn)
		return err
	})
	if err == nil {
		err = s.server.inAny(ctx, func(conn *pgx.Conn) error { return n.inCluster(ctx, conn) })
	}
	s.change(n.changes...)
	s.libraries = n.libraries
	return err
}

// lower restarts the private server with the branch's own limits where recovery
// needed higher ones: the last server to write pg_control must be as a branch is.
func (s *settler) lower(ctx context.Context) error {
	if _, raised := raise(s.own, s.control); !raised {
		return nil
	}
	if err := s.server.stop(ctx); err != nil {
		return err
	}
	return s.start(ctx, s.own)
}

func (s *settler) freeze(ctx context.Context) error {
	connections, err := strconv.Atoi(s.own["max_connections"])
	if err != nil {
		return err
	}
	s.freezer = newFreezer(s.server, s.root, connections, func(done, total int64) {
		s.events.progress(contract.StageFreeze, done, total)
	})
	if err := s.freezer.run(ctx, s.all); err != nil {
		return err
	}
	// Little is written from here on; the disk may as well begin. The last sync sees to
	// all, and says so where it fails.
	go func() { _ = syncTree(s.req.Stage) }()
	return nil
}

func (s *settler) describe(ctx context.Context) error {
	return s.server.describe(ctx, s.all, &s.manifest)
}

func (s *settler) close(ctx context.Context) error {
	if err := s.server.closeDatabases(ctx, s.all); err != nil {
		return err
	}
	return s.freezer.last(ctx)
}

// checkpoint sets full_page_writes back to what a branch has and moves WAL to a
// fresh segment, so that the shutdown checkpoint is all that it holds. Its
// connection is the last.
func (s *settler) checkpoint(ctx context.Context) error {
	if err := s.server.configure(s.own); err != nil {
		return err
	}
	return s.server.inAny(ctx, func(conn *pgx.Conn) error {
		if err := s.restoreLogin(ctx, conn); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
			return err
		}
		// The checkpointer takes the new value up at its own time (UpdateSharedMemoryConfig
		// in checkpointer.c); a checkpoint records the one it ran with.
		for deadline := time.Now().Add(time.Minute); ; {
			var is string
			if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
				return err
			}
			if err := conn.QueryRow(ctx, `SELECT CASE WHEN full_page_writes THEN 'on' ELSE 'off' END
				FROM pg_control_checkpoint()`).Scan(&is); err != nil {
				return err
			}
			if is == s.own["full_page_writes"] {
				break
			}
			if time.Now().After(deadline) {
				return errors.New("the server does not take full_page_writes up")
			}
			time.Sleep(10 * time.Millisecond)
		}
		_, err := conn.Exec(ctx, "SELECT pg_switch_wal()")
		return err
	})
}

// stop stops the private server and sees that pg_control says what a branch needs:
// a clean shutdown, with the branch's own settings.
func (s *settler) stop(ctx context.Context) (err error) {
	if err := s.server.stop(ctx); err != nil {
		return err
	}
	if s.control, err = s.account.controlData(ctx, s.data); err != nil {
		return err
	}
	return verifyControl(s.control, s.own)
}

func (s *settler) trim(context.Context) (err error) {
	if s.manifest.WALHead, err = trimWAL(s.root, s.control, s.account); err != nil {
		return err
	}
	if err := clearSpent(s.root); err != nil {
		return err
	}
	return s.root.Rename(asideConf, autoConf)
}

// sync writes the seed to disk. The disk is busy with that and the processor is
// not, so checksums are verified at the same time.
func (s *settler) sync(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		if s.manifest.Bytes, err = ownTree(filepath.Join(s.req.Stage, contract.StagingRoot), s.account); err != nil {
			return err
		}
		return syncTree(s.req.Stage)
	})
	if s.control.checksums {
		group.Go(func() error { return s.verifyChecksums(ctx) })
	}
	return group.Wait()
}

func (s *settler) finish(ctx context.Context) (err error) {
	m := &s.manifest
	m.Format, m.Major, m.DataDir = contract.ManifestFormat, s.major, s.req.DataDir
	m.UID, m.GID = s.account.uid, s.account.gid
	m.SystemIdentifier, m.DataChecksums = s.control.systemIdentifier, s.control.checksums
	m.Superuser = s.server.superuser
	m.PreloadLibraries = s.preloadLibraries()
	m.Reported = append(m.Reported, s.keyScripts()...)
	facts, err := imageFacts(ctx, s.account)
	if err != nil {
		return err
	}
	m.Libc, m.ICU, m.CannotLoad = facts.Libc, facts.ICU, facts.CannotLoad
	for _, u := range m.Fit(*facts) {
		if !slices.Contains(m.Unfit, u) {
			m.Unfit = append(m.Unfit, u)
		}
	}
	m.SettledAt = time.Now().UTC().Truncate(time.Second)
	return writeManifest(s.req.Stage, *m)
}

// preloadLibraries are what the source loads at start or at login: what its files
// say, or else what the running server said.
func (s *settler) preloadLibraries() []string {
	var values []string
	for _, name := range preloadSettings {
		value, ok := s.conf.values[name]
		if said := s.req.Settings[name]; said != "" || !ok {
			value = said
		}
		values = append(values, value)
	}
	found := append(libraries(values...), s.libraries...)
	slices.Sort(found)
	return slices.Compact(found)
}
