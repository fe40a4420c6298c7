package plugin

import (
	"bytes"
	"encoding/json"
)

// marshalLine gives a value as one line of JSON, with URLs and the like left
// readable.
func marshalLine(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}
