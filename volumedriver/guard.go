package volumedriver

import (
	"os"
	"path"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// guarded are the names, at a volume's root, of folders that an image would make a
// fresh cluster in although the branch's own lies elsewhere. data: of an image up to 17
// over a branch that is mounted one level too high, at /var/lib/postgresql, where the
// Engine then mounts the image's anonymous VOLUME below it. pgdata: of a PGDATA one
// level below the mount, as the stock image's page recommends for other volumes.
var guarded = []string{"data", "pgdata"}

// The file's name must change with its text: see install.
const (
	guardFile = "not-here"
	guardText = "This volume is a branch, and it is not mounted where its cluster is looked for.\n" +
		"`docker pgbranch ls` says where it belongs; docs/compose.md explains it.\n"
)

// guardPlaces puts a link to a file where such a folder would be, so that the container
// does not start: runc mounts no folder on a file, and mkdir makes none there. It is a
// link because a base backup leaves it out, and it leads to a file because the stock
// image's entrypoint runs chown on what has another owner. The layer lies below the
// seed, so a folder of that name in the seed wins.
func guardPlaces(root *os.Root, layer string, uid int) error {
	to := path.Join(contract.RuntimeDir, guardFile)
	if err := writeOwned(root, path.Join(layer, to), strings.NewReader(guardText), uid, uid); err != nil {
		return err
	}
	for _, name := range guarded {
		link := path.Join(layer, name)
		if err := root.Symlink(to, link); err != nil {
			return err
		}
		if err := root.Lchown(link, uid, uid); err != nil {
			return err
		}
	}
	return nil
}
