package settle

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// script takes the SQL of a dump apart into statements, as psql does (psqlscan.l), and
// holds no more of it than one statement.
type script struct {
	r *bufio.Reader
	// line is the number of lines read.
	line int64
	// escapes says that a backslash in an ordinary string escapes, as with
	// standard_conforming_strings=off.
	escapes bool
	// comment is told every comment line outside of statements. It may be nil.
	comment func(string)
}

func newScript(r io.Reader) *script { return &script{r: bufio.NewReaderSize(r, 256<<10)} }

// piece is one statement without its semicolon, or one of psql's own commands.
type piece struct {
	text string
	// line is where it begins, from 1 up.
	line int64
	// command says that it is psql's: \connect.
	command bool
}

// errUnfinished is a script that ends within a statement.
type errUnfinished struct {
	line int64
	what string
}

func (e errUnfinished) Error() string {
	return fmt.Sprintf("it ends in the middle of the %s that begins in line %d", e.what, e.line)
}

// next gives the next piece, and io.EOF after the last.
func (s *script) next() (piece, error) {
	for {
		c, err := s.readByte()
		if err != nil {
			return piece{}, err
		}
		switch {
		case c == ' ', c == '\t', c == '\r', c == '\n', c == '\f', c == ';', c == 0xEF && s.skip("\xbb\xbf"):
		case c == '-' && s.ahead() == '-':
			text, err := s.restOfLine()
			if s.comment != nil {
				s.comment("-" + text)
			}
			if err != nil {
				return piece{}, err
			}
		case c == '\\':
			at := s.line + 1
			text, err := s.restOfLine()
			if err == io.EOF {
				err = nil
			}
			return piece{text: "\\" + text, line: at, command: true}, err
		case c == '/' && s.ahead() == '*':
			b := &statementReader{script: s, began: s.line + 1}
			if err := b.blockComment(); err != nil {
				return piece{}, err
			}
		default:
			b := &statementReader{script: s, began: s.line + 1}
			text, err := b.read(c)
			return piece{text: text, line: b.began}, err
		}
	}
}

func (s *script) readByte() (byte, error) {
	c, err := s.r.ReadByte()
	if c == '\n' && err == nil {
		s.line++
	}
	return c, err
}

// ahead is the next byte, 0 at the end.
func (s *script) ahead() byte {
	if b, err := s.r.Peek(1); err == nil {
		return b[0]
	}
	return 0
}

// skip takes text away if it comes next. It has no line break.
func (s *script) skip(text string) bool {
	b, err := s.r.Peek(len(text))
	if err != nil || string(b) != text {
		return false
	}
	_, _ = s.r.Discard(len(text))
	return true
}

func (s *script) restOfLine() (string, error) {
	text, err := s.r.ReadString('\n')
	if err == nil {
		s.line++
	}
	return strings.TrimRight(text, "\r\n"), err
}

// statementReader reads one statement.
type statementReader struct {
	script *script
	began  int64
	buf    []byte
	parens int
	// words are the first of the statement, in lower case; begins counts the open BEGINs
	// and CASEs of a function's body in SQL, in which semicolons end nothing.
	words  []string
	begins int
	word   int // where the current word begins in buf, -1 outside of one
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}

// read reads the statement that begins with c, up to its semicolon.
func (b *statementReader) read(c byte) (string, error) {
	b.word = -1
	for {
		inWord := wordByte(c)
		if !inWord {
			b.endWord()
		}
		var err error
		switch {
		case c == ';' && b.parens == 0 && b.begins == 0:
			return string(b.buf), nil
		case c == '\'':
			err = b.quoted('\'', b.script.escapes || b.escapeString())
		case c == '"':
			err = b.quoted('"', false)
		case c == '$' && b.word < 0:
			err = b.dollar()
		case c == '-' && b.script.ahead() == '-':
			_, err = b.script.restOfLine()
			b.buf = append(b.buf, '\n')
		case c == '/' && b.script.ahead() == '*':
			err = b.blockComment()
		default:
			if c == '(' {
				b.parens++
			} else if c == ')' && b.parens > 0 {
				b.parens--
			}
			if inWord && b.word < 0 {
				b.word = len(b.buf)
			}
			b.buf = append(b.buf, c)
		}
		if err == nil {
			c, err = b.script.readByte()
		}
		if errors.Is(err, io.EOF) {
			return "", errUnfinished{b.began, "statement"}
		}
		if err != nil {
			return "", err
		}
	}
}

// escapeString says whether the quote that comes now opens an E'…' string.
func (b *statementReader) escapeString() bool {
	n := len(b.buf)
	return n > 0 && (b.buf[n-1] == 'e' || b.buf[n-1] == 'E') && (n == 1 || !wordByte(b.buf[n-2]))
}

