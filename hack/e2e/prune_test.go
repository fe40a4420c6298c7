//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// leftovers are the branches that CI jobs left which were killed: n of them with a
// short term, without a container, with one that never started, or with one that died.
func leftovers(t *testing.T, seed string, n int) {
	t.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range n {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			name := fmt.Sprintf("%sjob-%03d", prefix, i)
			run := func(args ...string) {
				if r := command("", "docker", args...); r.code != 0 {
					t.Errorf("docker %q: %s", args, r.stderr)
				}
			}
			run("volume", "create", "-d", "pgoverlay", "-o", "seed="+seed, "-o", "ttl=1ms", name)
			container := []string{"--name", "pgbranch-" + name, "--label", "io.github.pgbranch.branch=" + name,
				"-v", name + ":/var/lib/postgresql/data:nocopy", "--network", "none", "--entrypoint", "false", "postgres:17"}
			switch i % 10 {
			case 0: // started, and dead
				run(append([]string{"create"}, container...)...)
				command("", "docker", "start", "-a", "pgbranch-"+name)
			case 1, 2, 3: // killed before the start
				run(append([]string{"create"}, container...)...)
			}
		})
	}
	wg.Wait()
}

// A hundred killed jobs' leftovers go, and nothing else does, with two prunes at once.
func TestPrune(t *testing.T) {
	seed := anySeed(t)
	const jobs = 100
	running, young, foreign, parent := prefix+"run", prefix+"young", prefix+"foreign", prefix+"parent"
	branch(t, running, seed, "--ttl", "1s")
	volume := func(name string, options ...string) {
		args := []string{"volume", "create", "-d", "pgoverlay"}
		for _, o := range options {
			args = append(args, "-o", o)
		}
		docker(t, append(args, name)...)
		t.Cleanup(func() { command("", "docker", "volume", "rm", "-f", name) })
	}
	volume(young, "seed="+seed, "ttl=24h")
	volume(foreign, "seed="+seed, "ttl=1ms")
	docker(t, "create", "--name", foreign, "-v", foreign+":/var/lib/postgresql/data:nocopy", "postgres:17")
	t.Cleanup(func() { command("", "docker", "rm", "-f", foreign) })
	volume(parent, "seed="+seed, "ttl=1ms")
	volume(prefix+"child", "branch="+parent, "ttl=24h")
	leftovers(t, seed, jobs)
	if t.Failed() {
		return
	}

	r := try("prune", "--dry-run")
	if n := strings.Count(r.stdout, prefix+"job-"); r.code != 0 || n != jobs {
		t.Errorf("a dry run names %d of %d jobs: exit %d, %s", n, jobs, r.code, r.stderr)
	}
	if r := try("prune"); r.code != 2 || !strings.Contains(r.stderr, "--force") {
		t.Errorf("without -f and a terminal: exit %d, %s", r.code, r.stderr)
	}
	begin := time.Now()
	var both [2]result
	var wg sync.WaitGroup
	for i := range both {
		wg.Go(func() { both[i] = try("prune", "-f") })
	}
	wg.Wait()
	t.Logf("two prunes of %d branches at once took %s", jobs, time.Since(begin).Round(time.Millisecond))
	for _, r := range both {
		if r.code != 0 || !strings.Contains(r.stdout, "Total reclaimed space: ") {
			t.Errorf("prune: exit %d\n%s\n%s", r.code, r.stdout, r.stderr)
		}
	}
	// One of the two may have met the other at work, and left that branch to it.
	try("prune", "-f")
	for _, name := range []string{running, young, foreign, parent, prefix + "child"} {
		docker(t, "volume", "inspect", name)
	}
	if got := sql(t, running, "shop", "SELECT 1"); got != "1" {
		t.Errorf("the branch that runs says %q", got)
	}
	if left := docker(t, "volume", "ls", "-q", "--filter", "name="+prefix+"job-"); left != "" {
		t.Errorf("left: %s", left)
	}
	if left := docker(t, "ps", "-aq", "--filter", "name="+prefix+"job-"); left != "" {
		t.Errorf("containers left: %s", left)
	}
	everyVerbReaps(t, seed, running)
}

// everyVerbReaps: any verb removes what has expired, other than what it is about, and a
// name is free again when its branch has expired.
func everyVerbReaps(t *testing.T, seed, running string) {
	t.Helper()
	leftovers(t, seed, 2)
	first := prefix + "job-000"
	if r := try("inspect", first); r.code != 0 || !strings.Contains(r.stderr, "removed 1 expired branches: "+prefix+"job-001") {
		t.Errorf("inspect: exit %d, %s", r.code, r.stderr)
	}
	branch(t, first, seed)
	if got := pgbranch(t, "inspect", "-f", "{{.State}} {{.Expired}}", first); got != "running <no value>" && got != "running false" {
		t.Errorf("the branch that took an expired one's name is %q", got)
	}
	if r := try("prune", "-f", "--running"); !strings.Contains(r.stdout, running) {
		t.Errorf("prune --running: %s\n%s", r.stdout, r.stderr)
	}
}

// A branch is named for the git branch, in a worktree as well, and says so.
func TestCreateForTheGitBranch(t *testing.T) {
	seed := anySeed(t)
	dir := t.TempDir()
	git := func(dir string, args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=e2e", "-c", "user.email=e2e@localhost"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	create := func(dir string) result {
		back, err := os.Getwd()
		if err == nil {
			err = os.Chdir(dir)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Chdir(back) }()
		return try("create", "--git", "--from", seed)
	}
	if r := create(dir); r.code != 2 || !strings.Contains(r.stderr, "not a git repository") {
		t.Errorf("outside of a repository: exit %d, %s", r.code, r.stderr)
	}
	git(dir, "init", "-q", "-b", prefix+"main")
	git(dir, "commit", "-q", "--allow-empty", "-m", "first")
	tree := filepath.Join(dir, "tree")
	git(dir, "worktree", "add", "-q", "-b", prefix+"feat/x_y", tree)
	const name = prefix + "feat_-x__y"
	t.Cleanup(func() { try("rm", "-f", name) })
	if r := create(tree); r.code != 0 || r.stdout != name {
		t.Fatalf("in a worktree: exit %d, %q, %s", r.code, r.stdout, r.stderr)
	}
	if got := pgbranch(t, "ls", "--filter", "name="+name, "--format", "{{.Git}}"); got != prefix+"feat/x_y" {
		t.Errorf("ls shows the git branch %q", got)
	}
	if got := pgbranch(t, "inspect", "-f", "{{.Git}}", name); got != prefix+"feat/x_y" {
		t.Errorf("inspect shows the git branch %q", got)
	}
	if r := create(tree); r.code != 4 || !strings.Contains(r.stderr, "exists already") {
		t.Errorf("again: exit %d, %s", r.code, r.stderr)
	}
	git(tree, "checkout", "-q", "--detach")
	if r := create(tree); r.code != 2 || !strings.Contains(r.stderr, "HEAD is detached") {
		t.Errorf("a detached HEAD: exit %d, %s", r.code, r.stderr)
	}
}
