package manifest

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxNesting is how deep lists may stand in lists: each level is decoded again.
const maxNesting = 8

// head is what is read of every object.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name         string `json:"name"`
		GenerateName string `json:"generateName"`
		Namespace    string `json:"namespace"`
	} `json:"metadata"`
	Items stdjson.RawMessage `json:"items"`
}

// decoder turns documents of one file into objects.
type decoder struct {
	file  string
	limit int
	yield func(Object, error) bool
}

// decode yields the objects of a document, and what is wrong with it. It returns
// false if nobody wants more.
func (d decoder) decode(doc document) bool {
	if doc.tooLarge {
		return d.fault(doc.line, fmt.Errorf("this document is larger than %s, the most that is read at once; split it with lines of ---", bytesText(d.limit)))
	}
	values, err := jsonValues(doc.data)
	inJSON := err == nil
	if !inJSON {
		value, err := d.fromYAML(doc.data)
		if err != nil {
			line, err := placed(err, doc)
			return d.fault(line, err)
		}
		values = [][]byte{value}
	}
	for _, value := range values {
		if inJSON {
			if err := unique(value); err != nil {
				if !d.fault(doc.line, err) {
					return false
				}
				continue
			}
		}
		if !d.object(value, place{line: doc.line, doc: doc}, head{}, 0) {
			return false
		}
	}
	return true
}

// fromYAML is the document as JSON.
func (d decoder) fromYAML(data []byte) ([]byte, error) {
	if bytes.IndexByte(data, '*') >= 0 && bytes.IndexByte(data, '&') >= 0 {
		if err := checkAliases(data, d.limit); err != nil {
			return nil, err
		}
	}
	converted, err := yaml.YAMLToJSONStrict(data)
	if err == nil || !bytes.Contains(data, []byte(mergeKey)) {
		return converted, err
	}
	// The library also takes a key that goes before a merged one for one that
	// stands twice.
	root := yamlv3.Node{}
	if yamlv3.Unmarshal(data, &root) != nil || twice(&root) {
		return nil, err
	}
	return yaml.YAMLToJSON(data)
}

const mergeKey = "<<"

// twice says whether a key stands twice in a mapping of the document.
func twice(node *yamlv3.Node) bool {
	keys := map[string]bool{}
	for i, child := range node.Content {
		if node.Kind == yamlv3.MappingNode && i%2 == 0 {
			if keys[child.Value] {
				return true
			}
			keys[child.Value] = child.Kind == yamlv3.ScalarNode
		}
		if twice(child) {
			return true
		}
	}
	return false
}

// object yields one object, or the items of a list. parent is the list that it
// is in, if it is.
func (d decoder) object(raw []byte, at place, parent head, depth int) bool {
	raw = bytes.TrimSpace(raw)
	switch {
	case string(raw) == "null":
		return true
	case len(raw) == 0 || raw[0] != '{':
		return d.fault(at.line, fmt.Errorf("want an object with apiVersion and kind, got %s", jsonType(raw)))
	}
	read := head{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &read); err != nil {
		return d.fault(at.line, fmt.Errorf("this is no Kubernetes object: %w", inWords(err)))
	}
	if read.Kind == "" && read.APIVersion == "" {
		read.Kind, read.APIVersion = strings.TrimSuffix(parent.Kind, "List"), parent.APIVersion
	}
	switch {
	case read.Kind == "" && read.APIVersion == "":
		return d.fault(at.line, errors.New("this is no Kubernetes object: apiVersion and kind are missing"))
	case read.Kind == "":
		return d.fault(at.line, errors.New("this is no Kubernetes object: kind is missing"))
	case read.APIVersion == "":
		return d.fault(at.line, fmt.Errorf("this is no Kubernetes object: a %.64q without apiVersion", read.Kind))
	case strings.HasSuffix(read.Kind, "List") && len(read.Items) > 0:
		return d.list(read, at, depth)
	}
	return d.yield(Object{
		File: d.file, Line: at.line,
		APIVersion: read.APIVersion, Kind: read.Kind,
		Namespace: read.Metadata.Namespace, Name: read.Metadata.Name, GenerateName: read.Metadata.GenerateName,
		JSON: raw,
	}, nil)
}

