package settle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// stopGrace is how long pg_basebackup gets to end after SIGTERM.
const stopGrace = 5 * time.Second

// backup is one run of pg_basebackup into a staging volume.
type backup struct {
	req     contract.BaseBackupRequest
	src     source
	account account
	events  *events
	// noSlots says that the source has replication slots switched off.
	noSlots bool
	// unfit is in what the image does not suit the source.
	unfit []contract.Unfit
	// data is PGDATA in the staging volume, spaces the folder that tablespaces are
	// received in; it is beside the seed's root and goes away.
	data, spaces string
}

func runBaseBackup(ctx context.Context, in *input, ev *events) (contract.AgentEvent, error) {
	var answer contract.AgentEvent
	b := &backup{events: ev}
	if err := in.request(&b.req); err != nil {
		return answer, err
	}
	holdStage(b.req.Stage)
	var err error
	if b.src, err = parseSource(b.req.Source); err != nil {
		return answer, err
	}
	if b.account, err = postgresAccount(); err != nil {
		return answer, err
	}
	if b.data, err = dataDir(b.req.Stage, b.req.DataDir); err != nil {
		return answer, err
	}
	b.spaces = filepath.Join(b.req.Stage, "tablespaces")
	if entries, err := os.ReadDir(b.data); err == nil && len(entries) > 0 {
		return answer, fail(contract.AgentErrFailed, "", "the staging volume already holds a copy")
	}
	if err := b.checkSource(ctx); err != nil {
		return answer, err
	}
	result, err := b.run(ctx)
	if err != nil {
		b.undo()
		return answer, err
	}
	return contract.AgentEvent{Stage: contract.StageBaseBackup, BaseBackup: result}, nil
}

// dataDir is PGDATA in a staging volume. relative is Manifest.DataDir.
func dataDir(stage, relative string) (string, error) {
	if !filepath.IsAbs(stage) {
		return "", fmt.Errorf("the staging volume %q is not an absolute path", stage)
	}
	if !filepath.IsLocal(relative) {
		return "", fmt.Errorf("the data directory %q is not below the seed's root", relative)
	}
	return filepath.Join(stage, contract.StagingRoot, relative), nil
}

// checkSource refuses before anything is copied what pg_basebackup or the image's
// server would refuse after. It also gives every failure to connect its code.
func (b *backup) checkSource(ctx context.Context) error {
	image, err := imageMajor(ctx, b.account, "pg_basebackup")
	if err != nil {
		return err
	}
	conn, err := b.src.connect(ctx, b.src.replication(), forReplication)
	if err != nil {
		return err
	}
	version := conn.PgConn().ParameterStatus("server_version")
	slots, err := conn.PgConn().Exec(ctx, "SHOW max_replication_slots").ReadAll()
	conn.Close(context.WithoutCancel(ctx))
	if err != nil {
		return b.src.queryFailure(err)
	}
	b.noSlots = len(slots) == 1 && len(slots[0].Rows) == 1 && string(slots[0].Rows[0][0]) == "0"
	var major int
	if _, err := fmt.Sscanf(version, "%d", &major); err != nil {
		return pooler("its server_version is " + version)
	}
	if err := refuseMajor(major, version); err != nil {
		return err
	}
	if major != image || b.req.Major != 0 && b.req.Major != major {
		return fail(contract.AgentErrMajor, fmt.Sprintf("use --image postgres:%d", major),
			"the source runs Postgres %s and the image has Postgres %d: files of one major are of no use to another", version, image)
	}
	return b.checkImage(ctx)
}

// checkImage refuses an image in which the source's databases would not work, or would
// sort otherwise.
func (b *backup) checkImage(ctx context.Context) error {
	facts, err := imageFacts(ctx, b.account)
	if err != nil {
		return err
	}
	source := contract.Manifest{
		Databases: b.req.Databases, Libc: b.req.Libc, Extensions: b.req.Extensions, PreloadLibraries: b.req.PreloadLibraries,
	}
	b.unfit = source.Fit(*facts)
	return unsuited(b.unfit, b.req.Force)
}

