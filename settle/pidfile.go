package settle

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// What a postmaster writes about itself into postmaster.pid (pidfile.h).
const (
	statusStarting = "starting"
	statusStopping = "stopping"
	statusReady    = "ready"
)

// Lines of postmaster.pid, from 0.
const (
	pidLine    = 0
	statusLine = 7
)

// postmasterStatus reads PGDATA/postmaster.pid: what the postmaster says of itself,
// and its pid. Both are empty while there is none. A file that an unclean stop has
// left says whatever that server said last.
func postmasterStatus(data string) (status string, pid int) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return "", 0
	}
	lines := strings.Split(string(text), "\n")
	pid, _ = strconv.Atoi(strings.TrimSpace(lines[pidLine]))
	if len(lines) > statusLine {
		status = strings.TrimSpace(lines[statusLine])
	}
	return status, pid
}
