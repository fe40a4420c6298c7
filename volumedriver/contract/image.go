package contract

import (
	"fmt"
	"slices"
	"strings"
)

// ImageFacts is what decides whether an image can run the branches of a seed. They
// belong to the image alone, and so may be kept by its id.
type ImageFacts struct {
	// Major is the Postgres major version, 17. ServerVersion is "17.5 (Debian …)".
	Major         int    `json:"major"`
	ServerVersion string `json:"serverVersion"`
	// Libc is the C library that the server is linked with: "glibc 2.41", "musl 1.2.5".
	Libc string `json:"libc"`
	// ICU is the major version of ICU that the server is linked with, "" without any.
	ICU string `json:"icu,omitempty"`
	// Locales are those of `locale -a`; nil where the image cannot say, as with musl,
	// which takes every name.
	Locales []string `json:"locales,omitempty"`
	// Extensions are the versions that the image would install, by name.
	Extensions map[string]string `json:"extensions"`
	// CannotLoad says why the server cannot load lazyrw, "" where nothing speaks against it:
	// one that is linked statically, or built for another architecture than the engine's.
	CannotLoad string `json:"cannotLoad,omitempty"`
	// Libraries are the modules that its server can load, without ".so"; nil where nothing tells.
	Libraries []string `json:"libraries,omitempty"`
	// UID and GID are those of the image's user postgres.
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Unfit is one thing in which an image does not suit a seed.
type Unfit struct {
	// What names it: "extension postgis of shop".
	What string `json:"what"`
	// Why says what is wrong and what comes of it.
	Why string `json:"why"`
	// Grave is for what a branch must not be given by accident; a user who knows better
	// can insist. Never is for what cannot work at all.
	Grave bool `json:"grave,omitempty"`
	Never bool `json:"never,omitempty"`
}

// Fit compares an image with what the manifest says of a seed. Whatever is unknown on
// either side passes.
func (m *Manifest) Fit(f ImageFacts) []Unfit {
	if m.Major != 0 && f.Major != 0 && m.Major != f.Major {
		return []Unfit{{What: fmt.Sprintf("Postgres %d", f.Major), Never: true,
			Why: fmt.Sprintf("the seed is of Postgres %d, and files of one major are of no use to another", m.Major)}}
	}
	found := m.fitLibc(f)
	found = append(found, m.fitICU(f)...)
	found = append(found, m.fitLocales(f)...)
	found = append(found, m.fitExtensions(f)...)
	return append(found, m.fitLibraries(f)...)
}

// fitLibc: text that the C library sorts has another order under another library, and
// now and then under another version of one; an index then misses rows without a word.
func (m *Manifest) fitLibc(f ImageFacts) []Unfit {
	sorted := m.sortedBy(func(d Database) bool {
		return (d.Provider == "" || d.Provider == "libc") && !plainLocale(d.Collation)
	})
	family, version, _ := strings.Cut(m.Libc, " ")
	imageFamily, imageVersion, _ := strings.Cut(f.Libc, " ")
	switch {
	case len(sorted) == 0 || family == "" || imageFamily == "":
		return nil
	case family != imageFamily:
		return []Unfit{{What: imageFamily, Grave: true,
			Why: fmt.Sprintf("the text indexes of %s were sorted by %s, and %s has another order: lookups would miss rows", strings.Join(sorted, ", "), m.Libc, f.Libc)}}
	case version != "" && imageVersion != "" && version != imageVersion:
		return []Unfit{{What: "collation version " + imageVersion,
			Why: fmt.Sprintf("the text indexes of %s were sorted by %s, and the image has %s: REINDEX DATABASE, then ALTER DATABASE … REFRESH COLLATION VERSION",
				strings.Join(sorted, ", "), m.Libc, f.Libc)}}
	}
	return nil
}

func (m *Manifest) fitICU(f ImageFacts) []Unfit {
	sorted := m.sortedBy(func(d Database) bool { return d.Provider == "icu" })
	switch {
	case len(sorted) == 0 || f.ServerVersion == "":
		return nil
	case f.ICU == "":
		return []Unfit{{What: "ICU", Grave: true, Why: "the image's server is built without it, and cannot open " + strings.Join(sorted, ", ")}}
	case m.ICU != "" && m.ICU != f.ICU:
		return []Unfit{{What: "ICU " + f.ICU,
			Why: fmt.Sprintf("the text indexes of %s were sorted by ICU %s: REINDEX DATABASE, then ALTER DATABASE … REFRESH COLLATION VERSION", strings.Join(sorted, ", "), m.ICU)}}
	}
	return nil
}

// fitLocales: the server lets nobody into a database whose locale the C library does
// not know (CheckMyDatabase in postinit.c).
func (m *Manifest) fitLocales(f ImageFacts) []Unfit {
	if f.Locales == nil {
		return nil
	}
	known := map[string]bool{"c": true, "posix": true}
	for _, l := range f.Locales {
		known[localeKey(l)] = true
	}
	missing := map[string][]string{}
	for _, d := range m.Databases {
		names := []string{d.CType}
		if d.Provider == "" || d.Provider == "libc" {
			names = append(names, d.Collation)
		}
		for _, l := range slices.Compact(names) {
			if l != "" && !known[localeKey(l)] && !slices.Contains(missing[l], d.Name) {
				missing[l] = append(missing[l], d.Name)
			}
		}
	}
	var found []Unfit
	for _, l := range sortedKeys(missing) {
		found = append(found, Unfit{What: "locale " + l, Grave: true,
			Why: fmt.Sprintf("the image does not have it, and its server would let nobody into %s", strings.Join(missing[l], ", "))})
	}
	return found
}

func (m *Manifest) fitExtensions(f ImageFacts) []Unfit {
	if f.Extensions == nil {
		return nil
	}
	in := map[string][]string{}
	version := map[string]string{}
	for _, e := range m.Extensions {
		in[e.Name], version[e.Name] = append(in[e.Name], e.Database), e.Version
	}
	var found []Unfit
	for _, name := range sortedKeys(in) {
		has, ok := f.Extensions[name]
		databases := strings.Join(in[name], ", ")
		switch {
		case !ok:
			found = append(found, Unfit{What: "extension " + name, Grave: true,
				Why: fmt.Sprintf("%s of %s is not in the image: what uses it will fail", name+" "+version[name], databases)})
		case has != "" && has != version[name]:
			found = append(found, Unfit{What: "extension " + name,
				Why: fmt.Sprintf("%s has version %s, and the image brings %s: ALTER EXTENSION %s UPDATE", databases, version[name], has, name)})
		}
	}
	return found
}

// fitLibraries: a server ends at its start where it lacks what shared_preload_libraries names
// (load_libraries in miscinit.c). A branch loads none of the source's, unless it is told to.
func (m *Manifest) fitLibraries(f ImageFacts) []Unfit {
	if f.Libraries == nil {
		return nil
	}
	var found []Unfit
	for _, l := range m.PreloadLibraries {
		name := strings.TrimSuffix(strings.TrimPrefix(l, "$libdir/"), ".so")
		if !strings.Contains(name, "/") && !slices.Contains(f.Libraries, name) {
			found = append(found, Unfit{What: "library " + l,
				Why: "the source loads it, and the image does not have it: branches load none, and one that is told to does not start"})
		}
	}
	return found
}

// sortedBy names the databases that match.
func (m *Manifest) sortedBy(match func(Database) bool) []string {
	var names []string
	for _, d := range m.Databases {
		if match(d) {
			names = append(names, d.Name)
		}
	}
	return names
}

// plainLocale says whether a locale sorts by bytes or code points, which are the same
// everywhere.
func plainLocale(name string) bool {
	switch localeKey(name) {
	case "", "c", "posix", "c.utf8":
		return true
	}
	return false
}

// localeKey is a locale's name as glibc compares it: case and dashes of the codeset do
// not count (normalize_codeset in locale/findlocale.c).
func localeKey(name string) string {
	base, codeset, has := strings.Cut(name, ".")
	if !has {
		return strings.ToLower(name)
	}
	codeset, modifier, at := strings.Cut(codeset, "@")
	key := strings.ToLower(base) + "." + strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(codeset))
	if at {
		key += "@" + modifier
	}
	return key
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