// unique refuses an object in which a key stands twice.
func unique(raw []byte) error {
	var all map[string]any
	twice, err := kjson.UnmarshalStrict(raw, &all)
	if err != nil {
		return fmt.Errorf("this is no JSON object: %w", err)
	}
	return errors.Join(twice...)
}

// inWords says of a field of another type what a person would: they never wrote a
// "Go struct field".
func inWords(err error) error {
	wrong := (*stdjson.UnmarshalTypeError)(nil)
	if !errors.As(err, &wrong) {
		return err
	}
	want := "a text"
	if wrong.Type.Kind() == reflect.Struct {
		want = "an object"
	}
	return fmt.Errorf("%s: want %s, got %s", wrong.Field, want, withArticle(wrong.Value))
}

// withArticle is the JSON library's word for a type, as in jsonType.
func withArticle(value string) string {
	switch value, _, _ = strings.Cut(value, " "); value {
	case "array", "object":
		return "an " + value
	case "string":
		return "a text"
	case "bool":
		return "true or false"
	default:
		return "a " + value
	}
}

func (d decoder) list(list head, at place, depth int) bool {
	if depth == maxNesting {
		return d.fault(at.line, fmt.Errorf("more than %d lists stand in one another; write the items side by side", maxNesting))
	}
	var items []stdjson.RawMessage
	if err := stdjson.Unmarshal(list.Items, &items); err != nil {
		return d.fault(at.line, fmt.Errorf("items of a %.64q: want an array, got %s", list.Kind, jsonType(list.Items)))
	}
	if list.Kind == "List" {
		// Its items may be of any kind, and say so themselves.
		list = head{}
	}
	places := at.items(len(items))
	for i, item := range items {
		if !d.object(item, places[i], list, depth+1) {
			return false
		}
	}
	return true
}

func (d decoder) fault(line int, err error) bool {
	return d.yield(Object{}, &Error{File: d.file, Line: line, Err: err})
}

// place is where an object stands.
type place struct {
	line int
	// doc is the document that the object is all of; node is its node where it
	// is an item.
	doc  document
	node *yamlv3.Node
}

// items are the places of the items of the list that is here. Where they cannot
// be told, they are that of the list.
func (p place) items(n int) []place {
	places := make([]place, n)
	for i := range places {
		places[i] = place{line: p.line}
	}
	node := p.node
	offset := 0
	if node == nil && p.doc.line > 0 {
		root := yamlv3.Node{}
		if yamlv3.Unmarshal(p.doc.data, &root) == nil && len(root.Content) == 1 {
			node, offset = root.Content[0], p.doc.line-1
		}
	} else {
		// The line of a nested node counts from its document's.
		offset = p.line - lineOf(node)
	}
	items := valueOf(node, "items")
	if items == nil || len(items.Content) != n {
		return places
	}
	for i, item := range items.Content {
		places[i] = place{line: item.Line + offset, node: item}
	}
	return places
}

func lineOf(node *yamlv3.Node) int {
	if node == nil {
		return 0
	}
	return node.Line
}

// valueOf is the node of a field; nil if there is none.
func valueOf(node *yamlv3.Node, field string) *yamlv3.Node {
	node = target(node)
	if node == nil || node.Kind != yamlv3.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == field {
			return target(node.Content[i+1])
		}
	}
	return nil
}

func target(node *yamlv3.Node) *yamlv3.Node {
	if node != nil && node.Kind == yamlv3.AliasNode {
		return node.Alias
	}
	return node
}

// json says whether a text is JSON values and nothing else.
func json(data []byte) bool {
	_, err := jsonValues(data)
	return err == nil
}

