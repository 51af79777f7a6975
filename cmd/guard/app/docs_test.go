package app

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// block is a fenced block of a document.
var block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// TestDocs holds docs/cli.md to what the program does: every command in it can
// be parsed, and the first of check prints what is printed there.
func TestDocs(t *testing.T) {
	content, err := os.ReadFile("../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := block.FindAllStringSubmatch(string(content), -1)
	commands := 0
	for _, b := range blocks {
		if b[1] != "sh" {
			continue
		}
		for line := range strings.Lines(b[2]) {
			_, words, found := strings.Cut(" "+line, " guard ")
			if !found {
				continue
			}
			words, _, _ = strings.Cut(words, "|")
			words, _, _ = strings.Cut(words, ">")
			commands++
			root := newCommand(programName, Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
			command, rest, err := root.Find(strings.Fields(words))
			if err == nil && command == root {
				t.Errorf("%s: no such verb", strings.TrimSpace(line))
			}
			if err == nil {
				err = command.ParseFlags(rest)
			}
			if err != nil {
				t.Errorf("%s: %v", strings.TrimSpace(line), err)
			}
		}
	}
	if commands < 8 {
		t.Errorf("only %d commands were found", commands)
	}

	var manifest, output string
	for i, b := range blocks {
		if b[1] == "yaml" && strings.HasPrefix(b[2], "# two.yaml\n") {
			manifest, output = b[2], blocks[i+2][2]
		}
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile(filepath.Join(".", "two.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := call("", "check", "two.yaml")
	if code != exitFailure || stdout != output {
		t.Errorf("exit code %d, want %d; it prints\n%s%s\nand the document has\n%s", code, exitFailure, stdout, stderr, output)
	}
}
