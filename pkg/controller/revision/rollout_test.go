package revision

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/object"
)

func key(name string) object.Key { return pod("ns", name) }

func claiming(names ...string) Claims {
	out := Claims{}
	for _, name := range names {
		out.add(key(name))
	}
	return out
}

func TestDecide(t *testing.T) {
	wants := func(names ...string) Answer {
		a := Answer{Known: true, Wants: map[object.Key]bool{}}
		for _, name := range names {
			a.Wants[key(name)] = true
		}
		return a
	}
	for _, c := range []struct {
		reason      string
		latest, old []string
		children    []Child
		answer      Answer
		// want says where a, b and c go: L latest, O old, . nowhere.
		want     string
		moved    string
		progress Progress
	}{
		{reason: "new names", children: []Child{{Key: key("a"), State: Absent}, {Key: key("b"), State: Absent}}, want: "LL", progress: OnLatest},
		{reason: "the first moves", old: []string{"a", "b"}, answer: wants("a", "b"),
			children: []Child{{Key: key("a"), State: Different}, {Key: key("b"), State: Different}}, want: "LO", moved: "a", progress: Progressing},
		{reason: "the next waits for the first", latest: []string{"a"}, old: []string{"b"}, answer: wants("b"),
			children: []Child{{Key: key("a"), State: Same, Unready: "sleeps"}, {Key: key("b"), State: Different}}, want: "LO", progress: Waiting},
		{reason: "the next waits for the first to be there", latest: []string{"a"}, old: []string{"b"}, answer: wants("b"),
			children: []Child{{Key: key("a"), State: Absent}, {Key: key("b"), State: Different}}, want: "LO", progress: Waiting},
		{reason: "the next waits for the first to be as desired", latest: []string{"a"}, old: []string{"b"}, answer: wants("b"),
			children: []Child{{Key: key("a"), State: Different}, {Key: key("b"), State: Different}}, want: "LO", progress: Waiting},
		{reason: "the next waits for the first to be gone and back", latest: []string{"a"}, old: []string{"b"}, answer: wants("b"),
			children: []Child{{Key: key("a"), State: Leaving}, {Key: key("b"), State: Different}}, want: "LO", progress: Waiting},
		{reason: "equal ones move for nothing", old: []string{"a", "b", "c"}, answer: wants("a", "b", "c"),
			children: []Child{{Key: key("a"), State: Same}, {Key: key("b"), State: Different}, {Key: key("c"), State: Same}}, want: "LLL", moved: "b", progress: Progressing},
		{reason: "equal ones must be ready too", old: []string{"a", "b"}, answer: wants("a", "b"),
			children: []Child{{Key: key("a"), State: Different}, {Key: key("b"), State: Same, Unready: "sleeps"}}, want: "OL", progress: Waiting},
		{reason: "a missing one that waits is made in its old state", latest: []string{"a"}, old: []string{"b"}, answer: wants("b"),
			children: []Child{{Key: key("a"), State: Same, Unready: "sleeps"}, {Key: key("b"), State: Absent}}, want: "LO", progress: Waiting},
		{reason: "a missing one goes first", old: []string{"a", "b"}, answer: wants("a", "b"),
			children: []Child{{Key: key("a"), State: Different}, {Key: key("b"), State: Absent}}, want: "OL", moved: "b", progress: Progressing},
		{reason: "a missing one that the old revision does not want", old: []string{"b"}, answer: wants(),
			children: []Child{{Key: key("b"), State: Absent}}, want: "L", progress: OnLatest},
		{reason: "one that is not ready goes first", old: []string{"a", "b"}, answer: wants("a", "b"),
			children: []Child{{Key: key("a"), State: Different}, {Key: key("b"), State: Different, Unready: "sleeps"}}, want: "OL", moved: "b", progress: Progressing},
		{reason: "one whose move broke off goes first", old: []string{"a", "b"}, answer: wants("a", "b"),
			children: []Child{{Key: key("a"), State: Different}, {Key: key("b"), State: Different, Drifted: true}}, want: "OL", moved: "b", progress: Progressing},
		{reason: "what nobody claims waits as it is", latest: []string{"a"},
			children: []Child{{Key: key("a"), State: Same, Unready: "sleeps"}, {Key: key("b"), State: Different}}, want: "L.", progress: Waiting},
		{reason: "what nobody claims moves in turn",
			children: []Child{{Key: key("a"), State: Different}, {Key: key("b"), State: Different}}, want: "L.", moved: "a", progress: Progressing},
		{reason: "no answer for the old revision", old: []string{"a", "b", "c"},
			children: []Child{{Key: key("a"), State: Different}, {Key: key("b"), State: Different}, {Key: key("c"), State: Different}}, want: "L..", moved: "a", progress: Progressing},
		{reason: "the old revision does not want what is there", latest: []string{"a"}, old: []string{"b"}, answer: wants(),
			children: []Child{{Key: key("a"), State: Same, Unready: "sleeps"}, {Key: key("b"), State: Different}}, want: "L.", progress: Waiting},
		{reason: "what the latest does not want is nobody's", latest: []string{"a", "x"}, old: []string{"y"}, answer: wants("y"),
			children: []Child{{Key: key("a"), State: Same}}, want: "L", progress: OnLatest},
		{reason: "nothing", latest: []string{"x"}, progress: OnLatest},
	} {
		h := &History{Latest: Revision{Name: "new", Claims: claiming(c.latest...)}, Old: []Revision{{Name: "old", Claims: claiming(c.old...)}}}
		d := Decide(h, c.children, []Answer{c.answer})
		got := ""
		for _, child := range c.children {
			got += map[int]string{FollowLatest: "L", 0: "O", FollowNone: "."}[d.Follows[child.Key]]
			if latest := d.Follows[child.Key] == FollowLatest; d.Latest.Has(child.Key) != latest {
				t.Errorf("%s: claims of the latest are %v", c.reason, d.Latest)
			}
			if d.Latest.Has(child.Key) && d.Old[0].Has(child.Key) {
				t.Errorf("%s: %s is claimed twice", c.reason, child.Key)
			}
		}
		moved := ""
		if d.Moved != nil {
			moved = d.Moved.Name
		}
		if got != c.want || moved != c.moved || d.Progress != c.progress || d.Message == "" || len(d.Latest)+len(d.Old[0]) > len(c.children) {
			t.Errorf("%s: %q, moved %q, %+v", c.reason, got, moved, d)
		}
	}
}

