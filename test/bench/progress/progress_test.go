package progress

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func at(second int64) time.Time { return time.Unix(second, 0) }

var one = Key{"ns", "one"}

func finished(generation int64) ParentState {
	return ParentState{Generation: generation, ObservedGeneration: generation, Seen: 2}
}

func TestCompositeIsDoneWithChildrenAndStatus(t *testing.T) {
	tracker := New(Goal{Children: 2})
	tracker.Want(one, "1")
	steps := []struct {
		what string
		do   func()
		done bool
	}{
		{"the parent", func() { tracker.ParentSeen(one, ParentState{Generation: 1}, at(1)) }, false},
		{"a child", func() { tracker.ChildSeen(one, "a", "u1", "1", at(2)) }, false},
		{"the other child", func() { tracker.ChildSeen(one, "b", "u2", "1", at(3)) }, false},
		{"a status that saw too few", func() { tracker.ParentSeen(one, ParentState{1, 1, 1, ""}, at(4)) }, false},
		{"the status", func() { tracker.ParentSeen(one, finished(1), at(5)) }, true},
		{"a change that is wanted", func() { tracker.Want(one, "2") }, false},
		{"its children, before its generation", func() {
			tracker.ChildSeen(one, "a", "u1", "2", at(6))
			tracker.ChildSeen(one, "b", "u2", "2", at(7))
			tracker.AtLeast(one, 2, at(7))
		}, false},
		{"its status", func() { tracker.ParentSeen(one, finished(2), at(8)) }, true},
		{"one child too many", func() { tracker.ChildSeen(one, "c", "u3", "2", at(9)) }, false},
		{"which goes", func() { tracker.ChildGone(one, "c", at(10)) }, true},
		{"a child that is about to be deleted", func() { tracker.Condemn(one, "a") }, false},
		{"a last change of it", func() { tracker.ChildSeen(one, "a", "u1", "2", at(11)) }, false},
		{"its deletion", func() { tracker.ChildGone(one, "a", at(12)) }, false},
		{"another of its name", func() { tracker.ChildSeen(one, "a", "u4", "2", at(13)) }, true},
	}
	for _, step := range steps {
		step.do()
		if _, done := tracker.Of(one); done != step.done {
			t.Fatalf("done is %t after %s", done, step.what)
		}
	}
	if status := tracker.Status(); status.Pending != 0 || !status.DoneAt.Equal(at(13)) || status.Parents != 1 {
		t.Errorf("status is %+v", status)
	}
	if childrenAt, _ := tracker.Of(one); !childrenAt.Equal(at(13)) {
		t.Errorf("children are there since %s", childrenAt)
	}
	select {
	case <-tracker.Changed():
	default:
		t.Error("nothing changed")
	}
}

func TestDecoratorIsDoneWithItsMark(t *testing.T) {
	tracker := New(Goal{Children: 1, Annotated: true})
	tracker.Want(one, "1")
	tracker.ChildSeen(one, "a", "u1", "1", at(1))
	if _, done := tracker.Of(one); done {
		t.Error("done without an annotation")
	}
	tracker.ParentSeen(one, ParentState{Mark: "1"}, at(2))
	if _, done := tracker.Of(one); !done {
		t.Error("not done with it")
	}
	if tracker.Condemn(one, "b") {
		t.Error("a child that is not there can be condemned")
	}
}

// TestPendingIsTheNumberOfUnfinished compares the count that is kept with one that
// is taken.
func TestPendingIsTheNumberOfUnfinished(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := New(Goal{Children: 2})
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			key := Key{"ns", rapid.SampledFrom([]string{"p", "q", "r"}).Draw(t, "parent")}
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "child")
			mark := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "mark")
			generation := int64(rapid.IntRange(1, 2).Draw(t, "generation"))
			now := at(int64(step + 1))
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0:
				tracker.Want(key, mark)
			case 1:
				tracker.ChildGone(key, name, now)
			case 2:
				tracker.Condemn(key, name)
			case 3:
				tracker.ParentSeen(key, finished(generation), now)
			case 4:
				tracker.AtLeast(key, generation, now)
			default:
				tracker.ChildSeen(key, name, fmt.Sprint("u", step%3), mark, now)
			}
			unfinished := 0
			for key := range tracker.parents {
				if _, done := tracker.Of(key); !done {
					unfinished++
				}
			}
			if got := tracker.Status(); got.Pending != unfinished || got.Parents != len(tracker.parents) {
				t.Fatalf("status %+v with %d of %d unfinished", got, unfinished, len(tracker.parents))
			}
		}
	})
}