// jsonValues splits a text into the JSON values that it consists of. It fails
// where it is anything else.
func jsonValues(data []byte) ([][]byte, error) {
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, errNotJSON
	}
	var values [][]byte
	reader := stdjson.NewDecoder(bytes.NewReader(data))
	for {
		var value stdjson.RawMessage
		err := reader.Decode(&value)
		if errors.Is(err, io.EOF) {
			return values, nil
		}
		if err != nil {
			return nil, errNotJSON
		}
		values = append(values, value)
	}
}

var errNotJSON = errors.New("not JSON")

// lineInError is how the YAML library says where something is wrong.
var lineInError = regexp.MustCompile(`line (\d+)`)

// placed finds the line in an error of the YAML library, which counts from the
// document's first, and rewrites it to the file's.
func placed(err error, doc document) (int, error) {
	line, found := doc.line, false
	text := lineInError.ReplaceAllStringFunc(err.Error(), func(match string) string {
		number, numberErr := strconv.Atoi(lineInError.FindStringSubmatch(match)[1])
		if numberErr != nil {
			return match
		}
		// The library may count past the end.
		number = min(number, bytes.Count(bytes.TrimRight(doc.data, "\r\n"), []byte("\n"))+1) + doc.line - 1
		if !found {
			line, found = number, true
		}
		return "line " + strconv.Itoa(number)
	})
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:\n  "} {
		text = strings.TrimPrefix(text, prefix)
	}
	text = strings.ReplaceAll(text, "\n  ", "; ")
	text = "cannot read this as YAML: " + strings.TrimPrefix(text, "line "+strconv.Itoa(line)+": ")
	if tabbed(doc, line) {
		text += "; the line is indented with a tab, YAML wants spaces"
	}
	if bytes.Contains(doc.data, []byte(templateMark)) {
		text += "; if it is a template, render it first, with helm template"
	}
	return line, errors.New(text)
}

// templateMark stands in templates of Helm and others, and hardly elsewhere.
const templateMark = "{{"

// tabbed says whether a line is indented with a tab.
func tabbed(doc document, line int) bool {
	lines := bytes.SplitN(doc.data, []byte("\n"), line-doc.line+2)
	if index := line - doc.line; index >= 0 && index < len(lines) {
		content := bytes.TrimLeft(lines[index], " \t")
		return bytes.IndexByte(lines[index][:len(lines[index])-len(content)], '\t') >= 0
	}
	return false
}

// checkAliases refuses a document whose aliases would make it larger than limit.
func checkAliases(data []byte, limit int) error {
	root := yamlv3.Node{}
	if err := yamlv3.Unmarshal(data, &root); err != nil {
		return err
	}
	sizes := &sizes{known: map[*yamlv3.Node]int{}, limit: limit}
	if sizes.of(&root) > limit {
		return fmt.Errorf("its aliases make it larger than %s; write out what is needed", bytesText(limit))
	}
	return nil
}

// sizes are how large nodes are with their aliases expanded.
type sizes struct {
	known map[*yamlv3.Node]int
	limit int
}

// of is the size of a node in bytes, or more than the limit.
func (s *sizes) of(node *yamlv3.Node) int {
	if node.Kind == yamlv3.AliasNode {
		if size, ok := s.known[node.Alias]; ok {
			return size
		}
		// Until it is known, it is a node that has itself within.
		return s.limit + 1
	}
	size := len(node.Value) + 1
	for _, child := range node.Content {
		if size += s.of(child); size > s.limit {
			size = s.limit + 1
			break
		}
	}
	if node.Anchor != "" {
		s.known[node] = size
	}
	return size
}

func jsonType(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0:
		return "nothing"
	case raw[0] == '[':
		return "an array"
	case raw[0] == '{':
		return "an object"
	case raw[0] == '"':
		return "a text"
	case raw[0] == 't' || raw[0] == 'f':
		return "true or false"
	case raw[0] == 'n':
		return "null"
	default:
		return "a number"
	}
}

func bytesText(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}
