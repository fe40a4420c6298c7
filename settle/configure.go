package settle

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// configure gives the copy a branch's configuration: the profile, login rules, and
// files that did not come along because the source keeps them elsewhere.
func (s *settler) configure() error {
	files := newConfFiles(s.root, s.account)
	if !files.exists(mainConf) {
		if err := files.write(mainConf, minimalConf(s.control, s.req.Settings)); err != nil {
			return err
		}
		files.change(mainConf, "", "it did not come with the copy; this one holds what pg_control and the source say")
	}
	if err := files.edit(mainConf, 0); err != nil {
		return err
	}
	all := profileOf(s.major)
	carried, err := files.takeAuto(all)
	if err != nil {
		return err
	}
	carried += files.carryCommandLine(all, s.req.Given)
	source := maps.Clone(s.req.Settings)
	if source == nil {
		source = map[string]string{}
	}
	maps.Copy(source, files.values)
	profile := resolved(all, files.values, s.control.segmentSize)
	if err := appendInclude(files, carried); err != nil {
		return err
	}
	if err := files.write(profileConf, profileText(profile, s.req.DataDir, cannotLoad())); err != nil {
		return err
	}
	if err := files.write(contract.BranchConf, branchConfText); err != nil {
		return err
	}
	if err := editLogin(files); err != nil {
		return err
	}
	s.conf = files
	s.change(files.changes...)
	s.change(profileChanges(profile, source)...)
	s.change(leftOut(profile, files.values, s.req.Given, s.req.Settings["data_directory"])...)
	for _, name := range s.req.Skipped {
		s.change(change{What: name, Why: "it is a link or a socket in the source's data directory, and a base backup leaves it out"})
	}
	return nil
}

// leftOut lists the settings of the running source that a branch does not have,
// because they stand in files outside the data directory, or are limits of its command line.
// dataDirectory is the source's, "" where the user may not know: a file in it that the
// source does not read says nothing of the source.
func leftOut(profile []setting, files map[string]string, given []contract.GivenSetting, dataDirectory string) []change {
	var changes []change
	for _, g := range given {
		name := strings.ToLower(g.Name)
		value, there := files[name]
		outside := dataDirectory != "" && g.File != "" && !strings.HasPrefix(g.File, strings.TrimRight(dataDirectory, "/")+"/")
		there = there && (!outside || value == g.Value)
		if there && (g.Source == "configuration file" || carries(g)) || inProfile(profile, name) || slices.Contains(placeSettings, name) {
			continue
		}
		why := "the source has it from its " + g.Source
		if g.Source == "configuration file" {
			why = "the source has it from a file outside the data directory"
			if g.File != "" {
				why += ", " + g.File
			}
		}
		was := g.Value
		if slices.Contains(secretSettings, name) {
			was = ""
		}
		changes = append(changes, change{What: g.Name, Was: presentable(was), Why: why})
	}
	return changes
}

// appendInclude makes the profile the last thing that postgresql.conf says, after the
// settings that carried has.
func appendInclude(files *confFiles, carried string) error {
	text, err := files.root.ReadFile(mainConf)
	if err != nil {
		return err
	}
	trimmed := strings.TrimRight(string(text), "\r\n \t")
	trimmed = strings.TrimRight(strings.TrimSuffix(trimmed, includeComment), "\r\n \t")
	return files.write(mainConf, trimmed+"\n\n"+carried+includeComment+"\ninclude '"+profileConf+"'\n")
}

const includeComment = "# What a branch sets otherwise. It comes last, so that it holds."

// editLogin writes the files that decide who may log in.
func editLogin(files *confFiles) error {
	text, err := files.root.ReadFile(hbaConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := files.write(hbaConf, editHBA(string(text))); err != nil {
		return err
	}
	if files.exists(identConf) {
		return nil
	}
	return files.write(identConf, identMinimum)
}

// carried are the source's settings that a generated postgresql.conf takes over:
// initdb writes them there, and they change what queries return.
var carried = []string{
	"TimeZone", "DateStyle", "IntervalStyle", "default_text_search_config",
	"lc_messages", "lc_monetary", "lc_numeric", "lc_time", "password_encryption",
}

// minimalConf is a postgresql.conf for a copy that has none.
func minimalConf(c controlData, source map[string]string) string {
	var b strings.Builder
	b.WriteString("# The source keeps its configuration outside the data directory, so none came with\n" +
		"# the copy. These are the limits that pg_control records.\n")
	for _, name := range ownSettings {
		if value, ok := c.settings[name]; ok {
			fmt.Fprintf(&b, "%s = %s\n", name, quoteConf(value))
		}
	}
	b.WriteString("\n# These are the source's.\n")
	for _, name := range carried {
		if value, ok := source[name]; ok {
			fmt.Fprintf(&b, "%s = %s\n", name, quoteConf(value))
		}
	}
	return b.String()
}

// refusedSetting matches the server's complaint about one setting, as set_config_option
// in guc.c and ProcessConfigFileInternal in guc-file.l write it.
var refusedSetting = pattern(`(?:invalid value for parameter|unrecognized configuration parameter|parameter) "([A-Za-z0-9_.]+)"`)

// dropRefused comments out the settings that the image's server does not take,
// such as a locale that the image has not, and says whether there were any new ones.
func (s *settler) dropRefused(log []string) (bool, error) {
	const why = "the image's server does not take it"
	files := newConfFiles(s.root, s.account)
	for _, line := range log {
		m := refusedSetting().FindStringSubmatch(line)
		if m == nil || inProfile(profileOf(s.major), strings.ToLower(m[1])) {
			continue
		}
		files.drop[strings.ToLower(m[1])] = why
	}
	if len(files.drop) == 0 {
		return false, nil
	}
	if err := files.edit(mainConf, 0); err != nil {
		return false, err
	}
	if err := appendInclude(files, ""); err != nil {
		return false, err
	}
	s.change(files.changes...)
	return slices.ContainsFunc(files.changes, func(c change) bool { return c.Why == why }), nil
}
