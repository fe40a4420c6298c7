//go:build e2e

package shimtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// noSource is servers.sh's status when no archive of this machine has the source of that major.
const noSource = 3

// bringSuite is the folder of the regression suite of the first of these majors whose source can be had. The index of an archive
// may name a version whose files the archive does not have.
func bringSuite(t *testing.T, majors ...int) (major int, folder string) {
	t.Helper()
	for _, major := range majors {
		cmd := exec.Command("./servers.sh", "suite", fmt.Sprint(major))
		cmd.Env = append(os.Environ(), "LZ_CACHE="+cacheDir())
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		var exit *exec.ExitError
		switch {
		case err == nil:
			return major, strings.TrimSpace(string(out))
		case errors.As(err, &exit) && exit.ExitCode() == noSource:
			fmt.Printf("%s: no archive that this machine's apt knows has the source of PostgreSQL %d\n", t.Name(), major)
		default:
			t.Fatalf("servers.sh suite %d: %v", major, err)
		}
	}
	t.Fatalf("the source of PostgreSQL %v cannot be had", majors)
	return 0, ""
}

// suiteServer is Debian's server of that major, with what pg_regress runs beside psql, and the local time zone, which a server
// looks at when it lists all.
func suiteServer(t *testing.T, major int) server {
	t.Helper()
	for _, s := range debianServers(t) {
		if s.major == major {
			return s
		}
	}
	s := debianRoot(t, major, runtime.GOARCH)
	run(t, "cp", "/usr/bin/diff", s.file("/usr/bin/diff"))
	run(t, "ln", "-sf", "/usr/share/zoneinfo/UTC", s.file("/etc/localtime"))
	return s
}

// A suite is Postgres' own regression suite, and the server that it is of.
type suite struct {
	server server
	folder string // pg_regress, its modules and its tests, where the server sees them, too
}

// TestRegressionSuite runs Postgres' own regression suite, its parallel schedule, on a branch of a seed and on a copy of the seed
// in a plain directory: the same tests fail, with the same differences. It does so with a database that the suite makes for
// itself, and with one that is the seed's, so that what the suite writes first are files of the seed.
func TestRegressionSuite(t *testing.T) {
	for _, at := range []struct {
		fstype string
		majors []int
	}{{"ext4", []int{15}}, {"xfs", []int{17, 18}}} {
		major, folder := bringSuite(t, at.majors...)
		s := suite{server: suiteServer(t, major), folder: filepath.Join(socketDir(t), "suite")}
		run(t, "cp", "-a", folder, s.folder)
		t.Run(s.server.name, func(t *testing.T) {
			r, sockets := newRig(t, at.fstype), socketDir(t)
			makeSeed(t, r, s.server, sockets, func(c *cluster) { c.in(t, "postgres", "CREATE DATABASE regression TEMPLATE template0") })
			sealed := r.seedSum(t)
			t.Run("database of its own", func(t *testing.T) { s.test(t, r, sockets) })
			t.Run("database of the seed", func(t *testing.T) { s.test(t, r, sockets, "--use-existing") })
			if r.seedSum(t) != sealed {
				t.Error("the seed has changed")
			}
		})
	}
}

// What pg_regress sets in an instance that it makes for itself, and what the rig sets for small tests taken back: with few
// buffers a sequential scan starts where another one is (access/heap/heapam.c, initscan), and rows come in another order.
var suiteSettings = []string{"shared_buffers=128MB", "max_connections=100", "max_prepared_transactions=2", "autovacuum=on",
	"wal_recycle=on", "max_wal_size=256MB"}

