package settle

import "strings"

// quoteIdent quotes a name for SQL.
func quoteIdent(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// quoteLiteral quotes a string for SQL, whatever standard_conforming_strings is.
func quoteLiteral(s string) string {
	s = strings.ReplaceAll(s, `'`, `''`)
	if strings.Contains(s, `\`) {
		return ` E'` + strings.ReplaceAll(s, `\`, `\\`) + `'`
	}
	return `'` + s + `'`
}

// quoteConf quotes a value for a configuration file (GUC_scanstr in guc-file.l).
func quoteConf(s string) string {
	return `'` + strings.NewReplacer(`'`, `''`, `\`, `\\`, "\n", `\n`).Replace(s) + `'`
}

// quoteHBA quotes a name for pg_hba.conf where it needs it: keywords lose their
// meaning in quotes (hba.c).
func quoteHBA(name string) string {
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.') {
			return quoteIdent(name)
		}
	}
	switch name {
	case "", "all", "replication", "sameuser", "samerole", "samegroup":
		return quoteIdent(name)
	}
	return name
}
