//go:build e2e

package faults

import (
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// TestThePluginDiesAtEveryStep has the plugin end in the midst of each operation, at
// each of its steps. dockerd starts it again at once and sends the request again, with
// an empty body.
func TestThePluginDiesAtEveryStep(t *testing.T) {
	operations := []struct {
		name string
		// prepare makes what the operation needs and gives the arguments of docker.
		prepare func(r *rig) (args []string)
		// after checks the state after the crash, before the operation is repeated.
		after func(r *rig, args []string)
		// again repeats the operation; nil runs the same arguments again.
		again func(r *rig, args []string)
	}{
		{name: "create", prepare: func(*rig) []string { return createArgs(fresh("b"), "seed="+seedName) }},
		{name: "create staging", prepare: func(*rig) []string { return createArgs(fresh("s"), "staging="+fresh("other")) }},
		{
			name:    "mount",
			prepare: func(r *rig) []string { return r.holdArgs(fresh("c"), r.branch()) },
			again: func(r *rig, args []string) {
				container := args[slices.Index(args, "--name")+1]
				r.docker("start", container)
				r.check()
				r.docker("rm", "-f", container)
			},
		},
		{
			name:    "unmount",
			prepare: func(r *rig) []string { return []string{"stop", "-t", "0", r.hold(r.branch())} },
			again: func(r *rig, args []string) {
				container := args[len(args)-1]
				r.docker("start", container)
				r.docker("rm", "-f", container)
			},
		},
		{
			name:    "remove",
			prepare: func(r *rig) []string { return []string{"volume", "rm", r.branch()} },
			again: func(r *rig, args []string) {
				// It is gone, or can be removed.
				if _, err := r.Try(args...); err != nil {
					assert.Check(r.t, is.ErrorContains(err, "no such volume"))
				}
			},
		},
		{
			name: "reset",
			prepare: func(r *rig) []string {
				return createArgs(fresh("tk"), "op=reset", "volume="+r.branch())
			},
		},
		{
			name: "branch of a branch",
			prepare: func(r *rig) []string {
				return createArgs(fresh("b"), "branch="+r.branch())
			},
		},
		{
			name: "seal",
			prepare: func(r *rig) []string {
				staging := fresh("s")
				r.create(staging, "staging="+fresh("other"))
				r.fill(staging)
				return createArgs(fresh("tk"), "op=seal", "volume="+staging)
			},
		},
	}
	steps := map[string]bool{}
	for _, o := range operations {
		t.Run(o.name, func(t *testing.T) {
			for n := 1; ; n++ {
				r := newRig(t)
				args := o.prepare(r)
				pid := r.PID()
				r.ok(r.Order(n, "abort"))
				_, err := r.Try(args...)
				step := r.Hit()
				if step == "" {
					r.ok(err)
					assert.Check(t, n > 1, "the operation has no steps")
					break
				}
				steps[step] = true
				r.ok(r.Restarted(pid))
				t.Logf("%s: %v", step, err)
				// dockerd swallows an error of Unmount.
				if o.name != "unmount" {
					assert.Check(t, is.ErrorContains(err, "please retry"), step)
				}
				r.check()
				if o.again != nil {
					o.again(r, args)
				} else {
					r.docker(args...)
				}
				r.check()
				r.clean()
			}
		})
	}
	// A step that no operation comes by would be one that nobody tried.
	t.Log("died at:", strings.Join(sortedKeys(steps), "; "))
}
