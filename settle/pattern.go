package settle

import (
	"regexp"
	"sync"
)

// pattern is a regular expression that is compiled when it is first used: every
// start of the agent would pay for it, and `ready` is on the way of every branch's
// creation.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}
