package settle

import (
	"bytes"
	"strconv"
)

// progressLine is what pg_basebackup --progress prints with LC_ALL=C: kilobytes of
// 1024 (progress_report in pg_basebackup.c).
var progressLine = pattern(`^\s*(\d+)/(\d+) kB \(\d+%\), \d+/\d+ tablespaces?`)

// parseProgress returns the bytes of a progress line. total is never below done:
// the server's estimate may be too low.
func parseProgress(line string) (done, total int64, ok bool) {
	m := progressLine().FindStringSubmatch(line)
	if m == nil {
		return 0, 0, false
	}
	done, err1 := strconv.ParseInt(m[1], 10, 53)
	total, err2 := strconv.ParseInt(m[2], 10, 53)
	if err1 != nil || err2 != nil {
		return 0, 0, false
	}
	return done << 10, max(done, total) << 10, true
}

// backupOutput takes pg_basebackup's output: progress lines are reported, all
// others kept. Lines end in \r or \n.
type backupOutput struct {
	tail     *tail
	progress func(done, total int64)
	part     []byte
	done     int64
	// skipped are entries of PGDATA that the source has left out.
	skipped []string
}

// skippedFile matches the source's warning of an entry of PGDATA that is neither a
// file nor a directory, in whatever language and quotes (sendDir in basebackup.c).
var skippedFile = pattern(`["„“»«]\./([^"„“»«]+)["„“»«]`)

func (o *backupOutput) Write(p []byte) (int, error) {
	o.part = append(o.part, p...)
	for {
		end := bytes.IndexAny(o.part, "\r\n")
		if end < 0 {
			break
		}
		line := string(o.part[:end])
		o.part = o.part[end+1:]
		if done, total, ok := parseProgress(line); ok {
			o.done = done
			// done == total is said once, when all has been received.
			o.progress(done, max(total, done+1))
			continue
		}
		if m := skippedFile().FindStringSubmatch(line); m != nil {
			o.skipped = append(o.skipped, m[1])
		}
		_, _ = o.tail.Write([]byte(line + "\n"))
	}
	return len(p), nil
}

// finish reports that all is received.
func (o *backupOutput) finish() { o.progress(o.done, o.done) }
