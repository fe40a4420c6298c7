package volumedriver

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// takeSettings moves the options conf.NAME=VALUE out of opts and gives them as lines
// NAME=VALUE, sorted. Of a name in several spellings the server would take the last.
func takeSettings(object string, opts map[string]string) (rest map[string]string, lines string, err error) {
	rest = map[string]string{}
	settings := map[string]string{}
	for _, key := range sortedKeys(opts) {
		name, ok := strings.CutPrefix(key, contract.OptConfPrefix)
		if !ok {
			rest[key] = opts[key]
			continue
		}
		if err := contract.CheckSetting(name, opts[key]); err != nil {
			return nil, "", refuse(object, err.Error(), "leave it out, or write "+contract.OptConfPrefix+"NAME=VALUE with a setting of Postgres")
		}
		if _, twice := settings[strings.ToLower(name)]; twice {
			return nil, "", refuse(object, fmt.Sprintf("%s is set twice", strings.ToLower(name)), "leave one of them out")
		}
		settings[strings.ToLower(name)] = opts[key]
	}
	return rest, settingLines(settings), nil
}

// settingLines gives settings as sorted lines NAME=VALUE.
func settingLines(settings map[string]string) string {
	var b strings.Builder
	for _, name := range sortedKeys(settings) {
		b.WriteString(name + "=" + settings[name] + "\n")
	}
	return b.String()
}

// withSettings gives settings with those of lines over them.
func withSettings(settings map[string]string, lines string) map[string]string {
	all := maps.Clone(settings)
	for line := range strings.Lines(lines) {
		if all == nil {
			all = map[string]string{}
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		all[name] = value
	}
	return all
}

// branchConfText is contract.BranchConf of a branch. Values are quoted for GUC_scanstr
// in guc-file.l, where a backslash escapes. first are the libraries that the branch loads
// whatever it sets: shared_preload_libraries of its own would take the shim's place.
func branchConfText(settings map[string]string, first []string) string {
	var b strings.Builder
	b.WriteString("# What this branch sets on its own. It comes back with a reset; to change it in the\n" +
		"# running branch, use ALTER SYSTEM, which holds over this file.\n")
	quote := strings.NewReplacer(`'`, `''`, `\`, `\\`)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		value := settings[name]
		if name == "shared_preload_libraries" {
			value = strings.TrimSuffix(strings.Join(append(slices.Clone(first), value), ","), ",")
		}
		fmt.Fprintf(&b, "%s = '%s'\n", name, quote.Replace(value))
	}
	return b.String()
}

// placeSettings puts a branch's own settings into its new upper, in the folder dir. The
// seed's configuration includes that file; a seed that was settled before it did is
// refused, since nothing would read it.
func (d *Driver) placeSettings(dir string, m *branchMeta) error {
	if m.Conf == "" {
		return nil
	}
	d.mu.Lock()
	seed := d.seedByID(m.SeedID)
	d.mu.Unlock()
	if seed == nil {
		return errors.New("its seed is missing from the data root")
	}
	lower, err := d.store.root.OpenRoot(path.Join(seed.dir(), rootDir))
	if err != nil {
		return err
	}
	defer lower.Close()
	name := path.Join(seed.manifest.DataDir, contract.BranchConf)
	info, err := lower.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the seed %s has no place for a branch's own settings: make it anew", seed.name)
	}
	if err != nil {
		return err
	}
	upper, err := d.store.root.OpenRoot(path.Join(dir, upperDir))
	if err != nil {
		return err
	}
	defer upper.Close()
	if err := likeParents(lower, upper, path.Dir(name)); err != nil {
		return err
	}
	to, err := upper.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = to.WriteString(branchConfText(m.Settings, preloads(seed.manifest)))
	if err == nil {
		err = likeFile(to, info)
	}
	if err == nil {
		err = to.Sync()
	}
	return errors.Join(err, to.Close())
}
