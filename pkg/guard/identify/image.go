package identify

import (
	"strings"
)

// Docker Hub's names for itself, as image references know them.
const (
	dockerHub       = "docker.io"
	dockerHubLegacy = "index.docker.io"
	dockerHubPrefix = "library"
)

// Repository returns the repository that an image reference names: lower
// case, with its registry, without port, tag and digest, and with Docker Hub's
// defaults written out ("nginx:1" is "docker.io/library/nginx").
//
// For every reference that go-containerregistry's package name can parse the
// answer is what that package says (a test compares the two). The steps are
// written out here because the API server has to take the same ones in CEL,
// and because a reference that cannot be parsed must still be judged by what
// can be seen in it: a container runtime may be more generous than a parser.
func Repository(image string) string {
	ref := asciiLower(image)
	ref, _, _ = strings.Cut(ref, "@")
	// The part after the last colon is a tag, unless a slash in it says that
	// the colon belongs to the registry's port.
	if i := strings.LastIndexByte(ref, ':'); i >= 0 && !strings.Contains(ref[i:], "/") {
		ref = ref[:i]
	}
	first, rest, slash := strings.Cut(ref, "/")
	if !slash || (!strings.ContainsAny(first, ".:") && first != "localhost") {
		first, rest = dockerHub, ref
	}
	first, _, _ = strings.Cut(first, ":")
	if first == dockerHubLegacy {
		first = dockerHub
	}
	if first == dockerHub && !strings.Contains(rest, "/") {
		rest = dockerHubPrefix + "/" + rest
	}
	return first + "/" + rest
}

// asciiLower is CEL's lowerAscii: it leaves other letters as they are.
func asciiLower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + ('a' - 'A')
		}
		return r
	}, s)
}

// Replacement is one step of turning a policy's word into a regular expression.
type Replacement struct{ Old, New string }

// ImageReplacements turn a pattern of a repository into a regular expression,
// in this order. The "#", which no pattern has, keeps the second step's star
// out of the third step's hands.
var ImageReplacements = []Replacement{
	{".", "[.]"},
	{"**/", "#"},
	{"*", "[^/]*"},
	{"#", "(?:[^/]+/)*"},
}

// bystanders are the repositories of what lives beside Metacontroller, so that
// a wide pattern ("**/metacontroller/*") is not taken to mean them: this guard,
// which would refuse itself, and the project's servers for hooks. What such a
// container starts counts all the same, for anyone can give an image such a name.
var bystanders = []string{
	"**/metacontroller-solo/guard",
	"**/metacontroller/nodejs-server",
	"**/metacontrollerio/nodejs-server",
	"**/metacontroller/jsonnetd",
	"**/metacontrollerio/jsonnetd",
}

// BystanderRegexp is the RE2 expression that matches the repositories that no
// pattern of images means.
var BystanderRegexp = ImageRegexp(bystanders)

// ImageHint returns a text that is in lower case in every image reference that
// the pattern can match: the beginning of its last path element, which is
// never a registry and never one of Docker Hub's defaults. It may be empty.
func ImageHint(pattern string) string {
	last := pattern[strings.LastIndexByte(pattern, '/')+1:]
	hint, _, _ := strings.Cut(last, "*")
	return hint
}

// CommandReplacements turn the base name of a program into a regular
// expression; the dot is the only special character that a name can have.
var CommandReplacements = []Replacement{{".", "[.]"}}

func replace(s string, steps []Replacement) string {
	for _, r := range steps {
		s = strings.ReplaceAll(s, r.Old, r.New)
	}
	return s
}

func alternatives(words []string, steps []Replacement) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = replace(w, steps)
	}
	return strings.Join(out, "|")
}

// What stands before and after the alternatives in ImageRegexp.
const (
	ImageRegexpHead = `^(?:`
	ImageRegexpTail = `)$`
)

// ImageRegexp returns the RE2 expression that matches the repositories that
// any of the patterns means. The patterns are valid ones.
func ImageRegexp(patterns []string) string {
	return ImageRegexpHead + alternatives(patterns, ImageReplacements) + ImageRegexpTail
}
