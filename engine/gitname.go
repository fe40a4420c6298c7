package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// LabelGit, on a branch's volume and container, is the git branch that it was named
// for.
const LabelGit = "io.github.pgbranch.git"

// The rule by which a git branch gives a name that a branch may have. It can be undone,
// so that no two git branches share a name:
//
//	a-z A-Z 0-9 . -     stay
//	_                   becomes __
//	/                   becomes _-
//	any other byte      becomes _ and its two hex digits, as in _23 for #
//
// A name that does not begin with a letter or digit then, or has one character, gets
// gitLead before it. One that is too long is cut, and ends with gitHash and the first
// digits of its SHA-256: such a name cannot be undone, and LabelGit keeps the whole.
const (
	gitLead = "0_."
	gitHash = "_."
	// gitHashDigits makes a collision of cut names as unlikely as of git's own short
	// commit ids.
	gitHashDigits = 12
	// maxName is the longest name that contract.NamePattern allows.
	maxName = 128
)

// GitName gives the branch name for a git branch.
func GitName(git string) string {
	var b strings.Builder
	cut := 0 // the length up to which whole characters fit beside a hash
	for _, c := range []byte(git) {
		switch {
		case c == '_':
			b.WriteString("__")
		case c == '/':
			b.WriteString("_-")
		case isNameByte(c):
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "_%02x", c)
		}
		if len(gitLead)+b.Len()+len(gitHash)+gitHashDigits <= maxName {
			cut = b.Len()
		}
	}
	name := b.String()
	lead := ""
	if !contract.ValidName((name + "00")[:2]) || len(name) < 2 {
		lead = gitLead
	}
	if len(lead)+len(name) <= maxName {
		return lead + name
	}
	sum := sha256.Sum256([]byte(git))
	return lead + name[:cut] + gitHash + hex.EncodeToString(sum[:])[:gitHashDigits]
}

// isNameByte reports whether a byte stays as it is.
func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-'
}

// GitBranch undoes GitName. It gives false for a name that GitName does not make, and
// for one that was cut.
func GitBranch(name string) (string, bool) {
	rest := strings.TrimPrefix(name, gitLead)
	var b strings.Builder
	for i := 0; i < len(rest); i++ {
		if rest[i] != '_' {
			b.WriteByte(rest[i])
			continue
		}
		switch after := rest[i+1:]; {
		case strings.HasPrefix(after, "_"):
			b.WriteByte('_')
			i++
		case strings.HasPrefix(after, "-"):
			b.WriteByte('/')
			i++
		case len(after) >= 2:
			c, err := hex.DecodeString(after[:2])
			if err != nil {
				return "", false
			}
			b.Write(c)
			i += 2
		default:
			return "", false
		}
	}
	git := b.String()
	return git, GitName(git) == name
}
