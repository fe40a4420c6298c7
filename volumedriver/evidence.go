package volumedriver

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// What a server with the shim leaves in a branch (shim/src/claim.h), below PGDATA: a
// note, and a second name of its postmaster.pid. Postgres makes that file anew at each
// start, so the note is of the server that claimed the branch last as long as both
// names are one file.
const (
	noteFile = contract.RuntimeDir + "/active"
	keptFile = contract.RuntimeDir + "/postmaster.pid"

	pidFile  = "postmaster.pid"
	optsFile = "postmaster.opts"
	autoConf = "postgresql.auto.conf"
	// profileConf is the branch profile, which the settle agent writes.
	profileConf = "pgoverlay.conf"

	// statusLine is the line of postmaster.pid that a server adds once it has loaded its
	// libraries (LOCK_FILE_LINE_PM_STATUS, src/include/utils/pidfile.h, 10 and newer).
	statusLine = 8

	// maxServerFile bounds what is read of each of these, in bytes.
	maxServerFile = 1 << 20
)

// serverRun tells how the last server of a branch ran.
type serverRun int

const (
	// runNone: there was none since the branch was made or reset, or it is only starting.
	runNone serverRun = iota
	// runShim: with the shim.
	runShim
	// runBare: without it.
	runBare
)

// serverFiles are a branch's own files of its server, all untrusted: whoever runs the
// branch may have written them.
type serverFiles struct {
	root *os.Root
	dir  string
}

func (s serverFiles) read(name string) string {
	data, err := readRegular(s.root, path.Join(s.dir, name), maxServerFile)
	if err != nil {
		return ""
	}
	return string(data)
}

func (s serverFiles) stat(name string) (st unix.Stat_t, ok bool) {
	f, err := openBeneath(s.root, path.Join(s.dir, name), unix.O_RDONLY)
	if err != nil {
		return st, false
	}
	defer f.Close()
	return st, unix.Fstat(int(f.Fd()), &st) == nil
}

// lastRun tells how the last server ran. All times are the file system's own.
func (s serverFiles) lastRun() serverRun {
	kept, noted := s.stat(keptFile)
	if pid, ok := s.stat(pidFile); ok {
		switch {
		case noted && kept.Ino == pid.Ino && kept.Dev == pid.Dev:
			return runShim
		case strings.Count(s.read(pidFile), "\n") >= statusLine:
			return runBare
		}
		return runNone
	}
	// It has ended, and took its postmaster.pid away, which changed the inode: a server
	// that wrote postmaster.opts later than that was another one.
	opts, ok := s.stat(optsFile)
	switch {
	case !ok:
		return runNone
	case noted && !timeOf(opts.Mtim).After(timeOf(kept.Ctim)):
		return runShim
	}
	return runBare
}

func timeOf(t unix.Timespec) time.Time { return time.Unix(t.Unix()) }

// note reads what the shim noted, by key.
func (s serverFiles) note() map[string]string {
	note := map[string]string{}
	for line := range strings.Lines(s.read(noteFile)) {
		if key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			note[key] = value
		}
	}
	return note
}

// describeRun puts into a Status what the branch's last server proves.
func (d *Driver) describeRun(v, seed *volume, status *contract.Status) {
	if seed == nil {
		return
	}
	files := serverFiles{d.store.root, path.Join(v.tree(), seed.manifest.DataDir)}
	switch files.lastRun() {
	case runNone:
		status.CowReason = "unproven: no server has run on it yet"
	case runShim:
		note := files.note()
		if way := note["way"]; way == contract.ViaPreload || way == contract.ViaLibrary {
			status.CowVia = way
		}
		if lazy := note["lazy"]; lazy != "yes" {
			status.CowMode, status.CowReason = contract.ModeEager, unlazyReason(lazy)
		}
	case runBare:
		status.CowMode, status.CowVia = contract.ModeEager, contract.ViaNone
		status.CowReason = files.bareReason(d.store.root, path.Join(seed.tree(), seed.manifest.DataDir))
	}
}

// unlazyReason says for a person why a shim that was loaded is not lazy.
func unlazyReason(lazy string) string {
	switch lazy {
	case "unwanted":
		return "the volume was mounted for an eager branch; start its container again"
	case "no /proc":
		return "its container has no usable /proc, which the shim needs"
	case "not interposed":
		return "the shim found none of the calls in its server that it stands in front of"
	}
	return "the shim in its server says so"
}

// inConf matches a setting of shared_preload_libraries in a configuration file, inOpts
// one in postmaster.opts, which quotes each argument: "-c" "name=value", or "--name=value".
var (
	inConf = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?im)^[ \t]*shared_preload_libraries[ \t=]+(.*)$`)
	})
	inOpts = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)"(?:-c ?|--)?shared[_-]preload[_-]libraries=([^"]*)"`)
	})
)

// dropsShim reports whether the last setting that the expression finds in a text leaves
// the shim out.
func dropsShim(setting *regexp.Regexp, text string) bool {
	all := setting.FindAllStringSubmatch(text, -1)
	return len(all) > 0 && !namesShim(all[len(all)-1][1])
}

func namesShim(preload string) bool {
	return strings.Contains(preload, contract.RuntimeDir+"/"+contract.ShimFile)
}

// bareReason says why a branch's server runs without the shim, as far as files tell.
// The server reads what stands on its command line after postgresql.auto.conf, and that
// after everything else.
func (s serverFiles) bareReason(store *os.Root, seedDir string) string {
	if dropsShim(inOpts(), s.read(optsFile)) {
		return "its server was started with -c shared_preload_libraries, which drops the shim, and LD_PRELOAD did not bring it"
	}
	if dropsShim(inConf(), s.read(autoConf)) {
		return "ALTER SYSTEM SET shared_preload_libraries dropped the shim, and LD_PRELOAD did not bring it; undo that with ALTER SYSTEM RESET"
	}
	profile, err := readRegular(store, path.Join(seedDir, profileConf), maxServerFile)
	if _, why, ok := strings.Cut(string(profile), contract.NoPreloadMark); ok {
		return "the image's server cannot load lazyrw: " + strings.TrimSpace(why)
	}
	if err == nil && !strings.Contains(string(profile), contract.PreloadConf) {
		return "LD_PRELOAD did not bring the shim, and its seed was made before branches could load it otherwise; refresh the seed"
	}
	for _, name := range []string{"postgresql.conf", profileConf} {
		if _, ok := s.stat(name); ok {
			return fmt.Sprintf("its %s was changed and loads the shim no more, and LD_PRELOAD did not bring it", name)
		}
	}
	return "its server did not load the shim: is its image of another architecture than the engine?"
}