// endWord counts what psql counts in order to find the end of CREATE FUNCTION … BEGIN
// ATOMIC … END ("identifier" in psqlscan.l).
func (b *statementReader) endWord() {
	if b.word < 0 {
		return
	}
	text := b.buf[b.word:]
	b.word = -1
	if len(b.words) < 4 {
		b.words = append(b.words, strings.ToLower(string(text)))
		return
	}
	if len(text) > len("begin") || !b.routine() || b.parens > 0 {
		return
	}
	switch strings.ToLower(string(text)) {
	case "begin":
		b.begins++
	case "case":
		if b.begins > 0 {
			b.begins++
		}
	case "end":
		if b.begins > 0 {
			b.begins--
		}
	}
}

func (b *statementReader) routine() bool {
	words := b.words
	if len(words) < 4 || words[0] != "create" {
		return false
	}
	kind := words[1]
	if words[1] == "or" && words[2] == "replace" {
		kind = words[3]
	}
	return kind == "function" || kind == "procedure"
}

// quoted reads to the end of a string or quoted name. A doubled quote ends one and begins
// the next, which comes to the same.
func (b *statementReader) quoted(quote byte, escapes bool) error {
	b.buf = append(b.buf, quote)
	for {
		c, err := b.script.readByte()
		if err != nil {
			return err
		}
		b.buf = append(b.buf, c)
		switch {
		case c == quote && !(escapes && b.script.ahead() == quote):
			return nil
		case c == quote, c == '\\' && escapes:
			// The second half of a doubled quote, or what the backslash escapes.
			if c, err = b.script.readByte(); err != nil {
				return err
			}
			b.buf = append(b.buf, c)
		}
	}
}

// longestTag is how long the tag of a dollar quote may be: a name.
const longestTag = 64

// dollar reads a dollar-quoted string, or a mere dollar.
func (b *statementReader) dollar() error {
	ahead, _ := b.script.r.Peek(longestTag)
	end := bytes.IndexByte(ahead, '$')
	tag := ahead[:max(end, 0)]
	valid := end >= 0 && (end == 0 || tag[0] < '0' || tag[0] > '9')
	for _, c := range tag {
		valid = valid && wordByte(c)
	}
	if !valid {
		b.word = len(b.buf)
		b.buf = append(b.buf, '$')
		return nil
	}
	close := "$" + string(tag) + "$"
	_, _ = b.script.r.Discard(len(close) - 1)
	b.buf = append(b.buf, close...)
	from := len(b.buf)
	for {
		c, err := b.script.readByte()
		if err != nil {
			return err
		}
		b.buf = append(b.buf, c)
		if c == '$' && len(b.buf)-from >= len(close) && string(b.buf[len(b.buf)-len(close):]) == close {
			return nil
		}
	}
}

// blockComment skips a comment whose first byte is read; they nest.
func (b *statementReader) blockComment() error {
	depth := 0
	for {
		switch {
		case b.script.skip("*"):
			depth++
		}
		for open := true; open; {
			c, err := b.script.readByte()
			if errors.Is(err, io.EOF) {
				return errUnfinished{b.began, "comment"}
			}
			if err != nil {
				return err
			}
			switch {
			case c == '*' && b.script.skip("/"):
				if depth--; depth == 0 {
					b.buf = append(b.buf, ' ')
					return nil
				}
			case c == '/' && b.script.ahead() == '*':
				open = false
			}
		}
	}
}

// copyData is the data behind a COPY … FROM STDIN, up to the line "\.".
type copyData struct {
	script *script
	began  int64
	rest   []byte // what of the last slice has not been given
	middle bool   // rest is followed by more of the same line
	err    error
}

// copyData skips the rest of the COPY's line and gives the data.
func (s *script) copyData(began int64) (*copyData, error) {
	if _, err := s.restOfLine(); err != nil {
		return nil, errUnfinished{began, "data of the COPY"}
	}
	return &copyData{script: s, began: began}, nil
}

func (d *copyData) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if len(d.rest) == 0 {
			if d.err == nil {
				d.fill()
			}
			if d.err != nil {
				break
			}
		}
		copied := copy(p[n:], d.rest)
		d.rest = d.rest[copied:]
		n += copied
	}
	if n > 0 {
		return n, nil
	}
	return 0, d.err
}

// fill reads the next line, or as much of it as the buffer holds.
func (d *copyData) fill() {
	line, err := d.script.r.ReadSlice('\n')
	whole := !d.middle
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		d.rest, d.middle = line, true
		return
	case err != nil && err != io.EOF:
		d.err = err
		return
	case err == nil:
		d.script.line++
	}
	d.middle = false
	if whole && (string(line) == "\\.\n" || string(line) == "\\.\r\n" || string(line) == "\\." && err == io.EOF) {
		d.err = io.EOF
		return
	}
	if err == io.EOF {
		d.err = errUnfinished{d.began, "data of the COPY"}
		return
	}
	d.rest = line
}

// drain skips what of the data has not been read, and gives the failure to find its end.
func (d *copyData) drain() error {
	for d.err == nil {
		d.rest = nil
		d.fill()
	}
	if d.err == io.EOF {
		return nil
	}
	return d.err
}
