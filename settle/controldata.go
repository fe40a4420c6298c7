package settle

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// States of a cluster as pg_controldata prints them (dbState in pg_controldata.c).
const (
	stateShutDown           = "shut down"
	stateShutDownInRecovery = "shut down in recovery"
)

// controlData is what the settle needs of pg_control.
type controlData struct {
	state            string
	systemIdentifier string
	// redoFile is the name of the WAL segment in which the last checkpoint's redo
	// starts.
	redoFile string
	// segmentSize and blockSize are WAL's, in bytes.
	segmentSize, blockSize int64
	checksums              bool
	fullPageWrites         bool
	// settings are those that recovery demands and that a server with other values
	// records anew (XLogReportParameters in xlog.c), under their GUC's name.
	settings map[string]string
}

// controlFields are pg_controldata's labels of settings.
var controlFields = map[string]string{
	"wal_level setting":              "wal_level",
	"wal_log_hints setting":          "wal_log_hints",
	"max_connections setting":        "max_connections",
	"max_worker_processes setting":   "max_worker_processes",
	"max_wal_senders setting":        "max_wal_senders",
	"max_prepared_xacts setting":     "max_prepared_transactions",
	"max_locks_per_xact setting":     "max_locks_per_transaction",
	"track_commit_timestamp setting": "track_commit_timestamp",
}

func (a account) controlData(ctx context.Context, data string) (controlData, error) {
	out, err := a.output(ctx, "pg_controldata", "-D", data)
	if err != nil {
		return controlData{}, err
	}
	return parseControlData(out)
}

// parseControlData reads what pg_controldata prints with LC_ALL=C.
func parseControlData(text string) (controlData, error) {
	c := controlData{settings: map[string]string{}}
	for line := range strings.Lines(text) {
		label, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		if name, ok := controlFields[label]; ok {
			c.settings[name] = value
			continue
		}
		var err error
		switch label {
		case "Database cluster state":
			c.state = value
		case "Database system identifier":
			c.systemIdentifier = value
		case "Latest checkpoint's REDO WAL file":
			c.redoFile = value
		case "Latest checkpoint's full_page_writes":
			c.fullPageWrites = value == "on"
		case "Bytes per WAL segment":
			c.segmentSize, err = strconv.ParseInt(value, 10, 64)
		case "WAL block size":
			c.blockSize, err = strconv.ParseInt(value, 10, 64)
		case "Data page checksum version":
			c.checksums = value != "0"
		}
		if err != nil {
			return c, fmt.Errorf("pg_controldata: %q: %w", label, err)
		}
	}
	if c.state == "" || c.systemIdentifier == "" || c.redoFile == "" || c.segmentSize <= 0 || c.blockSize <= 0 ||
		len(c.settings) != len(controlFields) {
		return c, fmt.Errorf("pg_controldata printed something unknown:\n%s", text)
	}
	return c, nil
}
