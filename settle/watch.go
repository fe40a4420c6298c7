package settle

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// watch tells a server that works from one that hangs, by what /proc says of the
// postmaster's children.
type watch struct {
	postmaster string
	seen       string
	title      string
	changed    time.Time
	looked     time.Time
}

func newWatch(postmaster int) *watch {
	return &watch{postmaster: strconv.Itoa(postmaster), changed: time.Now()}
}

// lookEvery bounds how often /proc is read.
const lookEvery = time.Second

// look returns the startup process' title when it has changed since the last look,
// "startup recovering 0000…", and whether anything has within stalledAfter.
func (w *watch) look() (title string, alive bool) {
	now := time.Now()
	if now.Sub(w.looked) < lookEvery {
		return "", true
	}
	w.looked = now
	signs, current := w.signs()
	if signs != w.seen {
		w.seen, w.changed = signs, now
	}
	if current != "" && current != w.title {
		w.title = current
		title = current
	}
	return title, now.Sub(w.changed) < stalledAfter
}

// signs are the processor times and I/O of the postmaster's children.
func (w *watch) signs() (signs, startup string) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var b strings.Builder
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// pid (comm) state ppid …; comm may hold anything, so count from its end.
		_, after, ok := bytes.Cut(text, []byte(") "))
		fields := strings.Fields(string(after))
		if !ok || len(fields) < 13 || fields[1] != w.postmaster {
			continue
		}
		dir := filepath.Dir(path)
		bytesRead, _ := os.ReadFile(dir + "/io") // unreadable for another uid; then time must do
		fmt.Fprintln(&b, path, fields[11], fields[12], string(bytesRead))
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		if _, t, ok := strings.Cut(string(bytes.TrimRight(cmdline, "\x00 ")), "startup "); ok {
			startup = strings.TrimSpace(t)
			fmt.Fprintln(&b, t)
		}
	}
	return b.String(), startup
}
