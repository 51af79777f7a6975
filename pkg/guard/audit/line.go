package audit

import (
	"encoding/json"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// lineOf encodes a record as one line. encoding/json escapes the control
// characters below space; those that it lets through (delete, C1, and the ones
// that change the direction or the flow of text on a terminal) are escaped here.
func lineOf(record Record) ([]byte, error) {
	encoded, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("cannot encode audit record %q: %w", record.DecisionID, err)
	}
	line := make([]byte, 0, len(encoded)+1)
	for len(encoded) > 0 {
		r, size := utf8.DecodeRune(encoded)
		if r >= 0x7f && (unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r)) {
			line = appendEscaped(line, r)
		} else {
			line = append(line, encoded[:size]...)
		}
		encoded = encoded[size:]
	}
	return append(line, '\n'), nil
}

// appendEscaped writes a JSON escape. Outside the basic plane it takes two.
func appendEscaped(line []byte, r rune) []byte {
	if r > 0xffff {
		r -= 0x10000
		return fmt.Appendf(line, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
	}
	return fmt.Appendf(line, `\u%04x`, r)
}
