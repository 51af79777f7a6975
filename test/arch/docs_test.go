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

// honest are pages that say which test shows what, with how many they name at
// least.
var honest = map[string]int{"compatibility.md": 100, "threat-model.md": 50}

// TestDocsNameTestsThatExist keeps them honest: what they say is shown by a test is
// shown by one that there is.
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
	for page, least := range honest {
		doc, err := os.ReadFile(filepath.Join("../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		named := namedTest.FindAllString(string(doc), -1)
		if len(named) < least {
			t.Fatalf("docs/%s names only %d tests", page, len(named))
		}
		for _, name := range named {
			if !defined[name] {
				t.Errorf("docs/%s names %s, which is not there", page, name)
			}
		}
	}
}

// caseID is the id of a case that guards are judged by, in a document or in the name
// of a subtest.
var caseID = regexp.MustCompile(`\b[A-I]\d{2}\b`)

// TestDocsNameCasesThatExist: the ids in the threat model are those of subtests.
func TestDocsNameCasesThatExist(t *testing.T) {
	known := map[string]bool{}
	named := regexp.MustCompile(`"[^"\n]*"|func Test\w+`)
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, name := range named.FindAllString(string(source), -1) {
			for _, id := range caseID.FindAllString(strings.ReplaceAll(name, "_", " "), -1) {
				known[id] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(doc), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, id := range caseID.FindAllString(cells[3], -1) {
			if !known[id] {
				t.Errorf("docs/threat-model.md says that %s is shown, and no subtest has that id", id)
			}
		}
	}
}
