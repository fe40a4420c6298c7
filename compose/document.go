package compose

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is a YAML file that is edited as text: the parser says where things stand, and
// nothing is printed again that was there before. An encoder would drop blank lines and
// choose its own indentation.
type document struct {
	path string
	text []byte
	// lines are the offsets at which the lines begin, bytes.
	lines []int
	root  *yaml.Node
	edits []edit
}

// edit replaces length bytes at offset.
type edit struct {
	offset, length int
	text           string
}

func openDocument(path string) (*document, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d := &document{path: path, text: text, lines: []int{0}}
	for i, c := range text {
		if c == '\n' {
			d.lines = append(d.lines, i+1)
		}
	}
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return nil, invalid(err)
	}
	d.root = mapping()
	if len(node.Content) > 0 {
		d.root = node.Content[0]
	}
	return d, nil
}

// result is the text with all edits made.
func (d *document) result() []byte {
	edits := slices.Clone(d.edits)
	slices.SortStableFunc(edits, func(a, b edit) int { return cmp.Compare(a.offset, b.offset) })
	var out bytes.Buffer
	done := 0
	for _, e := range edits {
		out.Write(d.text[done:e.offset])
		out.WriteString(e.text)
		done = e.offset + e.length
	}
	out.Write(d.text[done:])
	return out.Bytes()
}

// entry gives a mapping's own key and its value, nil where it has none or is none.
func entry(m *yaml.Node, key string) (k, v *yaml.Node) {
	if m == nil || m.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i], m.Content[i+1]
		}
	}
	return nil, nil
}

// find gives the value under two keys, one in the other; nil where there is none.
func (d *document) find(outer, inner string) *yaml.Node {
	_, m := entry(d.root, outer)
	_, v := entry(m, inner)
	return v
}

// offset is where a node begins. The parser counts lines and characters from 1.
func (d *document) offset(n *yaml.Node) int {
	at := d.lines[n.Line-1]
	rest := string(d.text[at:])
	column := 1
	for i := range rest {
		if column == n.Column {
			return at + i
		}
		column++
	}
	return len(d.text)
}

// lineEnd is the offset of the end of a node's line, before the line break.
func (d *document) lineEnd(n *yaml.Node) int {
	if n.Line < len(d.lines) {
		end := d.lines[n.Line] - 1
		if end > 0 && d.text[end-1] == '\r' {
			end--
		}
		return end
	}
	return len(d.text)
}

// render prints a block with an indentation, in spaces, without the last line break.
func render(n *yaml.Node, indent int) (string, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(n); err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	return strings.Repeat(" ", indent) + strings.Join(lines, "\n"+strings.Repeat(" ", indent)), nil
}

// inline prints a node in one line of flow style.
func inline(n *yaml.Node) (string, error) {
	flow := *n
	flow.Style |= yaml.FlowStyle
	text, err := render(&flow, 0)
	if err == nil && strings.Contains(text, "\n") {
		err = tooUnusual("a list or map in one line")
	}
	return text, err
}

// add puts the entries of block before the first of a mapping.
func (d *document) add(m, block *yaml.Node) error {
	if m.Kind == yaml.MappingNode && m.Style&yaml.FlowStyle != 0 {
		text, err := inline(block)
		if err != nil {
			return err
		}
		return d.intoFlow(m, strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}"))
	}
	if m.Kind != yaml.MappingNode || len(m.Content) == 0 {
		return tooUnusual("a part of the file")
	}
	first := m.Content[0]
	if strings.TrimSpace(string(d.text[d.lines[first.Line-1]:d.offset(first)])) != "" {
		return tooUnusual("a part of the file")
	}
	text, err := render(block, first.Column-1)
	d.edits = append(d.edits, edit{offset: d.lines[first.Line-1], text: text + "\n"})
	return err
}

