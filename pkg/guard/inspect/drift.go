package inspect

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Difference is one field in which an installed object differs from the one
// that would be rendered.
type Difference struct {
	// Path leads to the field; an element of a list that has names is found by
	// it: webhooks[pods.guard.metacontroller.io].failurePolicy.
	Path string `json:"path"`
	// Want and Got are the values in short; absent for a field that is not there.
	Want string `json:"want"`
	Got  string `json:"got"`
}

// Values of a Difference.
const (
	absent    = "absent"
	present   = "present"
	emptyText = "empty"
	notEmpty  = "a PEM bundle"
)

// Fields of the objects that are compared in a way of their own.
const fieldCABundle = "caBundle"

// Drift compares two objects field by field and returns what differs, in the
// order of the paths. They are what JSON makes of an object.
//
// It looks at what somebody wrote: not at metadata and status, which are the API
// server's or another tool's. A caBundle is filled in by others too: it differs
// only if it is empty, for then the API server cannot reach the guard. The
// rendered object must be complete, so a field that is only in the installed
// one is a difference.
func Drift(installed, rendered map[string]any) []Difference {
	d := differ{}
	d.objects("", without(installed), without(rendered))
	slices.SortFunc(d.found, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return d.found
}

// without leaves out what is not compared.
func without(object map[string]any) map[string]any {
	compared := map[string]any{}
	for key, value := range object {
		switch key {
		case "apiVersion", "kind", "metadata", "status":
		default:
			compared[key] = value
		}
	}
	return compared
}

type differ struct{ found []Difference }

func (d *differ) add(path, want, got string) {
	d.found = append(d.found, Difference{Path: path, Want: want, Got: got})
}

func (d *differ) values(path string, installed, rendered any) {
	switch want := rendered.(type) {
	case map[string]any:
		if got, ok := installed.(map[string]any); ok {
			d.objects(path, got, want)
			return
		}
	case []any:
		if got, ok := installed.([]any); ok {
			d.lists(path, got, want)
			return
		}
	}
	if want, got := text(rendered), text(installed); want != got {
		w, g := apart(want, got)
		d.add(path, w, g)
	}
}

func (d *differ) objects(path string, installed, rendered map[string]any) {
	keys := make([]string, 0, len(rendered))
	for key := range rendered {
		keys = append(keys, key)
	}
	for key := range installed {
		if _, ok := rendered[key]; !ok {
			keys = append(keys, key)
		}
	}
	// A caBundle that was left to others is in neither, if nobody has filled it in.
	if _, ok := rendered["service"]; ok {
		keys = append(keys, fieldCABundle)
	} else if _, ok := rendered["url"]; ok && strings.HasSuffix(path, "clientConfig") {
		keys = append(keys, fieldCABundle)
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		at := join(path, key)
		want, wanted := rendered[key]
		got, there := installed[key]
		switch {
		case key == fieldCABundle:
			if s, _ := got.(string); s == "" {
				d.add(at, notEmpty, emptyText)
			}
		case !wanted && vacant(got), !there && vacant(want):
		case !wanted:
			d.add(at, absent, short(text(got)))
		case !there:
			d.add(at, short(text(want)), absent)
		default:
			d.values(at, got, want)
		}
	}
}

// vacant says whether a value says no more than its absence.
func vacant(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case map[string]any:
		// Not an empty object: as a selector it means everything.
		return false
	}
	return false
}

func (d *differ) lists(path string, installed, rendered []any) {
	want, wantNamed := byName(rendered)
	got, gotNamed := byName(installed)
	if !wantNamed || !gotNamed {
		d.byPlace(path, installed, rendered)
		return
	}
	for name, w := range want {
		at := path + "[" + name + "]"
		if g, ok := got[name]; ok {
			d.values(at, g, w)
		} else {
			d.add(at, present, absent)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			d.add(path+"["+name+"]", absent, present)
		}
	}
}

func (d *differ) byPlace(path string, installed, rendered []any) {
	for i := range max(len(installed), len(rendered)) {
		at := path + "[" + strconv.Itoa(i) + "]"
		switch {
		case i >= len(installed):
			d.add(at, short(text(rendered[i])), absent)
		case i >= len(rendered):
			d.add(at, absent, short(text(installed[i])))
		default:
			d.values(at, installed[i], rendered[i])
		}
	}
}

// byName finds the elements of a list by their names; false if they have none,
// or not each its own.
func byName(list []any) (map[string]any, bool) {
	named := map[string]any{}
	for _, element := range list {
		object, ok := element.(map[string]any)
		if !ok {
			return nil, false
		}
		name, ok := object["name"].(string)
		if _, twice := named[name]; !ok || twice {
			return nil, false
		}
		named[name] = element
	}
	return named, true
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// text is a value as JSON, a string as it is.
func text(value any) string {
	if s, ok := value.(string); ok {
		return s
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(raw)
}

// shownText is how much of a value is shown.
const shownText = 60

func short(s string) string { return clip(s, shownText) }

// apart shows two texts where they begin to differ.
func apart(want, got string) (string, string) {
	w, g := []rune(want), []rune(got)
	if len(w) <= shownText && len(g) <= shownText {
		return short(want), short(got)
	}
	same := 0
	for same < len(w) && same < len(g) && w[same] == g[same] {
		same++
	}
	const before = 10
	from := max(0, same-before)
	show := func(r []rune) string {
		if from == 0 {
			return short(string(r))
		}
		if same >= len(r) {
			return short("…" + string(r[min(from, len(r)):]) + " (ends here)")
		}
		return short("…" + string(r[from:]))
	}
	return show(w), show(g)
}
