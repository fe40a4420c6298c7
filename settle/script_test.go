package settle

import (
	"errors"
	"io"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

// pieces reads a script; a COPY's data is a piece of its own, "data:…".
func pieces(t *testing.T, text string) ([]string, error) {
	t.Helper()
	s := newScript(strings.NewReader(text))
	var all []string
	for {
		next, err := s.next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, next.text)
		if m := conformingStrings().FindStringSubmatch(next.text); m != nil {
			s.escapes = m[1] == "off"
		}
		if copyFrom().MatchString(next.text) {
			data, err := s.copyData(next.line)
			if err != nil {
				return all, err
			}
			body, err := io.ReadAll(data)
			if err != nil {
				return all, err
			}
			all = append(all, "data:"+string(body))
		}
	}
}

func TestScript(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"comments":         {"-- a;\nSELECT 1; /* b; /* c */ ; */ SELECT 2;", []string{"SELECT 1", "SELECT 2"}},
		"a comment inside": {"SELECT 1 -- a;\n+ 2 /* ; */;", []string{"SELECT 1 \n+ 2  "}},
		"strings":          {`SELECT 'a;''b\', ";", E'\';', e'\\';SELECT 2;`, []string{`SELECT 'a;''b\', ";", E'\';', e'\\'`, "SELECT 2"}},
		"not an E string":  {`SELECT name'\';SELECT 2;`, []string{`SELECT name'\'`, "SELECT 2"}},
		"old strings": {`SET standard_conforming_strings = off;SELECT 'a\';b', 'c'';';`,
			[]string{"SET standard_conforming_strings = off", `SELECT 'a\';b', 'c'';'`}},
		"dollars":     {"SELECT $$a;$b$$, $x$;$$;$y$;$x$, a$b$c, $1;", []string{"SELECT $$a;$b$$, $x$;$$;$y$;$x$, a$b$c, $1"}},
		"parentheses": {"CREATE RULE r AS ON DELETE TO t DO (SELECT 1; SELECT 2);SELECT 3;", []string{"CREATE RULE r AS ON DELETE TO t DO (SELECT 1; SELECT 2)", "SELECT 3"}},
		"atomic": {"CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT CASE WHEN a THEN 1 END; END;BEGIN;END;",
			[]string{"CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT CASE WHEN a THEN 1 END; END", "BEGIN", "END"}},
		"psql's own": {"\\restrict abc\nSELECT 1;\n\\connect \"my db\"\nSELECT 2;", []string{`\restrict abc`, "SELECT 1", `\connect "my db"`, "SELECT 2"}},
		"copy": {"COPY public.t (a, \"from\") FROM stdin;\n1\ta;b\n\\.x\n\\N\n\\.\nSELECT 1;",
			[]string{`COPY public.t (a, "from") FROM stdin`, "data:1\ta;b\n\\.x\n\\N\n", "SELECT 1"}},
		"copy without rows":  {"COPY t FROM stdin;\n\\.\n\n\nCOPY u FROM stdin;\n\\.\n", []string{"COPY t FROM stdin", "data:", "COPY u FROM stdin", "data:"}},
		"copy of a long row": {"COPY t FROM stdin;\n" + long + "\n" + long + "\\.\n\\.\nSELECT 1;", []string{"COPY t FROM stdin", "data:" + long + "\n" + long + "\\.\n", "SELECT 1"}},
		"Windows' lines":     {"\xef\xbb\xbfCOPY t FROM stdin;\r\n1\r\n\\.\r\nSELECT 1;\r\n", []string{"COPY t FROM stdin", "data:1\r\n", "SELECT 1"}},
	} {
		got, err := pieces(t, c.text)
		assert.NilError(t, err, name)
		assert.DeepEqual(t, got, c.want)
	}
}

func TestScriptThatIsCutOff(t *testing.T) {
	whole := "SELECT 1;\nCREATE TABLE t (a text DEFAULT 'x;y', b int);\nCOPY t FROM stdin;\na\t1\nb\t2\n\\.\nSELECT $$a$$, \"b\" /* c */;\n"
	ends := map[int]bool{len(whole): true}
	for i := range whole {
		// It may end behind a semicolon that ends a statement, or between statements, and not
		// elsewhere. Behind the COPY's own semicolon its data is missing.
		before := strings.TrimRight(whole[:i], "\n")
		ends[i] = before == "" || before == "SELECT 1" || strings.HasSuffix(before, "SELECT 1;") || strings.HasSuffix(before, "b int);") ||
			strings.HasSuffix(before, "\n\\.") || strings.HasSuffix(before, "*/;")
		ends[i] = ends[i] && before != "SELECT 1"
	}
	for i := range len(whole) + 1 {
		_, err := pieces(t, whole[:i])
		var unfinished errUnfinished
		if got := errors.As(err, &unfinished); got == ends[i] {
			t.Errorf("cut off at %d, behind %q: %v", i, whole[max(0, i-12):i], err)
		}
	}
}

func TestScriptCountsLines(t *testing.T) {
	s := newScript(strings.NewReader("-- a\n\nSELECT 1;\nCOPY t FROM stdin;\n1\n2\n\\.\n\\connect x\nSELECT\n 2;\n"))
	var lines []int64
	for {
		next, err := s.next()
		if err == io.EOF {
			break
		}
		assert.NilError(t, err)
		lines = append(lines, next.line)
		if copyFrom().MatchString(next.text) {
			data, err := s.copyData(next.line)
			assert.NilError(t, err)
			assert.NilError(t, data.drain())
		}
	}
	assert.DeepEqual(t, lines, []int64{3, 4, 8, 9})
}
