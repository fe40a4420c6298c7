package settle

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// backupLabel is what a base backup says of its start (build_backup_content in
// xlogbackup.c).
type backupLabel struct {
	startLSN string
}

var labelStart = pattern(`(?m)^START WAL LOCATION: ([0-9A-F]+/[0-9A-F]+) `)

// readBackupLabel reads PGDATA/backup_label. A copy of a running server without
// one is not a backup: recovery would start at the wrong place and end in silent
// corruption.
func readBackupLabel(data string) (backupLabel, error) {
	text, err := os.ReadFile(filepath.Join(data, "backup_label"))
	if errors.Is(err, fs.ErrNotExist) {
		return backupLabel{}, fail(contract.AgentErrFailed, "", "the copy has no backup_label: it is no base backup")
	}
	if err != nil {
		return backupLabel{}, err
	}
	m := labelStart().FindSubmatch(text)
	if m == nil {
		return backupLabel{}, fail(contract.AgentErrFailed, "", "the copy's backup_label is damaged")
	}
	return backupLabel{startLSN: string(m[1])}, nil
}