// TestDecideProperty plays a rollout with children that get ready some time, and
// a hook whose answers for the old revisions come and go.
func TestDecideProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d", "e"}[:rapid.IntRange(1, 5).Draw(t, "children")]
		h := &History{Latest: Revision{Name: "new", Claims: Claims{}}, Old: []Revision{{Name: "r1", Claims: Claims{}}, {Name: "r2", Claims: Claims{}}}}
		state := map[string]State{}
		unready := map[string]bool{}
		for _, name := range names {
			state[name] = rapid.SampledFrom([]State{Absent, Same, Different, Leaving}).Draw(t, "state")
			if holder := rapid.IntRange(0, 3).Draw(t, "holder"); holder < 3 {
				h.all()[holder].Claims.add(key(name))
			}
		}
		for range 10 * len(names) {
			children := make([]Child, 0, len(names))
			for _, name := range names {
				child := Child{Key: key(name), State: state[name]}
				if unready[name] {
					child.Unready = "sleeps"
				}
				children = append(children, child)
			}
			answers := make([]Answer, len(h.Old))
			for i := range answers {
				answers[i] = Answer{Known: rapid.Bool().Draw(t, "known"), Wants: map[object.Key]bool{}}
				for _, name := range names {
					answers[i].Wants[key(name)] = rapid.Bool().Draw(t, "wants")
				}
			}
			d := Decide(h, children, answers)
			if d.Moved != nil {
				for _, child := range children {
					if h.Latest.Claims.Has(child.Key) && (child.State != Same || child.Unready != "") {
						t.Fatalf("%s moves while %+v", d.Moved, child)
					}
				}
			}
			h.Latest.Claims, h.Old[0].Claims, h.Old[1].Claims = d.Latest, d.Old[0], d.Old[1]
			if d.Progress == OnLatest {
				if len(d.Latest) != len(names) {
					t.Fatalf("it is said to be over with %v", d.Latest)
				}
				return
			}
			for _, name := range names {
				was := state[name]
				switch follows := d.Follows[key(name)]; {
				case was == Leaving:
					state[name] = Absent
				case follows == FollowLatest && was != Same:
					state[name], unready[name] = Same, rapid.Bool().Draw(t, "unready")
				case follows >= 0 && was == Absent:
					state[name] = Different
				default:
					unready[name] = false
				}
			}
		}
		t.Fatalf("it does not end: %v, %v", state, h.Latest.Claims)
	})
}

