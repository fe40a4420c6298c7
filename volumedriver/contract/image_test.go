package contract

import (
	"strings"
	"testing"
)

// shopManifest is of a glibc source with one database per kind of collation.
func shopManifest() *Manifest {
	return &Manifest{
		Major: 17, Libc: "glibc 2.41", ICU: "76",
		Databases: []Database{
			{Name: "plain", Provider: "libc", Collation: "C.UTF-8", CType: "C.UTF-8"},
			{Name: "shop", Provider: "libc", Collation: "de_DE.UTF-8", CType: "de_DE.UTF-8"},
			{Name: "crm", Provider: "icu", Collation: "de-DE", CType: "en_US.utf8"},
			{Name: "tree", Provider: "builtin", Collation: "C.UTF-8", CType: "C.UTF-8"},
		},
		Extensions:       []Extension{{Database: "shop", Name: "postgis", Version: "3.4.0"}},
		PreloadLibraries: []string{"$libdir/pg_cron", "/opt/lib/ours.so", "auto_explain.so"},
	}
}

func fittingFacts() ImageFacts {
	return ImageFacts{Major: 17, ServerVersion: "17.5", Libc: "glibc 2.41", ICU: "76", Locales: []string{"C", "C.utf8", "POSIX", "de_DE.utf8", "en_US.utf8"},
		Extensions: map[string]string{"postgis": "3.4.0"}, Libraries: []string{"auto_explain", "pg_cron"}}
}

func TestFit(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*Manifest, *ImageFacts)
		// want are "[!!|!] What" and words of Why, one for each that is unfit.
		want [][2]string
	}{
		"the same":       {func(*Manifest, *ImageFacts) {}, nil},
		"other major":    {func(_ *Manifest, f *ImageFacts) { f.Major = 18 }, [][2]string{{"!!Postgres 18", "Postgres 17"}}},
		"musl":           {func(_ *Manifest, f *ImageFacts) { f.Libc, f.Locales = "musl 1.2.5", nil }, [][2]string{{"!musl", "shop were sorted by glibc 2.41"}}},
		"musl of C only": {func(m *Manifest, f *ImageFacts) { f.Libc, f.Locales, m.Databases = "musl", nil, m.Databases[:1] }, nil},
		"glibc of musl":  {func(m *Manifest, _ *ImageFacts) { m.Libc = "musl 1.2.5" }, [][2]string{{"!glibc", "musl 1.2.5"}}},
		"newer glibc":    {func(_ *Manifest, f *ImageFacts) { f.Libc = "glibc 2.42" }, [][2]string{{"collation version 2.42", "REINDEX"}}},
		"glibc unknown":  {func(m *Manifest, _ *ImageFacts) { m.Libc = "glibc" }, nil},
		"newer ICU":      {func(_ *Manifest, f *ImageFacts) { f.ICU = "78" }, [][2]string{{"ICU 78", "crm were sorted by ICU 76"}}},
		"no ICU":         {func(_ *Manifest, f *ImageFacts) { f.ICU = "" }, [][2]string{{"!ICU", "crm"}}},
		"no locale": {func(_ *Manifest, f *ImageFacts) { f.Locales = []string{"C", "C.utf8"} },
			[][2]string{{"!locale de_DE.UTF-8", "into shop"}, {"!locale en_US.utf8", "into crm"}}},
		"no extension":    {func(_ *Manifest, f *ImageFacts) { delete(f.Extensions, "postgis") }, [][2]string{{"!extension postgis", "postgis 3.4.0 of shop"}}},
		"newer extension": {func(_ *Manifest, f *ImageFacts) { f.Extensions["postgis"] = "3.5.1" }, [][2]string{{"extension postgis", "3.5.1"}}},
		"no library":      {func(_ *Manifest, f *ImageFacts) { f.Libraries = f.Libraries[:1] }, [][2]string{{"library $libdir/pg_cron", "branches load none"}}},
		"nothing known":   {func(_ *Manifest, f *ImageFacts) { *f = ImageFacts{} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, f := shopManifest(), fittingFacts()
			c.edit(m, &f)
			found := m.Fit(f)
			if len(found) != len(c.want) {
				t.Fatalf("found %+v", found)
			}
			for i, u := range found {
				what := u.What
				if u.Grave {
					what = "!" + what
				}
				if u.Never {
					what = "!!" + what
				}
				if what != c.want[i][0] || !strings.Contains(u.Why, c.want[i][1]) {
					t.Errorf("found %s: %s, want %q", what, u.Why, c.want[i])
				}
			}
		})
	}
}
