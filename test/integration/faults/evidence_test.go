package faults_test

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// nameOf finds the parent's name in what is said of it or its children.
var nameOf = regexp.MustCompile(`\b(?:p\d+|back-\d+-\d+|again-\d+|blocked)\b`)

const (
	shownParents = 3
	shownLines   = 25
)

// showEvidence prints what is there of the first parents that differ, and what the
// controllers wrote about them.
func (w *world) showEvidence(now *state, left []string) {
	w.t.Helper()
	if now == nil {
		return
	}
	var names []string
	for _, difference := range left {
		if name := nameOf.FindString(difference); name != "" && !slices.Contains(names, name) && len(names) < shownParents {
			names = append(names, name)
		}
	}
	show := func(what string, o *unstructured.Unstructured) {
		brief := o.DeepCopy()
		brief.SetManagedFields(nil)
		content, err := brief.MarshalJSON()
		w.t.Logf("%s: %s %v", what, bytes.TrimSpace(content), err)
	}
	for _, name := range names {
		for key, o := range now.parents {
			if key.name != name {
				continue
			}
			show(fmt.Sprintf("parent %v", key), o)
			for _, revision := range now.revisions[o.GetUID()] {
				show("its revision", revision)
			}
		}
		for key, o := range now.children {
			if nameOf.FindString(key.name) == name {
				show(fmt.Sprintf("child %v", key), o)
			}
		}
		for _, k := range []*keeper{w.updating, w.applying} {
			lines := k.linesWith(name)
			w.t.Logf("the last of %d lines of %s about %s:\n%s", len(lines), k.pod, name, joinLines(lines[max(0, len(lines)-shownLines):]))
		}
	}
}
