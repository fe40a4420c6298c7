package volumedriver

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// nameLink is a symbolic link beside meta.json whose target is the volume's name. It is
// made after everything else: a folder with it was a volume, whatever became of its
// metadata, and is never taken for half-made. It costs no block on ext4.
const nameLink = "name"

// writeName makes the nameLink of a volume that is whole. Without it, after a crash, the
// next start makes it.
func (s *store) writeName(dir, name string) {
	if err := s.root.Symlink(name, path.Join(dir, nameLink)); err != nil && !errors.Is(err, fs.ErrExist) {
		s.log.Warn("cannot note a volume's name apart from its metadata", "volume", name, "error", err)
	}
}

// readIdentity reads a volume's meta.json into m, of which format is a field. Where that
// is damaged it gives the name that the nameLink has. half tells that the folder never
// became a volume. What is damaged is served, as far as that goes, and not deleted: at an answer that there is
// no such volume Docker forgets its labels and references, and a person decides.
func (d *Driver) readIdentity(dir string, m any, format *int) (name string, damage error, half bool) {
	err := readMeta(d.store.root, path.Join(dir, metaFile), m)
	switch {
	case err == nil && *format > storeFormat:
		err = fmt.Errorf("%s has format %d, and this plugin knows up to %d", path.Join(dir, metaFile), *format, storeFormat)
	case err == nil && *format < 1:
		err = fmt.Errorf("%s is damaged: it has no format", path.Join(dir, metaFile))
	case err == nil:
		return "", nil, false
	}
	name = d.store.readName(dir)
	if errors.Is(err, fs.ErrNotExist) && name == "" {
		return "", nil, true
	}
	return name, err, false
}

// readName gives the name that a volume's nameLink has, empty where there is none.
func (s *store) readName(dir string) string {
	name, err := s.root.Readlink(path.Join(dir, nameLink))
	if err != nil || !(contract.ValidName(name) || strings.Contains(name, "@")) {
		return ""
	}
	return name
}

// firstName gives the first name that is one, for a volume with that id.
func firstName(inMeta, inLink, id string) string {
	for _, name := range []string{inMeta, inLink} {
		if contract.ValidName(name) {
			return name
		}
	}
	return damagedName(id)
}

// damagedName is the name of a volume that has lost its own.
func damagedName(id string) string { return "damaged-" + id }

// splitSeedVolume takes apart what seedVolume joins; the generation is 0 where s is no
// such thing.
func splitSeedVolume(s string) (name string, generation int) {
	name, gen, _ := strings.Cut(s, "@")
	generation, err := strconv.Atoi(gen)
	if err != nil || generation < 1 || !contract.ValidName(name) {
		return "", 0
	}
	return name, generation
}

// refuseDamaged is the answer to what needs a volume's metadata.
func (v *volume) refuseDamaged() error {
	return &Error{Object: v.object(), Cause: "its metadata cannot be used", Err: v.damage,
		Hint: "bring back " + path.Join(v.dir(), metaFile) + " below the data root and restart the plugin, or remove it: docker volume rm " + v.name}
}

// manifestOf gives a seed's manifest or, where that cannot be used, what a mount needs of
// it, as the seed's files show it: its branches go on without.
func (d *Driver) manifestOf(seed *volume) (*contract.Manifest, error) {
	if seed.manifest != nil {
		return seed.manifest, nil
	}
	root, err := d.store.root.OpenRoot(path.Join(seed.dir(), rootDir))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// A seal gives the root, too, to the owner of the files.
	info, err := root.Lstat(".")
	if err != nil {
		return nil, err
	}
	m := &contract.Manifest{DataDir: ".", UID: int(info.Sys().(*syscall.Stat_t).Uid)}
	// PGDATA is MAJOR/docker from 18 on.
	for major := 18; major < 100; major++ {
		if dir := path.Join(strconv.Itoa(major), "docker"); isDir(root, dir) {
			m.DataDir = dir
		}
	}
	return m, nil
}

// mendNames makes the nameLinks that are missing.
func (d *Driver) mendNames() {
	d.mu.Lock()
	missing := map[string]string{}
	for _, v := range d.volumes {
		if v.damage == nil && v.phase == ready {
			missing[v.dir()] = v.name
		}
	}
	d.mu.Unlock()
	for dir, name := range missing {
		if _, err := d.store.root.Lstat(path.Join(dir, nameLink)); errors.Is(err, fs.ErrNotExist) {
			d.store.writeName(dir, name)
		}
	}
}
