package settle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Names of configuration files in PGDATA.
const (
	mainConf  = "postgresql.conf"
	autoConf  = "postgresql.auto.conf"
	hbaConf   = "pg_hba.conf"
	identConf = "pg_ident.conf"
	// profileConf is ours: everything that a branch sets otherwise than its source.
	profileConf = "pgoverlay.conf"
)

// maxIncludeDepth is the server's (CONF_FILE_MAX_DEPTH in conffiles.h).
const maxIncludeDepth = 10

// placeSettings say where things are on the source's machine. A later line cannot
// set them back to their defaults, so they are commented out.
var placeSettings = []string{"data_directory", "config_file", "hba_file", "ident_file", "external_pid_file"}

// secretSettings may hold a password. Their values are taken out of the copy.
var secretSettings = []string{"primary_conninfo", "ssl_passphrase_command"}

// confFiles edits the configuration of a copy. All paths are below PGDATA and are
// opened through an os.Root: a link in the copy leads nowhere else.
type confFiles struct {
	root    *os.Root
	account account
	// values are the settings in the order in which the server would read them, so
	// the last one holds.
	values map[string]string
	// changes lists lines that were taken out.
	changes []contract.Change
	// drop names settings that cannot be kept, beyond those above.
	drop map[string]string
}

func newConfFiles(root *os.Root, a account) *confFiles {
	return &confFiles{root: root, account: a, values: map[string]string{}, drop: map[string]string{}}
}

// write replaces a file as a whole. The account owns it, and nobody else reads it.
func (c *confFiles) write(name, text string) error {
	temp := name + ".pgoverlay"
	f, err := c.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err == nil && c.account.drop {
		err = f.Chown(c.account.uid, c.account.gid)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return c.root.Rename(temp, name)
}

func (c *confFiles) exists(name string) bool {
	_, err := c.root.Stat(name)
	return err == nil
}

// edit reads a configuration file and all that it includes, records its settings,
// and comments out the lines that cannot work in a branch.
func (c *confFiles) edit(name string, depth int) error {
	if depth > maxIncludeDepth {
		return fmt.Errorf("%s: files include each other more than %d deep", name, maxIncludeDepth)
	}
	text, err := c.root.ReadFile(name)
	if err != nil {
		return err
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		kept, err := c.editLine(name, line, depth)
		if err != nil {
			return err
		}
		out.WriteString(kept)
	}
	if out.String() == string(text) {
		return nil
	}
	return c.write(name, out.String())
}

func (c *confFiles) editLine(file, line string, depth int) (string, error) {
	name, value, ok := parseConfLine(line)
	if !ok {
		return line, nil
	}
	switch name {
	case "include", "include_if_exists", "include_dir":
		return c.editInclude(file, line, name, value, depth)
	}
	why, dropped := c.drop[name]
	switch {
	case dropped:
	case slices.Contains(secretSettings, name):
		why = "it may hold a password"
	case slices.Contains(placeSettings, name):
		why = "it names a place on the source's machine"
	default:
		c.values[name] = value
		return line, nil
	}
	if slices.Contains(secretSettings, name) {
		c.change(name, "", why)
		return fmt.Sprintf("# pgoverlay took out the value of %s: %s\n", name, why), nil
	}
	c.change(name, value, why)
	return commentOut(line, why), nil
}

func commentOut(line, why string) string {
	return "# pgoverlay: " + why + ": " + strings.TrimRight(line, "\r\n") + "\n"
}

// change notes what a line said, once a setting.
func (c *confFiles) change(what, was, why string) {
	for _, known := range c.changes {
		if known.What == what && known.Was == was {
			return
		}
	}
	c.changes = append(c.changes, contract.Change{What: what, Was: presentable(was), Why: why})
}

// editInclude follows an include directive inside PGDATA and comments out one that
// leads outside, or to nothing.
func (c *confFiles) editInclude(file, line, directive, target string, depth int) (string, error) {
	if path.Base(target) == profileConf {
		return "", nil // a source that is itself a branch; ours is put in anew
	}
	name := path.Join(path.Dir(file), target)
	info, err := c.root.Stat(name)
	if path.IsAbs(target) || err != nil {
		if directive == "include_if_exists" && !path.IsAbs(target) {
			return line, nil
		}
		why := "it is not a part of the copy"
		c.change(directive+" "+target, "", why)
		return commentOut(line, why), nil
	}
	if directive != "include_dir" {
		return line, c.edit(name, depth+1)
	}
	if !info.IsDir() {
		return line, nil // the server says so better
	}
	entries, err := fs.ReadDir(c.root.FS(), name)
	if err != nil {
		return "", err
	}
	for _, entry := range entries { // sorted by name, as the server reads them
		if strings.HasSuffix(entry.Name(), ".conf") && !strings.HasPrefix(entry.Name(), ".") && !entry.IsDir() {
			if err := c.edit(path.Join(name, entry.Name()), depth+1); err != nil {
				return "", err
			}
		}
	}
	return line, nil
}

// emptyAuto is postgresql.auto.conf as initdb makes it.
const emptyAuto = "# Do not edit this file manually!\n# It will be overwritten by the ALTER SYSTEM command.\n"

// takeAuto empties postgresql.auto.conf, which the server reads after everything
// else, and gives what of it can be kept, for postgresql.conf: there the profile and a
// branch's own settings hold over it.
func (c *confFiles) takeAuto(profile []setting) (string, error) {
	text, err := c.root.ReadFile(autoConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		name, _, ok := parseConfLine(line)
		edited, err := c.editLine(autoConf, line, 0)
		if err != nil {
			return "", err
		}
		// A comment of ours tells nothing that the manifest does not.
		if ok && edited == line && !fixed(profile, name) {
			kept.WriteString(strings.TrimRight(line, "\r\n") + "\n")
		}
	}
	if err := c.write(autoConf, emptyAuto); err != nil || kept.Len() == 0 {
		return "", err
	}
	return "# What ALTER SYSTEM had set in the source.\n" + kept.String() + "\n", nil
}

// fixed says whether the profile sets a setting, whatever the source has.
func fixed(profile []setting, name string) bool {
	return slices.ContainsFunc(profile, func(s setting) bool { return s.name == name && s.most == "" })
}

// carries says whether a branch takes a setting over from the source's command line. Not
// the limits: they reserve memory, and a copy needs them for its recovery only.
func carries(g contract.GivenSetting) bool {
	return g.Source == "command line" && !slices.Contains(ownSettings, strings.ToLower(g.Name))
}

// carryCommandLine gives, for postgresql.conf, the settings that the source's server
// was started with: they hold over its files, and do not come along in any.
func (c *confFiles) carryCommandLine(profile []setting, given []contract.GivenSetting) string {
	var kept strings.Builder
	for _, g := range given {
		value, name := g.Value, strings.ToLower(g.Name)
		switch {
		case !carries(g):
		case slices.Contains(secretSettings, name), presentable(value) != value:
			c.change(name, "", "it may hold a password")
		case slices.Contains(placeSettings, name):
			c.change(name, value, "it names a place on the source's machine")
		default:
			c.values[name] = value
			if !fixed(profile, name) {
				kept.WriteString(name + " = " + quoteConf(value) + "\n")
			}
		}
	}
	if kept.Len() == 0 {
		return ""
	}
	return "# What the source's command line had set.\n" + kept.String() + "\n"
}
