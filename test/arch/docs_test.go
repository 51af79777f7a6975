package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest   = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	definedTest = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`)
)

// TestDocsNameTestsThatExist keeps docs/compatibility.md honest: what it says is
// shown by a test is shown by one that there is.
func TestDocsNameTestsThatExist(t *testing.T) {
	defined := map[string]bool{}
	for _, tree := range []string{"cmd", "pkg", "test"} {
		err := filepath.WalkDir(filepath.Join("../..", tree), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, match := range definedTest.FindAllSubmatch(source, -1) {
				defined[string(match[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	doc, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	named := namedTest.FindAllString(string(doc), -1)
	if len(named) < 100 {
		t.Fatalf("only %d tests are named", len(named))
	}
	for _, name := range named {
		if !defined[name] {
			t.Errorf("docs/compatibility.md names %s, which is not there", name)
		}
	}
}
