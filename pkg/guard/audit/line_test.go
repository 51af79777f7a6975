package audit

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// FuzzLine writes what clients can choose freely: each record is one line of
// valid JSON with nothing in it that a terminal obeys, and says what was asked.
func FuzzLine(f *testing.F) {
	f.Add("mc\n{\"decision\":\"Allow\"}", "\x1b[2Ksystem:admin", "\u202egpj.exe", "a@sha256:0\r\n")
	f.Add("\x00\x7f\u0085", "\u2028\u2029", "\ufeff\u200b\u2066", "\U000e0001\xff")
	f.Add(strings.Repeat("\u202e", 2000), "</script>&<!--", `\u000a\`, "")
	schema := compile(f, Schema())
	f.Fuzz(func(t *testing.T, name, user, message, image string) {
		e := entry("a" + name)
		e.Attempt.Name, e.Attempt.User.Name, e.Decision.Message, e.Attempt.New.Containers[0].Image = name, user, message, image
		e.Attempt.User.Groups = []string{user, name}
		line, err := lineOf(RecordOf(e, "guard-0"))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Count(line, []byte("\n")) != 1 || line[len(line)-1] != '\n' || !utf8.Valid(line) {
			t.Fatalf("not one line: %q", line)
		}
		for _, r := range string(line[:len(line)-1]) {
			if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
				t.Fatalf("%U in %q", r, line)
			}
		}
		if err := validate(schema, line); err != nil {
			t.Fatal(err)
		}
		record := Record{}
		if err := json.Unmarshal(line, &record); err != nil {
			t.Fatal(err)
		}
		if utf8.ValidString(user) && len(user) <= maxText && record.User.Name != user {
			t.Fatalf("%q is written as %q", user, record.User.Name)
		}
		if len(line) > 64<<10 {
			t.Fatalf("the line has %d bytes", len(line))
		}
	})
}