// intoFlow puts text behind the opening bracket of a list or map in one line.
func (d *document) intoFlow(n *yaml.Node, text string) error {
	at := d.offset(n)
	if at >= len(d.text) || d.text[at] != '{' && d.text[at] != '[' {
		return tooUnusual("a list or map in one line")
	}
	if len(n.Content) > 0 {
		text += ", "
	} else if slices.ContainsFunc(d.edits, func(e edit) bool { return e.offset == at+1 }) {
		text = ", " + text
	}
	d.edits = append(d.edits, edit{offset: at + 1, text: text})
	return nil
}

// addAfterImage puts the entries of block behind a service's image, or first.
func (d *document) addAfterImage(service, block *yaml.Node) error {
	_, image := entry(service, "image")
	if image == nil || image.Kind != yaml.ScalarNode || service.Style&yaml.FlowStyle != 0 ||
		image.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return d.add(service, block)
	}
	text, err := render(block, service.Content[0].Column-1)
	d.edits = append(d.edits, edit{offset: d.lineEnd(image), text: "\n" + text})
	return err
}

// append puts the entries of block at the end of the file.
func (d *document) append(block *yaml.Node) error {
	if d.root.Style&yaml.FlowStyle != 0 {
		return d.add(d.root, block)
	}
	text, err := render(block, 0)
	gap := "\n"
	if !bytes.HasSuffix(d.text, []byte("\n")) {
		gap = "\n\n"
	}
	d.edits = append(d.edits, edit{offset: len(d.text), text: gap + text + "\n"})
	return err
}

// prepend puts an item before the first of a list.
func (d *document) prepend(list, item *yaml.Node) error {
	if list.Style&yaml.FlowStyle != 0 {
		text, err := inline(item)
		if err != nil {
			return err
		}
		return d.intoFlow(list, text)
	}
	if len(list.Content) == 0 {
		return tooUnusual("an empty list")
	}
	text, err := render(&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{item}}, list.Column-1)
	d.edits = append(d.edits, edit{offset: d.lines[list.Line-1], text: text + "\n"})
	return err
}

// set gives a mapping's key a value.
func (d *document) set(m *yaml.Node, key string, v *yaml.Node) error {
	if _, old := entry(m, key); old != nil {
		return d.replace(old, v)
	}
	block := mapping()
	put(block, key, v)
	return d.add(m, block)
}

// replace puts a scalar in the place of another.
func (d *document) replace(old, with *yaml.Node) error {
	if old.Kind == yaml.ScalarNode && with.Kind == yaml.ScalarNode && old.Value == with.Value {
		return nil
	}
	length, ok := d.scalarLength(old)
	if !ok || with.Kind != yaml.ScalarNode {
		return tooUnusual("a value")
	}
	text, err := inline(with)
	d.edits = append(d.edits, edit{offset: d.offset(old), length: length, text: text})
	return err
}

// fill gives a key that has no value a block.
func (d *document) fill(key, null, v *yaml.Node) error {
	text, err := render(v, key.Column+1)
	if err != nil {
		return err
	}
	if null.Value != "" {
		d.edits = append(d.edits, edit{offset: d.offset(null), length: len(null.Value)})
	}
	d.edits = append(d.edits, edit{offset: d.lineEnd(key), text: "\n" + text})
	return nil
}

// scalarLength gives how many bytes a scalar of one line takes, quotes included.
func (d *document) scalarLength(n *yaml.Node) (int, bool) {
	if n.Kind != yaml.ScalarNode || n.Anchor != "" {
		return 0, false
	}
	text := string(d.text[d.offset(n):d.lineEnd(n)])
	switch {
	case strings.HasPrefix(text, `"`):
		for i := 1; i < len(text); i++ {
			if text[i] == '\\' {
				i++
			} else if text[i] == '"' {
				return i + 1, true
			}
		}
	case strings.HasPrefix(text, "'"):
		for i := 1; i < len(text); i++ {
			if text[i] == '\'' && i+1 < len(text) && text[i+1] == '\'' {
				i++
			} else if text[i] == '\'' {
				return i + 1, true
			}
		}
	case n.Value != "" && strings.HasPrefix(text, n.Value):
		return len(n.Value), true
	}
	return 0, false
}
