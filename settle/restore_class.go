package settle

import (
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	copyFrom          = pattern(`(?is)^COPY\s.*\sFROM\s+STDIN\b`)
	conformingStrings = pattern(`(?i)^SET\s+standard_conforming_strings\s*(?:=|TO)\s*'?(on|off)\b`)
	createDatabase    = pattern(`(?is)^CREATE\s+DATABASE\s+("(?:[^"]|"")+"|[^\s;]+)`)
	encodingOf        = pattern(`(?is)\sENCODING\s*=?\s*'?([A-Za-z0-9_-]+)`)
	tablespaceOf      = pattern(`(?is)\sTABLESPACE\s*=?\s*("(?:[^"]|"")+"|[^\s;]+)`)
	alterSuperuser    = pattern(`(?is)^ALTER\s+(?:ROLE|USER)\s+(?:"postgres"|postgres)\s`)
	noSuperuser       = pattern(`(?i)\bNO(SUPERUSER|LOGIN)\b`)
	passwordClause    = pattern(`(?is)\sPASSWORD\s+'`)
	missingRoleText   = pattern(`(?s)^role "(.+)" does not exist$`)
	connectName       = pattern(`(?s)^dbname='((?:[^'\\]|\\.)*)'$`)
	ownerTo           = pattern(`(?is)^ALTER\s.*\sOWNER\s+TO\s+("(?:[^"]|"")+"|\S+)\s*$`)
	dropConstraint    = pattern(`(?is)^ALTER\s+(?:FOREIGN\s+)?TABLE\s.*\sDROP\s`)
	withSecrets       = pattern(`(?is)^(?:CREATE|ALTER)\s+(?:ROLE|USER|GROUP|SUBSCRIPTION|SERVER|FOREIGN|DATABASE)\b`)
	literal           = pattern(`(?s)'(?:[^']|'')*'`)
	valuesOf          = pattern(`(?is)\b(VALUES|SELECT)\b.*`)
	importsStatistics = pattern(`(?is)^SELECT\s.*\bpg_restore_(?:relation|attribute|extended)_stats\b`)
	setsConfig        = pattern(`(?is)^SELECT\s+pg_catalog\.set_config\(`)
	unsavable         = pattern(`(?is)^(?:INSERT|UPDATE|DELETE|SELECT|COPY|BEGIN|START|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE|PREPARE)\b`)
)

// withoutData are the beginnings of statements whose failure loses no row and nothing that
// keeps rows right: ownership and rights, words about objects, what acts on the world or
// belongs to a provider. What depends on one of them, such as a column of an extension's
// type, fails for itself.
var withoutData = pattern(`(?is)^(?:` + strings.Join([]string{
	`COMMENT\s+ON`, `GRANT`, `REVOKE`, `ALTER\s+DEFAULT\s+PRIVILEGES`, `SECURITY\s+LABEL`, `SET`, `RESET`, `ANALYZE`, `DROP`,
	`(?:CREATE|ALTER)\s+(?:EXTENSION|EVENT\s+TRIGGER|ROLE|USER|GROUP|TABLESPACE|PUBLICATION|SUBSCRIPTION|SERVER|FOREIGN\s+DATA\s+WRAPPER)`,
	`ALTER\s+(?:DATABASE|SYSTEM)`,
}, "|") + `)\b`)

// SQLSTATEs of errcodes.txt.
const (
	codeDuplicateObject   = "42710"
	codeDuplicateSchema   = "42P06"
	codeDuplicateDatabase = "42P04"
)

// absent are the codes for what is not there to be dropped.
var absent = regexp.MustCompile(`^(?:42P01|42704|42703|42883|3F000|3D000)$`)

// harmless says that the failure of a statement can cost no data.
func harmless(text string, err *pgconn.PgError) bool {
	switch {
	case withoutData().MatchString(text), ownerTo().MatchString(text), setsConfig().MatchString(text), importsStatistics().MatchString(text):
		return true
	case err.Code == codeDuplicateSchema, err.Code == codeDuplicateDatabase:
		return true
	}
	return dropConstraint().MatchString(text) && absent.MatchString(err.Code)
}

var createRole = pattern(`(?is)^CREATE\s+(?:ROLE|USER|GROUP)\s`)

// expected says that a failure is what psql shows for every such dump, too, and means
// nothing: initdb has made the superuser.
func expected(text string, err *pgconn.PgError) bool {
	return err.Code == codeDuplicateObject && createRole().MatchString(text)
}

func databaseExists(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeDuplicateDatabase
}

