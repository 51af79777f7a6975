package manifest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	kjson "sigs.k8s.io/json"
)

// say is what reading gives, one line each.
func say(object Object, err error) string {
	fault := &Error{}
	switch {
	case errors.As(err, &fault):
		return fmt.Sprintf("%d: error: %v", fault.Line, fault.Err)
	case err != nil:
		return "foreign error: " + err.Error()
	}
	return fmt.Sprintf("%d: %s %s %s/%s", object.Line, object.APIVersion, object.Kind, object.Namespace, object.Name)
}

func readAll(content string, limit int) []string {
	var got []string
	Read("f", strings.NewReader(content), limit, nil, func(object Object, err error) bool {
		got = append(got, say(object, err))
		return true
	})
	return got
}

func pod(name string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata:\n  name: " + name + "\n"
}

func asUTF16(text string) string {
	var b bytes.Buffer
	for _, unit := range append([]uint16{0xfeff}, utf16.Encode([]rune(text))...) {
		_ = binary.Write(&b, binary.LittleEndian, unit)
	}
	return b.String()
}

// streams are what people and tools write; they are the seeds of FuzzRead too.
var streams = map[string]struct {
	content string
	want    []string
}{
	"nothing":                        {"", nil},
	"one":                            {pod("a"), []string{"1: v1 Pod /a"}},
	"no newline at the end":          {strings.TrimSpace(pod("a")), []string{"1: v1 Pod /a"}},
	"two":                            {pod("a") + "---\n" + pod("b"), []string{"1: v1 Pod /a", "6: v1 Pod /b"}},
	"empty documents":                {"---\n---\n\n---\n# Source: x\n---\n" + pod("a") + "---\n---\n# end\n", []string{"7: v1 Pod /a"}},
	"null documents":                 {"---\nnull\n---\n~\n", nil},
	"comments in front":              {"# one\n\n  # two\n---\n# three\n" + pod("a"), []string{"6: v1 Pod /a"}},
	"CRLF":                           {strings.ReplaceAll(pod("a")+"---\n"+pod("b"), "\n", "\r\n"), []string{"1: v1 Pod /a", "6: v1 Pod /b"}},
	"byte order mark":                {"\ufeff" + pod("a") + "---\n\ufeff" + pod("b"), []string{"1: v1 Pod /a", "6: v1 Pod /b"}},
	"byte order mark and separator":  {"\ufeff---\n" + pod("a"), []string{"2: v1 Pod /a"}},
	"UTF-16, as PowerShell writes":   {asUTF16(pod("ä") + "---\n" + pod("b")), []string{"1: v1 Pod /ä", "6: v1 Pod /b"}},
	"directive":                      {"%YAML 1.1\n---\n" + pod("a"), []string{"3: v1 Pod /a"}},
	"content behind the separator":   {"--- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n--- # b\n" + pod("b"), []string{"1: v1 Pod /a", "3: v1 Pod /b"}},
	"only content behind it":         {pod("a") + "--- {apiVersion: v1, kind: Pod, metadata: {name: b}}", []string{"1: v1 Pod /a", "5: v1 Pod /b"}},
	"end of document":                {pod("a") + "...\n" + pod("b"), []string{"1: v1 Pod /a", "6: v1 Pod /b"}},
	"separator within a text":        {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: |\n    ---\n    kind: Pod\n", []string{"1: v1 ConfigMap /a"}},
	"four dashes are no separator":   {"apiVersion: v1\nkind: Pod\n----: x\nmetadata: {name: a}\n", []string{"1: v1 Pod /a"}},
	"JSON":                           {`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n"}}`, []string{"1: v1 Pod n/a"}},
	"JSON, one behind the other":     {"{\"apiVersion\":\"v1\",\n\"kind\":\"Pod\",\"metadata\":{\"name\":\"a}\\\"\"}}\n\n{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"b\"}}\n", []string{`1: v1 Pod /a}"`, "4: v1 Pod /b"}},
	"JSON, two on a line":            {`{"apiVersion":"v1","kind":"A"}{"apiVersion":"v1","kind":"B"}`, []string{"1: v1 A /", "1: v1 B /"}},
	"JSON with what YAML cannot":     {`{"apiVersion":"v1","kind":"A","metadata":{"name":"\ud83d\ude00\/"}}`, []string{"1: v1 A /😀/"}},
	"JSON, then YAML":                {"# c\n{\"apiVersion\":\"v1\",\"kind\":\"A\"}\n---\n" + pod("b") + "---\n{\"apiVersion\":\"v1\",\"kind\":\"C\"}\n", []string{"2: v1 A /", "4: v1 Pod /b", "9: v1 C /"}},
	"flow style over lines":          {"{apiVersion: v1,\n kind: Pod,\n metadata: {name: 'a}'}}\n---\n" + pod("b"), []string{"1: v1 Pod /a}", "5: v1 Pod /b"}},
	"anchors":                        {"apiVersion: v1\nkind: Pod\nmetadata: &m {name: a}\nother: *m\n", []string{"1: v1 Pod /a"}},
	"merge keys":                     {"apiVersion: v1\nkind: Pod\nx: &m {name: a, namespace: ns}\nmetadata: {<<: *m, name: b}\n", []string{"1: v1 Pod ns/b"}},
	"list":                           {"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: b}\n", []string{"4: v1 Pod /a", "7: v1 Pod /b"}},
	"list behind a comment":          {"# c\n---\n# d\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod}\n", []string{"7: v1 Pod /"}},
	"list of lists":                  {"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n  items:\n  - {apiVersion: v1, kind: A}\n  - apiVersion: v1\n    kind: B\n- {apiVersion: v1, kind: C}\n", []string{"7: v1 A /", "8: v1 B /", "10: v1 C /"}},
	"typed list":                     {"apiVersion: apps/v1\nkind: DeploymentList\nitems:\n- metadata: {name: a}\n- kind: Other\n  apiVersion: v2\n", []string{"4: apps/v1 Deployment /a", "5: v2 Other /"}},
	"JSON list":                      {"{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"A\"},\n{\"apiVersion\":\"v1\",\"kind\":\"B\"}]}", []string{"2: v1 A /", "3: v1 B /"}},
	"empty list":                     {"apiVersion: v1\nkind: List\nitems: []\n---\napiVersion: v1\nkind: List\nitems:\n", nil},
	"kind that ends in List":         {"apiVersion: example.com/v1\nkind: AllowList\nmetadata: {name: a}\n", []string{"1: example.com/v1 AllowList /a"}},
	"what YAML 1.1 makes of a value": {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: yes\n", []string{"1: error: this is no Kubernetes object: metadata.name: want a text, got true or false"}},
	"metadata of another type":       {"apiVersion: v1\nkind: Pod\nmetadata: [1]\n", []string{"1: error: this is no Kubernetes object: metadata: want an object, got an array"}},
	"a number for a kind":            {`{"apiVersion":"v1","kind":1}`, []string{"1: error: this is no Kubernetes object: kind: want a text, got a number"}},

	"merge key and a key twice": {"apiVersion: v1\nkind: Pod\nx: &m {name: a}\nmetadata: {<<: *m, name: b, name: c}\n", []string{`4: error: cannot read this as YAML: key "name" already set in map; line 4: key "name" already set in map`}},
	"tab":                       {"# c\napiVersion: v1\nkind: Pod\nmetadata:\n\tname: a\n---\n" + pod("b"), []string{"5: error: cannot read this as YAML: found character that cannot start any token; the line is indented with a tab, YAML wants spaces", "7: v1 Pod /b"}},
	"template":                  {pod("a") + "---\napiVersion: v1\nkind: {{ .Kind }}\n---\n" + pod("b"), []string{"1: v1 Pod /a", `6: error: cannot read this as YAML: invalid map key: map[interface {}]interface {}{".Kind":interface {}(nil)}; if it is a template, render it first, with helm template`, "9: v1 Pod /b"}},
	"key twice":                 {"---\napiVersion: v1\nkind: Pod\nkind: Job\n---\n" + pod("b"), []string{`4: error: cannot read this as YAML: key "kind" already set in map`, "6: v1 Pod /b"}},
	"key twice in JSON":         {"{\"apiVersion\":\"v1\",\"kind\":\"A\",\"kind\":\"B\"}\n" + `{"apiVersion":"v1","kind":"C"}`, []string{`1: error: duplicate field "kind"`, "2: v1 C /"}},
	"broken JSON":               {"{\"apiVersion\":\"v1\",\n\"kind\":\n---\n" + pod("b"), []string{"2: error: cannot read this as YAML: did not find expected node content", "4: v1 Pod /b"}},
	"unclosed quote":            {"apiVersion: v1\nkind: \"Pod\n---\n" + pod("b"), []string{"2: error: cannot read this as YAML: found unexpected end of stream", "4: v1 Pod /b"}},
	"a text":                    {"hello\n---\n- a\n---\n7\n---\ntrue\n", []string{"1: error: want an object with apiVersion and kind, got a text", "3: error: want an object with apiVersion and kind, got an array", "5: error: want an object with apiVersion and kind, got a number", "7: error: want an object with apiVersion and kind, got true or false"}},
	"values file":               {"replicas: 1\n---\nkind: Pod\n---\napiVersion: v1\n", []string{"1: error: this is no Kubernetes object: apiVersion and kind are missing", "3: error: this is no Kubernetes object: a \"Pod\" without apiVersion", "5: error: this is no Kubernetes object: kind is missing"}},
	"items that are no array":   {"apiVersion: v1\nkind: List\nitems: {a: b}\n", []string{"1: error: items of a \"List\": want an array, got an object"}},
	"an item that is a text":    {"apiVersion: v1\nkind: List\nitems:\n- a\n- {apiVersion: v1, kind: A}\n", []string{"4: error: want an object with apiVersion and kind, got a text", "5: v1 A /"}},
	"unknown alias":             {"apiVersion: v1\nkind: *x\n", []string{"1: error: cannot read this as YAML: unknown anchor 'x' referenced"}},
	"alias of itself":           {"apiVersion: v1\nkind: A\nx: &x [*x]\n", []string{"1: error: cannot read this as YAML: its aliases make it larger than 1 MiB; write out what is needed"}},
	"no number of JSON's":       {"apiVersion: v1\nkind: A\nx: .inf\n", []string{"1: error: cannot read this as YAML: json: unsupported value: +Inf"}},
	"control characters in it":  {"apiVersion: v1\nkind: \"A\\e[31m\\n\\u202e\"\n", []string{"1: v1 A\x1b[31m\n\u202e /"}},
}

func TestRead(t *testing.T) {
	for name, test := range streams {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, readAll(test.content, 1<<20)); diff != "" {
				t.Errorf("%s", diff)
			}
		})
	}
}

