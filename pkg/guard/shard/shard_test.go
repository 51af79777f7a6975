package shard

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"
)

func TestDisjoint(t *testing.T) {
	tests := []struct {
		a, b string
		want bool
	}{
		{"team=a", "team=b", true},
		{"team=a", "team==a", false},
		{"team=a", "zone=b", false},
		{"team in (a,b)", "team in (c,d)", true},
		{"team in (a,b)", "team in (b,c)", false},
		{"team in (a,b)", "team notin (a,b)", true},
		{"team in (a,b)", "team notin (a)", false},
		{"team", "!team", true},
		{"team=a", "!team", true},
		{"team!=a", "team!=b", false},
		{"team!=a", "team=a", true},
		{"team notin (a)", "!team", false},
		{"team notin (a,b,c)", "team", false},
		{"team=", "team=a", true},
		{"team=", "!team", true},
		{"size>5", "size<5", true},
		{"size>5", "size<6", true},
		{"size>5", "size<7", false},
		{"size>5", "size<8,size!=6", false},
		// 06 is a number too, and another value than 6.
		{"size>5,size<7", "size!=6", false},
		{"size>5", "size in (5,6)", false},
		{"size>5", "size in (4,5)", true},
		{"size>5", "size=many", true},
		{"size>5", "!size", true},
		{"size<0", "size", true},
		{"size>9223372036854775807", "size", true},
		{"size<5", "size notin (0,1,2,3,4)", false},
		{"team=a,zone=x", "team=a,zone=y", true},
		{"team=a,zone=x", "team=b,zone=x", true},
		{"team=a,zone=x", "team=a", false},
		{"team=a,team=b", "zone=x", true},
		{"a", "b", false},
	}
	for _, test := range tests {
		for _, pair := range [][2]string{{test.a, test.b}, {test.b, test.a}} {
			t.Run(pair[0]+" and "+pair[1], func(t *testing.T) {
				if got := Disjoint(parse(t, pair[0]), parse(t, pair[1])); got != test.want {
					t.Errorf("disjoint is %v, want %v", got, test.want)
				}
			})
		}
	}
}

func TestNothingIsDisjoint(t *testing.T) {
	if !Disjoint(labels.Nothing(), labels.Everything()) {
		t.Error("nothing overlaps")
	}
	if Disjoint(labels.Everything(), labels.Everything()) {
		t.Error("everything does not overlap with itself")
	}
}

func TestParse(t *testing.T) {
	for _, text := range []string{"", " ", "team in", "a=b=c", "UP/per/x=1", "size>many"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q is taken for a shard", text)
		}
	}
	if _, err := Parse("team in (a,b),size>3,!x"); err != nil {
		t.Error(err)
	}
}

type fataler interface {
	Helper()
	Fatal(...any)
}

func parse(t fataler, text string) labels.Selector {
	t.Helper()
	selector, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return selector
}

// TestBruteForce compares with every object of a small universe: each of the
// keys is absent or has one of the values. It has one value more, and one number
// more within any bounds, than selectors can name, so that there the answer is
// exact both ways.
func TestBruteForce(t *testing.T) {
	keys := []string{"a", "b"}
	named := []string{"", "0", "1", "2", "3", "x", "y"}
	universe := append([]string{"other"}, named...)
	for number := range 7 {
		universe = append(universe, fmt.Sprint(number), fmt.Sprintf("0%d", number))
	}
	const absent = "\x00"
	universe = append(universe, absent)
	requirement := rapid.Custom(func(t *rapid.T) string {
		key := rapid.SampledFrom(keys).Draw(t, "key")
		values := strings.Join(rapid.SliceOfN(rapid.SampledFrom(named), 1, 4).Draw(t, "values"), ",")
		bound := rapid.IntRange(-1, 5).Draw(t, "bound")
		switch rapid.IntRange(0, 8).Draw(t, "operator") {
		case 0:
			return key
		case 1:
			return "!" + key
		case 2:
			return fmt.Sprintf("%s>%d", key, max(bound, 0))
		case 3:
			return fmt.Sprintf("%s<%d", key, max(bound, 0))
		case 4, 5:
			return fmt.Sprintf("%s in (%s)", key, values)
		case 6:
			return fmt.Sprintf("%s notin (%s)", key, values)
		case 7:
			return key + "!=" + rapid.SampledFrom(named).Draw(t, "value")
		default:
			return key + "=" + rapid.SampledFrom(named).Draw(t, "value")
		}
	})
	selectors := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(requirement, 1, 3).Draw(t, "requirements"), ",")
	})
	disjoint, overlapping := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		first, second := selectors.Draw(t, "first"), selectors.Draw(t, "second")
		a, b := parse(t, first), parse(t, second)
		var both labels.Set
		for _, valueA := range universe {
			for _, valueB := range universe {
				set := labels.Set{}
				if valueA != absent {
					set["a"] = valueA
				}
				if valueB != absent {
					set["b"] = valueB
				}
				if a.Matches(set) && b.Matches(set) {
					both = set
				}
			}
		}
		got := Disjoint(a, b)
		if got != Disjoint(b, a) {
			t.Fatalf("%q and %q: the order matters", first, second)
		}
		if got && both != nil {
			t.Fatalf("%q and %q are said to be disjoint, and %v matches both", first, second, both)
		}
		if !got && both == nil {
			t.Fatalf("%q and %q are said to overlap, and nothing matches both", first, second)
		}
		if got {
			disjoint++
		} else {
			overlapping++
		}
	})
	if disjoint == 0 || overlapping == 0 {
		t.Errorf("%d pairs were disjoint and %d not: nothing was compared", disjoint, overlapping)
	}
}

// FuzzDisjoint looks for panics and for an answer that one object refutes.
func FuzzDisjoint(f *testing.F) {
	f.Add("team=a", "team in (b,c)", "team", "a")
	f.Add("size>3,size<9", "size notin (4)", "size", "04")
	f.Add("!x", "x notin (y)", "z", "1")
	f.Fuzz(func(t *testing.T, first, second, key, value string) {
		a, err := labels.Parse(first)
		if err != nil {
			return
		}
		b, err := labels.Parse(second)
		if err != nil {
			return
		}
		if !Disjoint(a, b) {
			return
		}
		for _, set := range []labels.Set{{}, {key: value}} {
			if a.Matches(set) && b.Matches(set) && !strings.HasPrefix(value, "-") && !strings.HasPrefix(value, "+") {
				t.Fatalf("%q and %q are said to be disjoint, and %v matches both", first, second, set)
			}
		}
	})
}
