package settle

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// dumper is one run of pg_dump into a staging volume, beside the seed's root.
type dumper struct {
	req     contract.DumpRequest
	src     source
	account account
	events  *events
	home    scratch
}

func runDump(ctx context.Context, in *input, ev *events) (contract.AgentEvent, error) {
	var answer contract.AgentEvent
	d := &dumper{events: ev}
	if err := in.request(&d.req); err != nil {
		return answer, err
	}
	holdStage(d.req.Stage)
	var err error
	if d.src, err = parseSource(d.req.Source); err != nil {
		return answer, err
	}
	if d.account, err = postgresAccount(); err != nil {
		return answer, err
	}
	image, err := imageMajor(ctx, d.account, "pg_dump")
	if err != nil {
		return answer, err
	}
	if d.req.Major > image {
		return answer, fail(contract.AgentErrMajor, fmt.Sprintf("use --image postgres:%d", d.req.Major),
			"the source runs Postgres %d and the image has Postgres %d, whose pg_dump does not read it", d.req.Major, image)
	}
	if d.home, err = newScratch(d.account); err != nil {
		return answer, err
	}
	defer d.home.remove()
	result, err := d.run(ctx)
	if err != nil {
		_ = os.RemoveAll(filepath.Join(d.req.Stage, contract.StagedDump))
		return answer, err
	}
	return contract.AgentEvent{Stage: contract.StageDump, Dump: result}, nil
}

func (d *dumper) run(ctx context.Context) (*contract.DumpResult, error) {
	if err := reachable(d.req.Stage); err != nil {
		return nil, err
	}
	if err := d.account.mkdir(filepath.Join(d.req.Stage, contract.StagedDump), 0o700); err != nil {
		return nil, err
	}
	result := &contract.DumpResult{}
	roles := filepath.Join(d.req.Stage, contract.StagedRolesFile)
	// Without passwords pg_dumpall reads pg_roles, which everybody may, and not pg_authid.
	if err := d.tool(ctx, "pg_dumpall", "--roles-only", "--no-role-passwords", "--file="+roles); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		_ = os.Remove(roles)
		result.Notes = append(result.Notes, "roles are those that the dump names, since pg_dumpall may not read the source's: "+errorText(err))
	}
	file := filepath.Join(d.req.Stage, contract.StagedDumpFile)
	done := make(chan struct{})
	defer close(done)
	go d.watch(file, done)
	// Little compression: the file is read once, from the same disk.
	if err := d.tool(ctx, "pg_dump", "--format=custom", "--compress=1", "--file="+file); err != nil {
		return nil, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	result.Bytes = info.Size()
	return result, nil
}

// watch reports the size of the file while it grows.
func (d *dumper) watch(file string, done <-chan struct{}) {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			if info, err := os.Stat(file); err == nil {
				d.events.progress(contract.StageDump, info.Size(), 0)
			}
		}
	}
}

// tool runs one of pg_dump's kind against the source.
func (d *dumper) tool(ctx context.Context, name string, args ...string) error {
	path, err := tool(name)
	if err != nil {
		return err
	}
	args = append(args, "--dbname="+d.src.url, "--no-password", "--no-sync")
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = d.home.dir, environment(d.home.dir)
	cmd.SysProcAttr = d.account.attributes(syscall.SIGKILL)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	log := newTail(lastLines)
	cmd.Stdout, cmd.Stderr = log, log
	release, err := d.src.give(cmd, d.account)
	if err != nil {
		return err
	}
	err = cmd.Start()
	release()
	if err == nil {
		err = cmd.Wait()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	e := fail(contract.AgentErrDump, dumpHint(log.lines()), "%s failed: %s%s", name, exitText(err), toolError(log.lines()))
	e.Log = log.lines()
	return e
}

// dumpHint is what to do about a failure of pg_dump.
func dumpHint(log []string) string {
	text := strings.Join(log, "\n")
	switch {
	case strings.Contains(text, "out of shared memory"), strings.Contains(text, "max_locks_per_transaction"):
		return "pg_dump locks every table of the database at once: raise max_locks_per_transaction on the source and restart it"
	case strings.Contains(text, "permission denied"):
		return "the role must be able to read every table: GRANT pg_read_all_data TO it, or name another role"
	case strings.Contains(text, "row-level security"):
		return "the role must have BYPASSRLS, or be the tables' owner"
	case strings.Contains(text, "conflict with recovery"):
		return "the source is a standby: raise max_standby_streaming_delay there, or dump its primary"
	}
	return ""
}
