package pin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// words are the CEL expressions that stand for a policy's Match in the
// recognition of an instance. A policy with params reads them from variables;
// a webhook's match condition, which has neither params nor variables, has
// them written in. An empty expression stands for "none listed".
type words struct {
	// images and excludes are regular expressions for repositories. In a
	// variable an empty text stands for "none listed" too.
	images, excludes string
	// commands is a regular expression for command lines.
	commands string
	// hint says, for a CEL expression of type string, whether an image
	// reference in lower case could match images. It is cheap, unlike images.
	hint func(text string) string
	// names says, for a CEL expression of type string, whether one of the
	// commands is mentioned in it. It is cheap, unlike commands.
	names func(text string) string
	// signs are the signs of the commands, as identify.FlagRegexps returns
	// them, and signHint is identify.FlagHint. Only what is written in has them.
	signs    [][]string
	signHint string
	// dynamic is set where images and excludes are variables.
	dynamic bool
	// loose is set where a field may be of any type, as in a custom kind.
	loose bool
}

// literals writes a match in.
func literals(match v1alpha1.Match) words {
	no := func(string) string { return "false" }
	w := words{
		hint: no, names: no, loose: len(match.Workloads) > 0,
		signs: identify.FlagRegexps(match.Commands), signHint: identify.FlagHint(match.Commands),
	}
	if len(match.Images) > 0 {
		w.images = raw(identify.ImageRegexp(match.Images))
		var hints []string
		for _, p := range match.Images {
			hints = append(hints, identify.ImageHint(p))
		}
		w.hint = containsAny(shortest(hints))
	}
	if len(match.ExcludeImages) > 0 {
		w.excludes = raw(identify.ImageRegexp(match.ExcludeImages))
	}
	if len(match.Commands) > 0 {
		w.commands = raw(identify.CommandRegexp(match.Commands))
		w.names = containsAny(shortest(match.Commands))
	}
	return w
}

// containsAny is the test whether a text has one of the words.
func containsAny(words []string) func(text string) string {
	return func(text string) string {
		tests := make([]string, len(words))
		for i, word := range words {
			tests[i] = text + ".contains('" + word + "')"
		}
		return "(" + strings.Join(tests, " || ") + ")"
	}
}

// shortest leaves out the words that have another one within.
func shortest(words []string) []string {
	var out []string
	for i, word := range words {
		if !slices.ContainsFunc(words, func(other string) bool { return other != word && strings.Contains(word, other) }) &&
			!slices.Contains(words[:i], word) {
			out = append(out, word)
		}
	}
	return out
}

// oneOf is the test whether a text has one of the words of a list, which is an
// expression too.
func oneOf(list string) func(text string) string {
	return func(text string) string { return list + ".exists(n, " + text + ".contains(n))" }
}

// The variables that hold a policy's match.
const (
	varImages   = "images"
	varHints    = "hints"
	varExcludes = "excludes"
	varNames    = "names"
	varCommands = "commands"
)

// variables reads the match from the variables that matchVariables declares.
func variables() words {
	return words{
		images:   "variables." + varImages,
		excludes: "variables." + varExcludes,
		commands: "variables." + varCommands,
		hint:     oneOf("variables." + varHints),
		names:    oneOf("variables." + varNames),
		dynamic:  true,
	}
}

// matchVariables builds, from the policy in params, the texts that package
// identify builds in Go.
func matchVariables() []variable {
	alternatives := func(list string, steps []identify.Replacement) string {
		word := "p"
		for _, s := range steps {
			word += fmt.Sprintf(".replace('%s', '%s')", s.Old, s.New)
		}
		return list + ".map(p, " + word + ").join('|')"
	}
	images := func(field string) string {
		return fmt.Sprintf("size(%s) == 0 ? '' : '%s' + %s + '%s'", matchList(field),
			identify.ImageRegexpHead, alternatives(matchList(field), identify.ImageReplacements), identify.ImageRegexpTail)
	}
	name := alternatives("variables."+varNames, identify.CommandReplacements)
	return []variable{
		{varImages, images("images")},
		// identify.ImageHint of each, then those that have no other one within.
		{varHints, "[" + imageHints() + "]" +
			".map(h, h.filter(t, !h.exists(o, o != t && t.contains(o))))[0]"},
		{varExcludes, images("excludeImages")},
		{varNames, matchList("commands")},
		{varCommands, fmt.Sprintf("[%s].map(a, %s + a + %s + a + %s)[0]", name,
			raw(identify.CommandRegexpHead), raw(identify.CommandRegexpMiddle), raw(identify.CommandRegexpTail))},
	}
}