func (s suite) test(t *testing.T, r *rig, sockets string, options ...string) {
	plain := r.path("plain")
	run(t, "rm", "-rf", plain)
	run(t, "cp", "-a", r.path("seed"), plain)
	r.branch(t)
	b := &cluster{server: s.server, data: dataDir(r.volume, s.server.major), sockets: sockets, preload: r.preload()}
	b.start(t, suiteSettings...)
	requireShim(t, b)
	readEverything(t, b)
	if owned := r.relationsInUpper(t); len(owned) != 0 {
		t.Errorf("owned after reads: %v", owned)
	}
	branch := s.run(t, b, options...)
	requireShim(t, b)
	copied := r.copied(t)
	if big := pathOf(t, b, r, "big"); slices.Contains(copied, big) {
		t.Errorf("%s is owned, which nobody wrote", big)
	}
	relations := amcheckAll(t, b)
	b.stop(t)
	if strings.Contains(b.log.String(), "lazyrw:") {
		t.Errorf("the shim is not silent:\n%s", b.log)
	}

	twin := &cluster{server: s.server, data: dataDir(plain, s.server.major), sockets: sockets}
	twin.start(t, suiteSettings...)
	control := s.run(t, twin, options...)
	twin.stop(t)

	fmt.Printf("%s: %d tests, %d failed in the branch and %d in the plain directory; %.0f s and %.0f s; %d relation files of the seed copied, %d relations checked\n",
		t.Name(), len(branch.verdicts), len(branch.failed()), len(control.failed()), branch.took.Seconds(), control.took.Seconds(), len(copied), relations)
	if len(branch.verdicts) < 200 || len(control.failed()) > len(control.verdicts)/20 {
		t.Errorf("this is not what the suite does on a sound server:\n%s", control.output)
	}
	if !reflect.DeepEqual(branch.verdicts, control.verdicts) || branch.diffs != control.diffs {
		t.Errorf("in the branch fail %v, in the plain directory %v;\nthe branch's differences:\n%s\nthose of the plain directory:\n%s",
			branch.failed(), control.failed(), branch.diffs, control.diffs)
	}
}

// copied are the relation files of the seed that the branch has copied.
func (r *rig) copied(t *testing.T) []string {
	t.Helper()
	var names []string
	for name := range r.relationsInUpper(t) {
		if _, err := os.Lstat(filepath.Join(r.path("seed"), name)); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// What pg_regress said.
type outcome struct {
	verdicts map[string]bool // by the name of the test: whether it passed
	diffs    string          // regression.diffs, without what names files and times
	output   string
	took     time.Duration
}

func (o outcome) failed() []string {
	var names []string
	for name, ok := range o.verdicts {
		if !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// pg_regress speaks TAP from 16 on ("not ok 5  + name  12 ms"), and before that "name ... FAILED  12 ms", in the form that
// src/test/regress/pg_regress.c has.
var (
	tapVerdict   = regexp.MustCompile(`(?m)^(ok|not ok) \d+\s+[-+] (\S+)\s+\d+ ms$`)
	olderVerdict = regexp.MustCompile(`(?m)^(?:test)?\s+(\S+)\s+\.\.\. (ok|FAILED)\b`)
	diffHeader   = regexp.MustCompile(`(?m)^(diff|---|\+\+\+) .*\n`)
)

// run runs the suite as `make installcheck-parallel` does, as the unprivileged user, whose server writes some of the results.
func (s suite) run(t *testing.T, c *cluster, options ...string) outcome {
	t.Helper()
	results := filepath.Join(c.sockets, "results")
	run(t, "rm", "-rf", results)
	run(t, "install", "-d", "-o", "postgres", results)
	args := append([]string{"--outputdir=" + results, "--bindir=" + c.server.bin, "--dlpath=" + s.folder, "--max-concurrent-tests=20",
		"--schedule=parallel_schedule", "--host=" + c.sockets, "--user=postgres"}, options...)
	cmd := c.command(t, "pg_regress", args...)
	cmd.Path, cmd.Dir = filepath.Join(s.folder, "pg_regress"), s.folder
	cmd.Env = slices.DeleteFunc(cmd.Env, func(entry string) bool { return strings.HasPrefix(entry, "LD_PRELOAD=") })
	began := time.Now()
	out, err := cmd.CombinedOutput()
	o := outcome{verdicts: map[string]bool{}, output: string(out), took: time.Since(began)}
	for _, m := range tapVerdict.FindAllStringSubmatch(o.output, -1) {
		o.verdicts[m[2]] = m[1] == "ok"
	}
	for _, m := range olderVerdict.FindAllStringSubmatch(o.output, -1) {
		o.verdicts[m[1]] = m[2] == "ok"
	}
	if err == nil != (len(o.failed()) == 0) {
		t.Fatalf("pg_regress: %v\n%s\n%s", err, out, c.log)
	}
	diffs, err := os.ReadFile(filepath.Join(results, "regression.diffs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	o.diffs = diffHeader.ReplaceAllString(string(diffs), "")
	return o
}
