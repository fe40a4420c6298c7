package settle

import (
	"strings"
)

// parseConfLine reads one line of a Postgres configuration file: its setting or
// include directive in lower case, and its value without quotes and escapes. ok is
// false for an empty line, a comment, and what the server would refuse too. The
// grammar is that of guc-file.l: NAME [=] VALUE [# comment].
func parseConfLine(line string) (name, value string, ok bool) {
	rest := strings.TrimLeft(line, " \t\r\f")
	end := 0
	for end < len(rest) && isNameByte(rest[end], end == 0) {
		end++
	}
	if end == 0 {
		return "", "", false
	}
	name = strings.ToLower(rest[:end])
	rest = strings.TrimLeft(rest[end:], " \t\r\f")
	rest = strings.TrimLeft(strings.TrimPrefix(rest, "="), " \t\r\f")
	if strings.HasPrefix(rest, "'") {
		value, rest, ok = scanQuoted(rest)
		if !ok {
			return "", "", false
		}
	} else {
		end = strings.IndexAny(rest, " \t\r\f\n#'")
		if end < 0 {
			end = len(rest)
		}
		if end == 0 {
			return "", "", false
		}
		value, rest = rest[:end], rest[end:]
	}
	rest = strings.TrimLeft(rest, " \t\r\f\n")
	return name, value, rest == "" || rest[0] == '#'
}

func isNameByte(b byte, first bool) bool {
	switch {
	case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b == '_', b >= 0x80:
		return true
	case b >= '0' && b <= '9', b == '$', b == '.':
		return !first
	}
	return false
}

// scanQuoted reads a quoted value as GUC_scanstr in guc-file.l does: a doubled
// quote is one, and a backslash escapes.
func scanQuoted(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\'':
			if i+1 < len(s) && s[i+1] == '\'' {
				b.WriteByte('\'')
				i++
				continue
			}
			return b.String(), s[i+1:], true
		case '\\':
			i++
			if i == len(s) {
				return "", "", false
			}
			i += unescape(&b, s[i:]) - 1
		case '\n':
			return "", "", false
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", false
}

// unescape writes what follows a backslash and returns how many bytes that took.
func unescape(b *strings.Builder, s string) int {
	switch s[0] {
	case 'b':
		b.WriteByte('\b')
	case 'f':
		b.WriteByte('\f')
	case 'n':
		b.WriteByte('\n')
	case 'r':
		b.WriteByte('\r')
	case 't':
		b.WriteByte('\t')
	case '0', '1', '2', '3', '4', '5', '6', '7':
		n, octal := 0, 0
		for n < 3 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			octal = octal<<3 + int(s[n]-'0')
			n++
		}
		b.WriteByte(byte(octal))
		return n
	default:
		b.WriteByte(s[0])
	}
	return 1
}
