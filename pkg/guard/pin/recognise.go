package pin

import (
	"fmt"
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
	// names says, for a CEL expression of type string, whether one of the
	// commands is mentioned in it. It is cheap, unlike commands.
	names func(text string) string
	// dynamic is set where images and excludes are variables.
	dynamic bool
}

// literals writes a match in.
func literals(match v1alpha1.Match) words {
	w := words{names: func(string) string { return "false" }}
	if len(match.Images) > 0 {
		w.images = raw(identify.ImageRegexp(match.Images))
	}
	if len(match.ExcludeImages) > 0 {
		w.excludes = raw(identify.ImageRegexp(match.ExcludeImages))
	}
	if len(match.Commands) > 0 {
		w.commands = raw(identify.CommandRegexp(match.Commands))
		w.names = func(text string) string {
			tests := make([]string, len(match.Commands))
			for i, name := range match.Commands {
				tests[i] = text + ".contains('" + name + "')"
			}
			return "(" + strings.Join(tests, " || ") + ")"
		}
	}
	return w
}

// The variables that hold a policy's match.
const (
	varImages   = "images"
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
		names:    func(text string) string { return "variables." + varNames + ".exists(n, " + text + ".contains(n))" },
		dynamic:  true,
	}
}

// matchVariables builds, from the policy in params, the texts that package
// identify builds in Go.
func matchVariables() []variable {
	list := func(field string) string { return "params.?spec.?match.?" + field + ".orValue([])" }
	alternatives := func(list string, steps []identify.Replacement) string {
		word := "p"
		for _, s := range steps {
			word += fmt.Sprintf(".replace('%s', '%s')", s.Old, s.New)
		}
		return list + ".map(p, " + word + ").join('|')"
	}
	images := func(field string) string {
		return fmt.Sprintf("size(%s) == 0 ? '' : '%s' + %s + '%s'", list(field),
			identify.ImageRegexpHead, alternatives(list(field), identify.ImageReplacements), identify.ImageRegexpTail)
	}
	name := alternatives("variables."+varNames, identify.CommandReplacements)
	return []variable{
		{varImages, images("images")},
		{varExcludes, images("excludeImages")},
		{varNames, list("commands")},
		{varCommands, fmt.Sprintf("[%s].map(a, %s + a + %s + a + %s)[0]", name,
			raw(identify.CommandRegexpHead), raw(identify.CommandRegexpMiddle), raw(identify.CommandRegexpTail))},
	}
}

// raw quotes a regular expression as a CEL string in which a backslash is a
// backslash. No expression of package identify has three quotes in a row.
func raw(text string) string { return `r"""` + text + `"""` }

// containersOf is the list of all containers of a Pod's spec.
func containersOf(podSpec string) string {
	return listField(podSpec, "containers") + " + " + listField(podSpec, "initContainers") + " + " + listField(podSpec, "ephemeralContainers")
}

// listField and stringField read a field that may be missing, null (as a nil
// list of containers is) or, in a custom kind, anything else.
func listField(object, field string) string {
	return typedField(object, field, "list", "[]")
}

func stringField(object, field string) string {
	return typedField(object, field, "string", "''")
}

func typedField(object, field, kind, empty string) string {
	value := object + ".?" + field + ".orValue(" + empty + ")"
	return "(type(" + value + ") == " + kind + " ? " + value + " : " + empty + ")"
}

// instances is the list of those containers that run an instance, as one
// string of name and image each: for containers of one Pod, whose command
// cannot be changed, equal strings mean the same instance.
func instances(podSpec string, w words) string {
	return "(" + containersOf(podSpec) + ").filter(c, " + instance(w) + ").map(c, " + stringField("c", "name") + " + ' ' + " + stringField("c", "image") + ")"
}

// runsInstance says whether a Pod's spec has such a container.
func runsInstance(podSpec string, w words) string {
	return "(" + containersOf(podSpec) + ").exists(c, " + instance(w) + ")"
}

// instance says whether the container c runs an instance. It is
// identify.Signature's rule for one container.
func instance(w words) string {
	var tests []string
	if w.images != "" {
		tests = append(tests, matches("r", w.images, w.dynamic))
	}
	if w.commands != "" {
		tests = append(tests, commandLine(w)+".exists(l, "+w.names("l")+" && l.matches("+w.commands+"))")
	}
	test := "(" + strings.Join(tests, " || ") + ")"
	if w.excludes != "" {
		test = "!(" + matches("r", w.excludes, w.dynamic) + ") && " + test
	}
	return repository() + ".exists(r, " + test + ")"
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
func repository() string {
	return "[" + stringField("c", "image") + ".lowerAscii().split('@')[0]]" +
		// The tag.
		".map(r, r.matches('" + `:[^/:]*$` + "') ? r.substring(0, r.lastIndexOf(':')) : r)" +
		// Docker Hub, where no registry is named.
		".map(r, r.matches('^(?:[^/]*[.:][^/]*|localhost)/') ? r : 'docker.io/' + r)" +
		// The port.
		".map(r, r.find('^[^/:]*') + r.substring(r.indexOf('/')))" +
		".map(r, r.startsWith('index.docker.io/') ? r.substring(6) : r)" +
		".map(r, r.matches('^docker[.]io/[^/]*$') ? 'docker.io/library/' + r.substring(10) : r)"
}

// commandLine is identify.CommandLine of the container c, as a list of one.
func commandLine(w words) string {
	line := "[" + listField("c", "command") + `.join('\x00') + '\x00' + ` + listField("c", "args") + `.join('\x00') + '\x00']`
	env := listField("c", "env")
	value := stringField("f[size(f) - 1]", "value")
	nested := "[" + value + "].map(v, v.contains('$(') ? " + expand("v", env, "2", stringField("f2[size(f2) - 1]", "value")) + " : v)[0]"
	worth := "(size(" + env + ") * (size(l.split('$(')) - 1) <= " + fmt.Sprint(identify.ExpansionLimit) +
		" || " + w.names("l") + " || " + env + ".exists(e, " + w.names(stringField("e", "value")) + "))"
	return line + ".map(l, l.contains('$(') && " + worth + " ? " + expand("l", env, "", nested) + " : l)"
}

// expand is the function of that name in package identify. Variables of
// loops end in suffix, for one expansion stands within another. The text of
// each segment before its first reference gets a reference without a name in
// front, which stays as it is, so that one rule fits all parts; the five
// characters are cut off again.
func expand(text, env, suffix, value string) string {
	in := strings.NewReplacer("TEXT", text, "ENV", env, "VALUE", value, "$S", suffix)
	return in.Replace("TEXT.split('$$').map(g$S, ('$()' + g$S).split('$(').map(p$S, !p$S.contains(')') ? '$(' + p$S : " +
		"[ENV.filter(e$S, e$S.?name.orValue('') == p$S.substring(0, p$S.indexOf(')')))].map(f$S, " +
		"size(f$S) == 0 || p$S.startsWith(')') || has(f$S[size(f$S) - 1].valueFrom) ? '$(' + p$S : VALUE + p$S.substring(p$S.indexOf(')') + 1))[0]" +
		").join('').substring(5)).join('$')")
}