func (b *backup) run(ctx context.Context) (*contract.BaseBackupResult, error) {
	if err := b.makeDirectories(); err != nil {
		return nil, err
	}
	home, err := newScratch(b.account)
	if err != nil {
		return nil, err
	}
	defer home.remove()
	cmd, err := b.command(ctx, home.dir)
	if err != nil {
		return nil, err
	}
	skipped, err := b.copy(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if err := b.bringTablespacesIn(); err != nil {
		return nil, err
	}
	label, err := readBackupLabel(b.data)
	if err != nil {
		return nil, err
	}
	if err := refuseSkipped(skipped); err != nil {
		return nil, err
	}
	size, err := treeBytes(filepath.Join(b.req.Stage, contract.StagingRoot))
	if err != nil {
		return nil, err
	}
	return &contract.BaseBackupResult{StartLSN: label.startLSN, Bytes: size, Skipped: skipped, Unfit: b.unfit}, nil
}

// makeDataDir makes the seed's root, and PGDATA in it with mode 0700, which the
// server demands (checkDataDir in miscinit.c).
func (a account) makeDataDir(stage, relative string) error {
	if err := reachable(stage); err != nil {
		return err
	}
	dir := filepath.Join(stage, contract.StagingRoot)
	if err := a.mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, part := range strings.Split(filepath.Clean(relative), "/") {
		dir = filepath.Join(dir, part)
		if err := a.mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

// makeDirectories makes PGDATA and a folder for each tablespace.
func (b *backup) makeDirectories() error {
	if err := b.account.makeDataDir(b.req.Stage, b.req.DataDir); err != nil {
		return err
	}
	if len(b.req.Tablespaces) == 0 {
		return nil
	}
	if err := b.account.mkdir(b.spaces, 0o700); err != nil {
		return err
	}
	for _, t := range b.req.Tablespaces {
		if err := b.account.mkdir(b.space(t), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// reachable lets the account through the staging volume's own root.
func reachable(stage string) error {
	info, err := os.Stat(stage)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o011 == 0o011 {
		return nil
	}
	return os.Chmod(stage, info.Mode().Perm()|0o011)
}

func (b *backup) space(t contract.Tablespace) string {
	return filepath.Join(b.spaces, fmt.Sprint(t.OID))
}

// command is pg_basebackup. It makes a temporary replication slot for the WAL,
// which goes with its connection however that ends; a source without slots gets
// none. There is no backup manifest, since nothing reads it, and no sync, since the
// settle syncs the volume.
func (b *backup) command(ctx context.Context, home string) (*exec.Cmd, error) {
	path, err := tool("pg_basebackup")
	if err != nil {
		return nil, err
	}
	args := []string{
		"--dbname=" + b.src.url, "--pgdata=" + b.data, "--wal-method=stream", "--checkpoint=fast",
		"--no-password", "--progress", "--no-manifest", "--no-sync",
	}
	if b.req.MaxRate > 0 {
		args = append(args, "--max-rate="+strconv.FormatInt(b.req.MaxRate>>10, 10)) // kilobytes
	}
	if b.noSlots {
		args = append(args, "--no-slot")
	}
	for _, t := range b.req.Tablespaces {
		args = append(args, "--tablespace-mapping="+escapeMapping(t.Location)+"="+escapeMapping(b.space(t)))
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = home
	cmd.Env = environment(home)
	cmd.SysProcAttr = b.account.attributes(syscall.SIGKILL)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	return cmd, nil
}

// escapeMapping escapes what separates the two halves of a tablespace mapping
// (tablespace_list_append in pg_basebackup.c).
func escapeMapping(path string) string { return strings.ReplaceAll(path, "=", `\=`) }

// copy runs pg_basebackup and ends all of its process group with it: the WAL
// receiver is a second process. It gives what the source has left out.
func (b *backup) copy(ctx context.Context, cmd *exec.Cmd) (skipped []string, err error) {
	release, err := b.src.give(cmd, b.account)
	if err != nil {
		return nil, err
	}
	defer release()
	out := &backupOutput{tail: newTail(lastLines), progress: func(done, total int64) {
		b.events.progress(contract.StageBaseBackup, done, total)
	}}
	cmd.Stdout, cmd.Stderr = out, out
	b.events.say(contract.StageBaseBackup, "waiting for a checkpoint of %s", b.src.address())
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		e := fail(contract.AgentErrFailed, "", "pg_basebackup failed: %s", exitText(err))
		e.Log = out.tail.lines()
		e.Message += toolError(e.Log)
		return nil, e
	}
	out.finish()
	return out.skipped, nil
}

// essential are the entries of PGDATA in which a link stands for data: without it
// the copy is not whole. pg_wal is sent as a directory wherever it is.
var essential = []string{
	"base", "global", "pg_tblspc", "pg_xact", "pg_multixact", "pg_commit_ts", "pg_twophase", "pg_logical",
}

// refuseSkipped refuses a copy in which something is missing that only a hand has
// put elsewhere, such as a database's folder behind a link: the source sends
// nothing of it and warns (sendDir in basebackup.c).
func refuseSkipped(skipped []string) error {
	for _, name := range skipped {
		first, _, _ := strings.Cut(name, "/")
		if slices.Contains(essential, first) {
			return fail(contract.AgentErrFailed, "move it back into the data directory, or into a tablespace",
				"%s in the source's data directory is a link, and a base backup does not follow it", name)
		}
	}
	return nil
}

// toolError is ": " and the last error among a tool's lines, "" if there is none.
func toolError(log []string) string {
	for i := len(log) - 1; i >= 0; i-- {
		if _, text, ok := strings.Cut(log[i], "error: "); ok {
			return ": " + text
		}
	}
	return ""
}

// bringTablespacesIn replaces each link of pg_tblspc by the directory that it
// names, so that a tablespace is a part of the seed's tree. The server takes a
// directory there as it takes a link.
func (b *backup) bringTablespacesIn() error {
	links := filepath.Join(b.data, "pg_tblspc")
	entries, err := os.ReadDir(links)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Type()&fs.ModeSymlink == 0 {
			continue
		}
		link := filepath.Join(links, entry.Name())
		received := filepath.Join(b.spaces, entry.Name())
		if target, err := os.Readlink(link); err != nil || target != received {
			return fail(contract.AgentErrFailed, "run it again: the source made a tablespace meanwhile",
				"the tablespace %s was not brought into the copy", entry.Name())
		}
		// The source takes a folder that is not there for a tablespace that was dropped
		// meanwhile, and sends nothing of it (sendTablespace in basebackup.c).
		if versions, err := os.ReadDir(received); err != nil || len(versions) == 0 {
			return b.tablespaceMissing(entry.Name())
		}
		if err := os.Remove(link); err != nil {
			return err
		}
		if err := os.Rename(received, link); err != nil {
			return err
		}
	}
	return os.RemoveAll(b.spaces)
}

func (b *backup) tablespaceMissing(oid string) error {
	for _, t := range b.req.Tablespaces {
		if fmt.Sprint(t.OID) == oid {
			return unreadable(t)
		}
	}
	return fail(contract.AgentErrFailed, "", "the source sent nothing of the tablespace %s", oid)
}

// undo empties the staging volume of what was received.
func (b *backup) undo() {
	_ = os.RemoveAll(b.spaces)
	root := filepath.Join(b.req.Stage, contract.StagingRoot)
	entries, _ := os.ReadDir(root)
	for _, entry := range entries {
		_ = os.RemoveAll(filepath.Join(root, entry.Name()))
	}
}

// treeBytes is the sum of the sizes of the regular files below root.
func treeBytes(root string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(root, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}