// TestBillionLaughs has texts that are small as they stand and huge as they are meant.
func TestBillionLaughs(t *testing.T) {
	laughs := "apiVersion: v1\nkind: A\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	long := "apiVersion: v1\nkind: A\nx: &x " + strings.Repeat("x", 400<<10) + "\ny: [" + strings.TrimSuffix(strings.Repeat("*x,", 10_000), ",") + "]\n"
	for name, content := range map[string]string{"many": laughs, "long": long} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := readAll(content+"---\n"+pod("b"), 1<<20)
		runtime.ReadMemStats(&after)
		if len(got) != 2 || !strings.Contains(got[0], "its aliases make it larger than 1 MiB") || !strings.HasSuffix(got[1], "v1 Pod /b") {
			t.Errorf("%s: got %q", name, got)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
			t.Errorf("%s: took %d bytes", name, used)
		}
	}
}

func TestLimits(t *testing.T) {
	filler := strings.Repeat("  # "+strings.Repeat("x", 96)+"\n", 100)
	large := "apiVersion: v1\nkind: Pod\nmetadata:\n" + filler + "  name: large\n"
	want := []string{"1: v1 Pod /a", "6: error: this document is larger than 4096 bytes, the most that is read at once; split it with lines of ---", "111: v1 Pod /b"}
	if diff := cmp.Diff(want, readAll(pod("a")+"---\n"+large+"---\n"+pod("b"), 4096)); diff != "" {
		t.Error(diff)
	}
	// A line that is longer than the buffer, in JSON and as a comment.
	wide := strings.Repeat("x", 3*inputBuffer)
	content := "# " + wide + "\n" + `{"apiVersion":"v1","kind":"A","x":"` + wide + "\"}\n" + `{"apiVersion":"v1","kind":"B"}`
	if diff := cmp.Diff([]string{"2: v1 A /", "3: v1 B /"}, readAll(content, 1<<20)); diff != "" {
		t.Error(diff)
	}
	nested := `{"apiVersion":"v1","kind":"A"}`
	for range maxNesting + 1 {
		nested = `{"apiVersion":"v1","kind":"List","items":[` + nested + `]}`
	}
	if diff := cmp.Diff([]string{"1: error: more than 8 lists stand in one another; write the items side by side"}, readAll(nested, 1<<20)); diff != "" {
		t.Error(diff)
	}
	deep := "apiVersion: v1\nkind: A\nx: " + strings.Repeat("[", 200_000) + "\n"
	if got := readAll(deep, 1<<20); len(got) != 1 || !strings.Contains(got[0], "error: cannot read this as YAML") {
		t.Errorf("got %.200q", got)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the disk is gone") }

func TestReaderFails(t *testing.T) {
	var got []string
	Read("f", io.MultiReader(strings.NewReader(pod("a")+"---\n"+pod("b")), broken{}), 1<<20, nil, func(object Object, err error) bool {
		got = append(got, say(object, err))
		return true
	})
	if diff := cmp.Diff([]string{"1: v1 Pod /a", "0: error: cannot go on after line 9: the disk is gone"}, got); diff != "" {
		t.Error(diff)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSet(t *testing.T) {
	dir := t.TempDir()
	in := func(path string) string { return filepath.Join(dir, path) }
	write(t, in("d/b.yaml"), pod("b"))
	write(t, in("d/a.json"), `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`)
	write(t, in("d/c/e.YML"), pod("e"))
	write(t, in("d/readme.md"), "hello")
	write(t, in("d/.hidden/x.yaml"), "hello")
	write(t, in("plain"), pod("plain"))
	write(t, in("none/readme.md"), "hello")
	for link, to := range map[string]string{"d/c/loop": "d", "d/z.yaml": "plain", "d/gone.yaml": "nowhere"} {
		if err := os.Symlink(in(to), in(link)); err != nil {
			t.Fatal(err)
		}
	}
	set, err := Open([]string{in("missing.yaml"), in("d"), in("none"), StandardInput, in("plain"), StandardInput}, strings.NewReader(pod("piped")), 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var got []string
		for object, err := range set.Objects(nil) {
			fault := &Error{}
			if errors.As(err, &fault) {
				got = append(got, strings.TrimPrefix(fault.Error(), dir+"/"))
				continue
			}
			got = append(got, strings.TrimPrefix(object.File, dir+"/")+" "+object.Name)
		}
		if diff := cmp.Diff([]string{
			"missing.yaml: cannot stat: no such file or directory",
			"d/gone.yaml: cannot stat: no such file or directory",
			"none: no .yaml, .yml or .json file is in this folder",
			"d/a.json a", "d/b.yaml b", "d/c/e.YML e", "d/z.yaml plain", "stdin piped", "plain plain",
		}, got); diff != "" {
			t.Fatal(diff)
		}
	}
	if set.Files() != 6 {
		t.Errorf("got %d files", set.Files())
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}

func TestUnreadableFile(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), pod("a"))
	if err := os.Chmod(filepath.Join(dir, "a.yaml"), 0); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		t.Skip("root can read everything")
	}
	set, err := Open([]string{dir}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range set.Objects(nil) {
		if err == nil || !strings.HasSuffix(err.Error(), "a.yaml: cannot open: permission denied") {
			t.Errorf("got %v", err)
		}
	}
}

// A pipe that happens to lie in a folder is not waited for.
func TestPipeInAFolder(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := Open([]string{dir}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	faults := 0
	for _, err := range set.Objects(nil) {
		if faults++; err == nil || !strings.Contains(err.Error(), "pipe.yaml: it is no regular file") {
			t.Errorf("got %v", err)
		}
	}
	if faults != 1 {
		t.Errorf("%d faults", faults)
	}
}

func TestSpool(t *testing.T) {
	content := strings.Repeat(pod("a")+"---\n", (spoolMemory/20)+1)
	t.Setenv("TMPDIR", t.TempDir())
	set, err := Open([]string{StandardInput}, strings.NewReader(content), 0)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for range 2 {
		for _, err := range set.Objects(Mentioning("nothing")) {
			t.Fatal(err)
		}
	}
	for _, err := range set.Objects(nil) {
		if err != nil {
			t.Fatal(err)
		}
		if count++; count == 10 {
			break
		}
	}
	if count != 10 {
		t.Errorf("got %d objects", count)
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if _, err := Open([]string{StandardInput}, broken{}, 0); err == nil || !strings.Contains(err.Error(), "the disk is gone") {
		t.Errorf("got %v", err)
	}
}

// FuzzRead reads anything. What follows behind a separator is read whatever
// stands in front of it.
func FuzzRead(f *testing.F) {
	for _, stream := range streams {
		f.Add([]byte(stream.content))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if bytes.HasPrefix(content, []byte("\xff\xfe")) || bytes.HasPrefix(content, []byte("\xfe\xff")) {
			return
		}
		lines := bytes.Count(content, []byte("\n")) + 1
		var alone []string
		Read("f", bytes.NewReader(content), 64<<10, nil, func(object Object, err error) bool {
			alone = append(alone, say(object, err))
			if fault := (*Error)(nil); errors.As(err, &fault) {
				if fault.Line < 0 || fault.Line > lines {
					t.Fatalf("line %d of %d: %v", fault.Line, lines, err)
				}
				return true
			}
			var fields map[string]any
			if err != nil || object.Line < 1 || object.Line > lines || object.Kind == "" || object.APIVersion == "" ||
				kjson.UnmarshalCaseSensitivePreserveInts(object.JSON, &fields) != nil {
				t.Fatalf("got %+v, %v", object, err)
			}
			return true
		})
		both := readAll(string(content)+"\n---\n"+pod("b"), 64<<10)
		if len(both) == 0 || both[len(both)-1] != fmt.Sprintf("%d: v1 Pod /b", lines+2) {
			t.Fatalf("lost what follows: %q", both)
		}
		if len(both) != len(alone)+1 {
			t.Fatalf("alone %q, with another %q", alone, both)
		}
	})
}
