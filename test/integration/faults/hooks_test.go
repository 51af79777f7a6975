package faults_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacontroller-solo/solo/test/kit"
)

type object = map[string]any

// asked is what a hook reads of a request.
type asked struct {
	Parent      askedParent
	Object      askedParent
	Children    map[string]map[string]json.RawMessage
	Attachments map[string]map[string]json.RawMessage
	Related     map[string]map[string]struct{ Data map[string]string }
	Finalizing  bool
}

type askedParent struct {
	Kind     string
	Metadata metav1.ObjectMeta
	Spec     struct {
		Count, Source int
		Value         string
	}
}

func (p askedParent) key() parentKey {
	for _, kind := range kinds {
		if kind.kind == p.Kind {
			return parentKey{kind.plural, p.Metadata.Name}
		}
	}
	return parentKey{}
}

func (p askedParent) parent() parent {
	return parent{count: p.Spec.Count, value: p.Spec.Value, source: p.Spec.Source}
}

// mark is a label that all children have.
const mark = "faults.example.com/child"

func configMap(name string, data object) object {
	return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name, "labels": object{mark: "yes"}}, "data": data}
}

func desired(key parentKey, p parent) []object {
	out := []object{}
	for _, one := range childrenOf(key, p) {
		if one.resource == "parts" {
			out = append(out, object{"apiVersion": groupVersion, "kind": "Part", "metadata": object{"name": one.name, "labels": object{mark: "yes"}}, "spec": object{"value": p.value}})
			continue
		}
		out = append(out, configMap(one.name, object{"value": p.value}))
	}
	return out
}

func counted(children map[string]map[string]json.RawMessage) (n int) {
	for _, of := range children {
		n += len(of)
	}
	return n
}

// syncHook answers for composite controllers, finalizing or not.
func syncHook() kit.Hook {
	return kit.JSON(func(r asked) (object, error) {
		seen := counted(r.Children)
		status := object{"seen": seen, "value": r.Parent.Spec.Value}
		if r.Finalizing {
			return object{"status": status, "children": []object{}, "finalized": seen == 0}, nil
		}
		return object{"status": status, "children": desired(r.Parent.key(), r.Parent.parent())}, nil
	})
}

func sourceName(source int) string { return fmt.Sprintf("source-%d", source) }

func customizeHook() kit.Hook {
	return kit.JSON(func(r asked) (object, error) {
		return object{"relatedResources": []object{{"apiVersion": "v1", "resource": "configmaps", "namespace": namespace, "names": []string{sourceName(r.Parent.Spec.Source)}}}}, nil
	})
}

// decoration is the annotation of decorated parents.
const decoration = "faults.example.com/value"

func decorateHook() kit.Hook {
	return kit.JSON(func(r asked) (object, error) {
		if r.Finalizing {
			return object{"attachments": []object{}, "finalized": counted(r.Attachments) == 0}, nil
		}
		source, ok := r.Related["ConfigMap.v1"][sourceName(r.Object.Spec.Source)]
		if !ok {
			return nil, fmt.Errorf("%s is not related", sourceName(r.Object.Spec.Source))
		}
		attachments := []object{}
		for i := range r.Object.Spec.Count {
			attachments = append(attachments, configMap(childName(r.Object.key(), i), object{"value": r.Object.Spec.Value, "source": source.Data["value"]}))
		}
		return object{"annotations": object{decoration: r.Object.Spec.Value}, "attachments": attachments}, nil
	})
}

// moods makes all hooks fail, or wait.
type moods struct {
	mu sync.Mutex // guards fault
	// fault answers instead of the hooks if it is not nil.
	fault func(kit.Hook) kit.Hook
}

func (m *moods) set(fault func(kit.Hook) kit.Hook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

func (m *moods) over(hook kit.Hook) kit.Hook {
	return func(w http.ResponseWriter, r *http.Request, request kit.HookRequest) {
		m.mu.Lock()
		fault := m.fault
		m.mu.Unlock()
		if fault == nil {
			hook(w, r, request)
			return
		}
		fault(hook)(w, r, request)
	}
}

func failing(fault kit.Hook) func(kit.Hook) kit.Hook {
	return func(kit.Hook) kit.Hook { return fault }
}

// hooksFor says which hooks there are.
func hooksFor() map[string]kit.Hook {
	return map[string]kit.Hook{"/sync": syncHook(), "/customize": customizeHook(), "/decorate": decorateHook()}
}