// raw quotes a regular expression as a CEL string in which a backslash is a
// backslash. No expression of package identify has three quotes in a row.
func raw(text string) string { return `r"""` + text + `"""` }

// containersOf is the list of all containers of a Pod's spec.
func containersOf(podSpec string) string {
	return typedList(podSpec, "containers") + " + " + typedList(podSpec, "initContainers") + " + " + typedList(podSpec, "ephemeralContainers")
}

// typedList and typedString read a field that may be missing, null (as a nil
// list of containers is) or, in a custom kind, anything else.
func typedList(object, field string) string {
	return typedField(object, field, "list", "[]")
}

func typedString(object, field string) string {
	return typedField(object, field, "string", "''")
}

func typedField(object, field, kind, empty string) string {
	value := object + ".?" + field + ".orValue(" + empty + ")"
	return "(type(" + value + ") == " + kind + " ? " + value + " : " + empty + ")"
}

// list and text read a field of a container, for half of what the above cost
// where the API server has checked its type and leaves out what is empty.
func (w words) list(object, field string) string {
	if w.loose {
		return typedList(object, field)
	}
	return object + ".?" + field + ".orValue([])"
}

func (w words) text(object, field string) string {
	if w.loose {
		return typedString(object, field)
	}
	return object + ".?" + field + ".orValue('')"
}

// instances is the list of those containers that run an instance, as one
// string of name and image each: for containers of one Pod, whose command
// cannot be changed, equal strings mean the same instance.
func instances(podSpec string, w words) string {
	return "(" + containersOf(podSpec) + ").filter(c, " + instance(w) + ").map(c, " + w.text("c", "name") + " + ' ' + " + w.text("c", "image") + ")"
}

// runsInstance says whether a Pod's spec has such a container.
func runsInstance(podSpec string, w words) string {
	return "(" + containersOf(podSpec) + ").exists(c, " + instance(w) + ")"
}

// suspected says whether a Pod's spec has a suspect and no instance, so that
// the guard is asked once, not twice. It is "" where nothing can be one.
func suspected(podSpec string, w words) string {
	if len(w.signs) == 0 {
		return ""
	}
	return "(" + containersOf(podSpec) + ").exists(c, " + suspect(w) + ") && !" + runsInstance(podSpec, w)
}

// instance says whether the container c runs an instance. It is
// identify.Signature's rule for one container, behind a test that is cheap and
// true for all that could be one: nearly all containers of a cluster are
// somebody else's.
func instance(w words) string {
	var tests []string
	if w.images != "" {
		tests = append(tests, "("+matches("r", w.images, w.dynamic)+" && !r.matches("+raw(identify.BystanderRegexp)+"))")
	}
	if w.commands != "" {
		tests = append(tests, commandLine(w)+".exists(l, "+w.names("l")+" && l.matches("+w.commands+"))")
	}
	return couldBe(w) + " && " + unlessExcluded(w, "("+strings.Join(tests, " || ")+")")
}

// couldBe is that test, for the container c.
func couldBe(w words) string {
	var hints []string
	if w.images != "" {
		hints = append(hints, w.hint(w.text("c", "image")+".lowerAscii()"))
	}
	if w.commands != "" {
		// Without a reference the name must stand in one token as it is.
		hints = append(hints, tokens(w)+".exists(t, t.contains('$(') || "+w.names("t")+")")
	}
	return "(" + strings.Join(hints, " || ") + ")"
}

// anyCouldBe says of a Pod's spec whether a container of it passes that test, by
// the policy in params. It is for a match condition, which has no variables: an API
// server converts the object once for its match conditions, and once more for each
// of the other parts of a policy.
func anyCouldBe(podSpec string) string {
	w := words{images: "i", commands: "m", hint: oneOf("i"), names: oneOf("m")}
	return fmt.Sprintf("[%s].exists(i, [%s].exists(m, (%s).exists(c, %s)))", imageHints(), matchList("commands"), containersOf(podSpec), couldBe(w))
}

// matchList is a list of the match of the policy in params.
func matchList(field string) string { return "params.?spec.?match.?" + field + ".orValue([])" }

// imageHints is identify.ImageHint of each of the images.
func imageHints() string {
	return matchList("images") + ".map(p, p.substring(p.lastIndexOf('/') + 1).split('*')[0])"
}

// suspect says whether the container c has a sign of the commands.
func suspect(w words) string {
	signs := make([]string, len(w.signs))
	for i, groups := range w.signs {
		tests := make([]string, len(groups))
		for j, group := range groups {
			tests[j] = "l.matches(" + raw(group) + ")"
		}
		signs[i] = "(" + strings.Join(tests, " && ") + ")"
	}
	return tokens(w) + ".exists(t, t.contains('$(') || t.matches(" + raw(w.signHint) + ")) && " +
		unlessExcluded(w, commandLine(w)+".exists(l, "+strings.Join(signs, " || ")+")")
}

