package settle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Files that would make the copy act as something else than a primary, or belong
// to the server process that it was copied from. backup_label and the history
// files stay: recovery needs them.
var staleFiles = []string{
	"standby.signal", "recovery.signal", "recovery.conf", "postmaster.pid", "postmaster.opts",
	"backup_manifest", "current_logfiles", "global/pg_internal.init",
	contract.RuntimeDir, contract.PasswordFile, contract.PasswordFile + ".new", // of a source that is itself a branch
}

// Directories whose contents are of no use without the server that made them.
var staleContents = []string{
	"pg_replslot", "pg_logical/snapshots", "pg_logical/mappings", "pg_stat_tmp", "pg_dynshmem", "pg_notify",
	"pg_serial", "pg_snapshots", "pg_wal/archive_status", "pg_wal/summaries", "base/pgsql_tmp",
}

// logDirs are where the logging collector writes unless it is told otherwise.
var logDirs = []string{"log", "pg_log"}

// spentFiles are left by the recovery and the private server.
var spentFiles = []string{"backup_label.old", "tablespace_map.old", "postmaster.opts", "postmaster.pid", "current_logfiles"}

// clearStale removes from PGDATA what must not be there when the private server
// starts, and returns the replication slots that came along.
func clearStale(root *os.Root) ([]contract.Change, error) {
	var changes []contract.Change
	slots, err := fs.ReadDir(root.FS(), "pg_replslot")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, slot := range slots {
		changes = append(changes, slotChange(slot.Name()))
	}
	for _, name := range []string{"standby.signal", "recovery.signal"} {
		if _, err := root.Lstat(name); err == nil {
			changes = append(changes, contract.Change{What: name, Why: whyStandby})
		}
	}
	for _, name := range staleFiles {
		if err := root.RemoveAll(name); err != nil {
			return nil, err
		}
	}
	for _, dir := range logDirs {
		if entries, _ := fs.ReadDir(root.FS(), dir); len(entries) > 0 {
			changes = append(changes, contract.Change{What: dir + "/", Why: "the source's log holds its queries, and a branch has no use for it"})
		}
	}
	if err := emptyAll(root, slices.Concat(staleContents, logDirs)); err != nil {
		return nil, err
	}
	return changes, dropTablespaceMap(root)
}

func slotChange(name string) contract.Change {
	return contract.Change{What: "replication slot " + name, Why: "a slot without its consumer keeps all WAL for ever"}
}

// emptyAll removes what is in the directories and keeps these: the server expects
// them to be there.
func emptyAll(root *os.Root, dirs []string) error {
	for _, dir := range dirs {
		entries, err := fs.ReadDir(root.FS(), dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if err := root.RemoveAll(path.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropTablespaceMap removes PGDATA/tablespace_map when each tablespace in it is
// already a directory: recovery would try to put a link in its place
// (read_tablespace_map and remove_tablespace_symlink, xlogrecovery.c and
// tablespace.c).
func dropTablespaceMap(root *os.Root) error {
	text, err := root.ReadFile("tablespace_map")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		oid, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, err := strconv.ParseUint(oid, 10, 32); err != nil {
			continue
		}
		info, err := root.Lstat("pg_tblspc/" + oid)
		if err != nil || !info.IsDir() {
			return fail(contract.AgentErrFailed, "", "the tablespace %s is not a part of the copy", oid)
		}
	}
	return root.Remove("tablespace_map")
}

// checkTablespaces refuses links in pg_tblspc: what they name is not a part of the
// seed, and branches would share it. It says whether there are any tablespaces.
func checkTablespaces(root *os.Root) (found bool, err error) {
	entries, err := fs.ReadDir(root.FS(), "pg_tblspc")
	if err != nil {
		return false, err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			return false, fail(contract.AgentErrFailed, "", "the tablespace %s lies outside the copy", entry.Name())
		}
	}
	if info, err := root.Lstat("pg_wal"); err != nil || !info.IsDir() {
		return false, fail(contract.AgentErrFailed, "", "the copy's pg_wal is not a directory in it")
	}
	return len(entries) > 0, nil
}

// clearSpent removes from the settled cluster what only recovery and the private
// server needed. pg_internal.init goes too: every server removes it at its start
// (RelationCacheInitFileRemove in relcache.c), and on an overlay the removal of a
// file that is not there leaves nothing behind. pg_stat stays: it tells a branch's
// autovacuum that there is nothing to do.
func clearSpent(root *os.Root) error {
	for _, name := range spentFiles {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	if err := emptyAll(root, []string{"pg_wal/archive_status", "pg_wal/summaries", "pg_dynshmem", "pg_stat_tmp",
		"pg_notify", "pg_serial", "pg_snapshots", "pg_logical/snapshots", "pg_logical/mappings", "base/pgsql_tmp"}); err != nil {
		return err
	}
	for _, pattern := range []string{"global/pg_internal.init", "base/*/pg_internal.init", "pg_tblspc/*/PG_*/*/pg_internal.init"} {
		names, err := fs.Glob(root.FS(), pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := root.Remove(name); err != nil {
				return fmt.Errorf("remove %s: %w", name, err)
			}
		}
	}
	return nil
}
