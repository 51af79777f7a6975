package wire_test

import (
	stdjson "encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// TestDocumentedExamples keeps docs/hooks.md true: its request is what hooks
// get, and its answers are ones that the strict reading takes.
func TestDocumentedExamples(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := map[string][]byte{}
	for _, block := range regexp.MustCompile("(?s)```json (\\w+)\n(.*?)```").FindAllSubmatch(page, -1) {
		examples[string(block[1])] = block[2]
	}

	parsed := func(raw stdjson.RawMessage) *object.Object {
		o, err := object.FromJSON(raw)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		return o
	}
	var shown struct {
		Controller, Parent stdjson.RawMessage
		Children           map[string]map[string]stdjson.RawMessage
	}
	if err := stdjson.Unmarshal(examples["request"], &shown); err != nil {
		t.Fatal(err)
	}
	configMaps := kind("", "v1", "ConfigMap", true)
	request := &hook.Request{
		Flavor: hook.Composite, Call: hook.Sync, Controller: parsed(shown.Controller), Parent: parsed(shown.Parent),
		Children: object.NewSet([]object.Kind{configMaps, deployments}, parsed(shown.Children["ConfigMap.v1"]["hello"])),
	}
	body, err := v1.EncodeRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	var sent, documented any
	if err := stdjson.Unmarshal(body, &sent); err != nil {
		t.Fatal(err)
	}
	if err := stdjson.Unmarshal(examples["request"], &documented); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(documented, sent); diff != "" {
		t.Errorf("what is sent is not as documented (-documented +sent):\n%s", diff)
	}

	if answer, _, err := strict.DecodeResponse(request, examples["composite"]); err != nil || len(answer.Children) != 1 || answer.ResyncAfter == 0 {
		t.Errorf("the answer of a CompositeController: %+v, %v", answer, err)
	}
	request.Flavor = hook.Decorator
	if answer, _, err := strict.DecodeResponse(request, examples["decorator"]); err != nil || len(answer.Labels) != 2 || answer.ChildrenPresence == hook.Absent {
		t.Errorf("the answer of a DecoratorController: %+v, %v", answer, err)
	}
	if answer, _, err := strict.DecodeCustomize(examples["customize"]); err != nil || len(answer.Rules) != 2 {
		t.Errorf("the answer to customize: %+v, %v", answer, err)
	}
}
