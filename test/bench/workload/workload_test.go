package workload

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
)

func TestParentsOfAGroupSelectWhatIsMadeForThem(t *testing.T) {
	plan := Plan{Mode: Customize, Run: "run", Parents: 23, Children: 1, Namespaces: 3, Payload: 5, Related: 4 * 23}
	if err := plan.Check(); err != nil {
		t.Fatal(err)
	}
	selects := func(i int, o RelatedObject) bool {
		namespace, _ := plan.Place(i)
		for _, rule := range AnswerCustomize(Request{Parent: new(plan.Parent(i))}).(CustomizeAnswer).RelatedResources {
			if rule.Namespace != namespace || o.Metadata.Namespace != namespace {
				continue
			}
			if slices.Contains(rule.Names, o.Metadata.Name) {
				return true
			}
			if rule.LabelSelector == nil {
				continue
			}
			matches := true
			for key, value := range rule.LabelSelector.MatchLabels {
				matches = matches && o.Metadata.Labels[key] == value
			}
			if matches {
				return true
			}
		}
		return false
	}
	for i := range plan.Parents {
		if group := plan.Group(i); !slices.Contains(group, i) || len(group) > sharers {
			t.Errorf("parent %d is in the group %v", i, group)
		}
		objects := plan.RelatedObjects(i)
		if len(objects) != 4 {
			t.Fatalf("%d related objects for a parent", len(objects))
		}
		for _, o := range objects {
			want := []int{i}
			if o.Metadata.Labels[GroupLabel] != "" {
				want = plan.Group(i)
			}
			var got []int
			for other := range plan.Parents {
				if selects(other, o) {
					got = append(got, other)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s is selected by %v, not by %v", o.Metadata.Name, got, want)
			}
		}
	}
}

// TestHookAndDriverAgree asks the hooks about parents and compares with what the
// driver waits for.
func TestHookAndDriverAgree(t *testing.T) {
	plan := Plan{Mode: Customize, Run: "run", Parents: 4, Children: 2, Namespaces: 2, Payload: 100, Related: 8}
	body, err := json.Marshal(map[string]any{
		"parent":   plan.Parent(1),
		"children": map[string]any{ChildKey: map[string]any{"parent-1-0": map[string]any{"data": 1}}},
		"related": map[string]any{RelatedKey: map[string]any{
			"a": RelatedObject{Metadata: Meta{Annotations: map[string]string{RoundAnnotation: "2"}}},
			"b": RelatedObject{Metadata: Meta{Annotations: map[string]string{RoundAnnotation: "1"}}},
			"c": RelatedObject{},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var request Request
	if err := json.Unmarshal(body, &request); err != nil {
		t.Fatal(err)
	}
	answer := AnswerComposite(request).(CompositeAnswer)
	if answer.Status.Seen != 1 || len(answer.Children) != 2 {
		t.Fatalf("answer is %+v", answer)
	}
	for n, child := range answer.Children {
		if child.Data.Mark != plan.Mark(1, 3) || len(child.Data.Payload) != 100 {
			t.Errorf("data is %+v", child.Data)
		}
		if child.Metadata.Name != ChildName("parent-1", n) || ParentOf(child.Metadata.Name) != "parent-1" {
			t.Errorf("name is %q", child.Metadata.Name)
		}
	}

	plan.Mode, plan.Related = Decorator, 0
	object := plan.Parent(3)
	decorated := AnswerDecorator(Request{Object: &object}).(DecoratorAnswer)
	if mark := plan.Mark(1, 0); decorated.Annotations[MarkAnnotation] != mark || decorated.Attachments[0].Data.Mark != mark {
		t.Errorf("answer is %+v", decorated)
	}
}

func TestJobsAreTheLeastWrites(t *testing.T) {
	tests := []struct {
		mode   Mode
		change Change
		want   map[string]int
	}{
		{Composite, Created, map[string]int{"create": 3, "update": 2}},
		{Composite, Changed, map[string]int{"update": 4}},
		{Composite, Orphaned, map[string]int{"create": 1, "update": 2}},
		{Customize, Touched, map[string]int{"update": 3}},
		{Decorator, Created, map[string]int{"create": 3, "patch": 1}},
		{Decorator, Changed, map[string]int{"update": 3, "patch": 1}},
		{Decorator, Orphaned, map[string]int{"create": 1}},
	}
	for _, test := range tests {
		plan := Plan{Mode: test.mode, Run: "run", Parents: 1, Children: 3, Namespaces: 1, Payload: 10}
		job := plan.JobFor(test.change, plan.Parent(0), "1")
		got := map[string]int{"create": len(job.Create), "update": len(job.Replace) + len(job.Seen), "patch": 0}
		if job.Annotate {
			got["patch"]++
		}
		maps.DeleteFunc(got, func(_ string, n int) bool { return n == 0 })
		if !maps.Equal(got, test.want) {
			t.Errorf("%s, change %d: %v, want %v", test.mode, test.change, got, test.want)
		}
		child, err := job.Written(0)
		if err != nil || len(child.Metadata.OwnerReferences) != 1 || child.Metadata.Namespace != "run-0" {
			t.Errorf("%s: child is %+v, %v", test.mode, child.Metadata, err)
		}
	}
}