// unlessExcluded is the test, of the container c with its repository r, for one
// that is not excluded.
func unlessExcluded(w words, test string) string {
	if w.excludes != "" {
		test = "!(" + matches("r", w.excludes, w.dynamic) + ") && " + test
	}
	return repository(w) + ".exists(r, " + test + ")"
}

func matches(text, expression string, dynamic bool) string {
	test := text + ".matches(" + expression + ")"
	if dynamic {
		test = "(" + expression + " != '' && " + test + ")"
	}
	return test
}

// repository is identify.Repository of the container c, as a list of one:
// CEL has no local variables, a list of one and map take their place.
func repository(w words) string {
	return "[" + w.text("c", "image") + ".lowerAscii().split('@')[0]]" +
		// The tag.
		".map(r, r.matches('" + `:[^/:]*$` + "') ? r.substring(0, r.lastIndexOf(':')) : r)" +
		// Docker Hub, where no registry is named.
		".map(r, r.matches('^(?:[^/]*[.:][^/]*|localhost)/') ? r : 'docker.io/' + r)" +
		// The port.
		".map(r, r.find('^[^/:]*') + r.substring(r.indexOf('/')))" +
		".map(r, r.startsWith('index.docker.io/') ? r.substring(6) : r)" +
		".map(r, r.matches('^docker[.]io/[^/]*$') ? 'docker.io/library/' + r.substring(10) : r)"
}

// tokens is the list of the words of the container c's command and args.
func tokens(w words) string {
	return "(" + w.list("c", "command") + " + " + w.list("c", "args") + ")"
}

// commandLine is identify.CommandLine of the container c, as a list of one.
func commandLine(w words) string {
	line := "[" + w.list("c", "command") + `.join('\f') + '\f' + ` + w.list("c", "args") + `.join('\f') + '\f']`
	env := w.list("c", "env")
	worth := "(size(" + env + ") * (size(l.split('$(')) - 1) <= " + fmt.Sprint(identify.ExpansionLimit) +
		" || " + w.names("l") + " || " + env + ".exists(e, " + w.names(w.text("e", "value")) + "))"
	// A value's own references are to variables that stand before it: before is
	// the names of those, and how often a name is among them says which one of
	// that name is the last.
	names := `'\f' + ` + env + ".map(n, " + w.text("n", "name") + `).join('\f') + '\f'`
	before := "[" + names + `].map(n, n.substring(0, n.lastIndexOf('\f' + ` + nameOf("") + ` + '\f') + 1))`
	value := w.text("f[k - 1]", "value")
	nested := "[" + value + "].map(v, v.contains('$(') ? " + before + ".map(b, " +
		w.expand("v", "2", `size(b.split('\f').filter(n, n == `+nameOf("2")+"))", w.text("f2[k2 - 1]", "value")) + ")[0] : v)[0]"
	return line + ".map(l, l.contains('$(') && " + worth + " ? " + w.expand("l", "", "size(f)", nested) + " : l)"
}

// nameOf is the name in the reference that the part p of a text begins with.
func nameOf(suffix string) string {
	return strings.ReplaceAll("p$S.substring(0, p$S.indexOf(')'))", "$S", suffix)
}

// expand is the function of that name in package identify. Variables of
// loops end in suffix, for one expansion stands within another. The text of
// each segment before its first reference gets a reference without a name in
// front, which stays as it is, so that one rule fits all parts; the five
// characters are cut off again. count is how many of the variables of that name,
// f, stand before the reference, the last of which has value.
func (w words) expand(text, suffix, count, value string) string {
	in := strings.NewReplacer("TEXT", text, "ENV", w.list("c", "env"), "COUNT", count, "VALUE", value,
		"EACH", w.text("e"+suffix, "name"), "NAME", nameOf(suffix), "$S", suffix)
	return in.Replace("TEXT.split('$$').map(g$S, ('$()' + g$S).split('$(').map(p$S, !p$S.contains(')') ? '$(' + p$S : " +
		"[ENV.filter(e$S, EACH == NAME)].map(f$S, [COUNT].map(k$S, " +
		"k$S == 0 || k$S > size(f$S) || p$S.startsWith(')') || has(f$S[k$S - 1].valueFrom) ? '$(' + p$S : VALUE + p$S.substring(p$S.indexOf(')') + 1))[0])[0]" +
		").join('').substring(5)).join('$')")
}