// missingRole is the role that a statement failed for, "" for another failure. The text is
// that of lc_messages=C; the code differs by statement.
func missingRole(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	if m := missingRoleText().FindStringSubmatch(pg.Message); m != nil {
		return m[1]
	}
	return ""
}

// savable says of a statement that a savepoint before it makes sense.
func savable(text string) bool { return !unsavable().MatchString(text) }

// adapt changes what would not suit a cluster in a container: tablespaces, which are
// folders of the source's machine, a locale where the caller wants another, and the
// superuser's own rights, which a provider's dump takes away.
func (p *player) adapt(text string) string {
	if createDatabase().MatchString(text) {
		if p.locale == "" {
			return tablespaceOf().ReplaceAllString(text, "")
		}
		adapted := "CREATE DATABASE " + createDatabase().FindStringSubmatch(text)[1] + " TEMPLATE template0 LOCALE " + quoteLiteral(p.locale)
		if m := encodingOf().FindStringSubmatch(text); m != nil {
			adapted += " ENCODING " + quoteLiteral(m[1])
		}
		return adapted
	}
	if !alterSuperuser().MatchString(text) {
		return text
	}
	end := len(text)
	if at := passwordClause().FindStringIndex(text); at != nil {
		end = at[0]
	}
	return noSuperuser().ReplaceAllString(text[:end], "$1") + text[end:]
}

// databaseOf is the database that a CREATE DATABASE makes, "" for another statement.
func databaseOf(text string) string {
	m := createDatabase().FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return unquoteIdent(m[1])
}

func unquoteIdent(name string) string {
	if len(name) < 2 || name[0] != '"' {
		return strings.ToLower(name)
	}
	return strings.ReplaceAll(strings.Trim(name, `"`), `""`, `"`)
}

// connectDatabase reads the arguments of \connect as dumps have them: a name, quoted or not,
// or -reuse-previous=on "dbname='…'" for a name that would be read as a connection string
// (appendPsqlMetaConnect in string_utils.c). "" is the present database.
func connectDatabase(args string) (string, bool) {
	args = strings.TrimSpace(args)
	if rest, ok := strings.CutPrefix(args, "-reuse-previous=on "); ok {
		m := connectName().FindStringSubmatch(unquoteIdentAsIs(strings.TrimSpace(rest)))
		if m == nil {
			return "", false
		}
		return strings.NewReplacer(`\'`, `'`, `\\`, `\`).Replace(m[1]), true
	}
	if strings.HasPrefix(args, `"`) {
		return unquoteIdentAsIs(args), strings.Count(args, `"`)%2 == 0 && strings.HasSuffix(args, `"`)
	}
	name, _, _ := strings.Cut(args, " ")
	if name == "-" || name == "" {
		return "", true
	}
	// psql leaves the case of a name alone.
	return strings.Trim(name, "'"), !strings.ContainsAny(name, "=:/")
}

func unquoteIdentAsIs(name string) string {
	if len(name) >= 2 && name[0] == '"' && name[len(name)-1] == '"' {
		return strings.ReplaceAll(name[1:len(name)-1], `""`, `"`)
	}
	return name
}

// mostStatement is how much of a statement a manifest keeps, in bytes.
const mostStatement = 160

// shown is the beginning of a statement without what is secret: passwords stand in
// strings, and rows are nobody's business.
func shown(text string) string {
	text = beginning(text, 4*mostStatement)
	if withSecrets().MatchString(text) {
		text = literal().ReplaceAllString(text, "…")
		// What is left of a string that was cut off.
		text, _, _ = strings.Cut(text, "'")
	}
	if len(text) >= 6 && strings.EqualFold(text[:6], "INSERT") {
		text = valuesOf().ReplaceAllString(text, "$1 …")
	}
	return beginning(text, mostStatement)
}

// beginning is a text's first bytes on one line.
func beginning(text string, most int) string {
	if len(text) > 4*most {
		text = text[:4*most]
	}
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) <= most {
		return text
	}
	text = text[:most]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + "…"
}

// failureText is the server's message, with its detail, and the place in the data of a COPY
// without the data.
func failureText(pg *pgconn.PgError) string {
	text := pg.Message
	if pg.Detail != "" {
		text += "; " + pg.Detail
	}
	if where, _, _ := strings.Cut(pg.Where, "\n"); strings.HasPrefix(where, "COPY ") {
		where, _, _ = strings.Cut(where, ": ")
		text += "; " + where
	}
	return beginning(text, 2*mostStatement)
}