func TestUnready(t *testing.T) {
	yes, because := "True", "Because"
	inPlace, recreate := v1alpha1.ChildUpdateRollingInPlace, v1alpha1.ChildUpdateRollingRecreate
	ready := v1alpha1.StatusConditionCheck{Type: "Ready", Status: &yes}
	reason := v1alpha1.StatusConditionCheck{Type: "Ready", Status: &yes, Reason: &because}
	exists := v1alpha1.StatusConditionCheck{Type: "Ready"}
	for _, c := range []struct {
		why, metadata, status string
		method                v1alpha1.ChildUpdateMethod
		checks                []v1alpha1.StatusConditionCheck
		says                  string
	}{
		{"nothing to look at", "", `null`, recreate, nil, ""},
		{"no status", `,"generation":2`, `null`, inPlace, nil, ""},
		{"no observedGeneration", `,"generation":2`, `{}`, inPlace, nil, ""},
		{"an older one", `,"generation":2`, `{"observedGeneration":1}`, inPlace, nil, "generation 1"},
		{"an older one of a child that is made again", `,"generation":2`, `{"observedGeneration":1}`, recreate, nil, ""},
		{"the same", `,"generation":2`, `{"observedGeneration":2}`, inPlace, nil, ""},
		{"a number with a point", `,"generation":2`, `{"observedGeneration":1.0}`, inPlace, nil, "generation 1"},
		{"nonsense", `,"generation":2`, `{"observedGeneration":"1"}`, inPlace, nil, ""},
		{"no generation", ``, `{"observedGeneration":1}`, inPlace, nil, ""},
		{"leaving", `,"deletionTimestamp":"2026-01-01T00:00:00Z"`, `{"conditions":[{"type":"Ready","status":"True"}]}`, recreate, nil, "being deleted"},
		{"met", "", `{"conditions":[{"type":"X"},{"type":"Ready","status":"True"}]}`, recreate, []v1alpha1.StatusConditionCheck{ready}, ""},
		{"not met", "", `{"conditions":[{"type":"Ready","status":"False"}]}`, recreate, []v1alpha1.StatusConditionCheck{ready}, `status "False"`},
		{"met, any status", "", `{"conditions":[{"type":"Ready","status":"False"}]}`, recreate, []v1alpha1.StatusConditionCheck{exists}, ""},
		{"reason not met", "", `{"conditions":[{"type":"Ready","status":"True","reason":"Other"}]}`, recreate, []v1alpha1.StatusConditionCheck{reason}, `reason "Other"`},
		{"the first of two counts", "", `{"conditions":[{"type":"Ready","status":"False"},{"type":"Ready","status":"True"}]}`, recreate, []v1alpha1.StatusConditionCheck{ready}, `"False"`},
		{"one of two checks", "", `{"conditions":[{"type":"Ready","status":"True"}]}`, recreate, []v1alpha1.StatusConditionCheck{ready, {Type: "X"}}, "condition X"},
		{"no conditions", "", `{}`, recreate, []v1alpha1.StatusConditionCheck{ready}, "no status condition"},
		{"conditions are text", "", `{"conditions":"x"}`, recreate, []v1alpha1.StatusConditionCheck{ready}, "no status condition"},
		{"conditions are nonsense", "", `{"conditions":[null,1,{"type":7}]}`, recreate, []v1alpha1.StatusConditionCheck{ready}, "no status condition"},
		{"status is nonsense", "", `[]`, inPlace, []v1alpha1.StatusConditionCheck{ready}, "no status condition"},
	} {
		child := parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"%s},"status":%s}`, c.metadata, c.status)
		if got := Unready(child, c.method, c.checks); c.says == "" && got != "" || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q", c.why, got)
		}
	}
}

func TestCondition(t *testing.T) {
	const since, now, before = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z", "2026-01-15T00:00:00Z"
	waiting, done := Decision{Progress: Waiting, Message: "m"}, Decision{Progress: OnLatest, Message: "m"}
	const (
		ours   = `{"type":"Updated","status":"True","reason":"OnLatestRevision","message":"m","lastTransitionTime":"` + since + `"}`
		begun  = `{"type":"Updated","status":"False","reason":"RolloutWaiting","message":"m","lastTransitionTime":"` + now + `"}`
		kept   = `{"type":"Updated","status":"True","reason":"OnLatestRevision","message":"m","lastTransitionTime":"` + before + `"}`
		bare   = `{"type":"Updated","status":"True","reason":"OnLatestRevision","message":"m"}`
		others = `{"type":"Mine","status":"True"}`
	)
	for _, c := range []struct {
		reason, status, current string
		decision                Decision
		want                    string
		room                    bool
	}{
		{"none yet", `{}`, `null`, done, `{"conditions":[` + ours + `]}`, true},
		{"null", `{"conditions":null}`, `null`, done, `{"conditions":[` + ours + `]}`, true},
		{"others stay", `{"a":1,"conditions":[` + others + `]}`, `null`, done, `{"a":1,"conditions":[` + others + `,` + ours + `]}`, true},
		{"the hook's own is replaced", `{"conditions":[{"type":"Updated","status":"Maybe"},` + others + `,{"type":"Updated"}]}`, `null`, done, `{"conditions":[` + ours + `,` + others + `]}`, true},
		{"nonsense stays", `{"conditions":[null,7,{"type":3}]}`, `null`, done, `{"conditions":[null,7,{"type":3},` + ours + `]}`, true},
		{"no list", `{"conditions":{"a":1}}`, `null`, done, `{"conditions":{"a":1}}`, false},
		{"text", `{"conditions":"x"}`, `null`, done, `{"conditions":"x"}`, false},
		{"the same again", `{}`, `[` + kept + `]`, done, `{"conditions":[` + kept + `]}`, true},
		{"the time was pruned", `{}`, `[{"type":"Updated","status":"True"}]`, done, `{"conditions":[` + bare + `]}`, true},
		{"a transition", `{}`, `[` + kept + `]`, waiting, `{"conditions":[` + begun + `]}`, true},
		{"the current ones are nonsense", `{}`, `"x"`, done, `{"conditions":[` + ours + `]}`, true},
	} {
		status, current := decode(t, c.status), any(nil)
		if decoded, err := object.Decode([]byte(c.current)); err == nil {
			current = decoded
		}
		if room := Condition(status, current, c.decision, since, now); room != c.room || !object.Equal(status, decode(t, c.want)) {
			t.Errorf("%s: %v", c.reason, status)
		}
	}
}
