package engine

import (
	"fmt"
	"strings"
)

// notAServer refuses what is named in the place of a server that runs: a data folder, a
// volume, a container. Files that a server may be writing to are of many moments and
// recover to none of them; only the server itself can say where its backup begins
// (backup_label, do_pg_backup_start in xlog.c). It is nil for everything else.
func notAServer(from string) error {
	refusal := func(cause, hint string) error {
		return &Error{Kind: KindInvalid, Object: "--from", Cause: cause + ", and a seed is copied from a server that runs", Hint: hint}
	}
	const thenCopy = "then copy it: --from postgres://USER@db/DATABASE --network NETWORK"
	scheme, rest, ok := strings.Cut(from, ":")
	switch {
	case ok && (scheme == "volume" || scheme == "file"):
		return refusal(fmt.Sprintf("%q names files", from), startOn(strings.TrimPrefix(rest, "//"))+"; "+thenCopy)
	case ok && scheme == "container":
		return refusal(fmt.Sprintf("%q names a container", from),
			fmt.Sprintf("name the server in it, by a network that it is on: --from postgres://USER@%s/DATABASE --network NETWORK", strings.TrimPrefix(rest, "//")))
	case strings.HasPrefix(from, "/"), strings.HasPrefix(from, "./"), strings.HasPrefix(from, "../"), strings.HasPrefix(from, "~"), from == ".":
		return refusal(fmt.Sprintf("%q is a path", from), startOn(from)+"; "+thenCopy)
	}
	return nil
}

// startOn says how to start a server over a data folder or a volume.
func startOn(data string) string {
	return fmt.Sprintf("start a server of its major on it, if none runs there: docker run -d --name db --network NETWORK -v %s:/var/lib/postgresql/data postgres:MAJOR (from 18 on at /var/lib/postgresql)", data)
}
