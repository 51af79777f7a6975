// Package identify says which containers of a Pod run an instance of the
// program that a SingletonPolicy makes a singleton.
//
//	container ─┬─ image ── Repository ──── excludeImages? never an instance
//	           │                      └─── images?        an instance, by image
//	           └─ command, args, env ── CommandLine ── commands? an instance, by command
//
// Only what the container runs counts. Labels, annotations and the names of
// Pods and containers are never looked at: anyone can strip or forge them.
//
// The same rules run inside the API server, as CEL, where no Go code can be
// called (package pin writes them). So every rule is written here with what
// both languages have: ASCII lower case, split, and regular expressions in
// RE2 syntax whose text is put together in the same way on both sides from
// the tables of this package and from the policy's words.
package identify

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// List is the list of a Pod that a container stands in.
type List string

const (
	// ListRegular is spec.containers.
	ListRegular List = "containers"
	// ListInit is spec.initContainers.
	ListInit List = "initContainers"
	// ListSidecar is spec.initContainers too, of those with restartPolicy
	// Always: they run beside the regular ones.
	ListSidecar List = "sidecars"
	// ListEphemeral is spec.ephemeralContainers.
	ListEphemeral List = "ephemeralContainers"
)

// By is what told that a container runs an instance.
type By string

const (
	// ByImage means that the image's repository is listed in match.images.
	ByImage By = "Image"
	// ByCommand means that it starts a program listed in match.commands, and
	// that its repository is not listed.
	ByCommand By = "Command"
)

// Container is a container that runs an instance.
type Container struct {
	List List
	// Name is the container's name, unique in its Pod.
	Name string
	// Image is the reference as written in the Pod.
	Image string
	// Repository is what the reference names, as Repository returns it.
	Repository string
	By         By
	// Key tells whether two containers start the same thing: it is equal when
	// name, image and expanded command line are. It may be long; compare it,
	// do not print it, for it may carry values of environment variables.
	Key string
}

// Signature is a compiled Match. It is immutable and safe for concurrent use.
type Signature struct {
	images, excludes, commands *regexp.Regexp
	names                      []string
}

// Limits on the words of a Match, the same as in the CRD. They bound what
// the API server has to pay for judging one container.
const (
	// MaxImages is the number of patterns in images, and in excludeImages.
	MaxImages = 32
	// MaxCommands is the number of commands.
	MaxCommands = 16
	// MaxPatternsSize is the size of all patterns of one list together, in bytes.
	MaxPatternsSize = 2048
)

var (
	imagePattern = regexp.MustCompile(`^(\*\*/)?[a-z0-9*]([a-z0-9._*-]*[a-z0-9*])?(/[a-z0-9*]([a-z0-9._*-]*[a-z0-9*])?)*$`)
	// A pattern that does not begin with a registry would match nothing, ever,
	// for the repository that it is compared with always does.
	registryFirst  = regexp.MustCompile(`^([^/]*[.*][^/]*|localhost)/`)
	commandPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
)

// Compile compiles a match. It fails, naming the field, for a match that the
// CRD would refuse.
func Compile(match v1alpha1.Match) (*Signature, error) {
	if len(match.Images) == 0 && len(match.Commands) == 0 {
		return nil, fmt.Errorf("cannot compile match: images and commands are both empty, name at least one")
	}
	images, err := compileImages("images", match.Images)
	if err != nil {
		return nil, err
	}
	excludes, err := compileImages("excludeImages", match.ExcludeImages)
	if err != nil {
		return nil, err
	}
	commands, err := compileCommands(match.Commands)
	if err != nil {
		return nil, err
	}
	names := append([]string(nil), match.Commands...)
	return &Signature{images: images, excludes: excludes, commands: commands, names: names}, nil
}

func compileImages(field string, patterns []string) (*regexp.Regexp, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	if len(patterns) > MaxImages {
		return nil, fmt.Errorf("cannot compile match.%s: %d patterns, at most %d are allowed", field, len(patterns), MaxImages)
	}
	size := 0
	for i, p := range patterns {
		size += len(p)
		switch {
		case !imagePattern.MatchString(p), strings.Contains(strings.TrimPrefix(p, "**/"), "**"):
			return nil, fmt.Errorf(`cannot compile match.%s[%d] %q: not a pattern of a repository, write it like "ghcr.io/metacontroller/metacontroller" or "**/metacontroller/metacontroller", without port, tag and digest`, field, i, p)
		case !registryFirst.MatchString(p):
			return nil, fmt.Errorf(`cannot compile match.%s[%d] %q: it names no registry, put one in front, or "**/" for any ("docker.io/" for Docker Hub)`, field, i, p)
		}
	}
	if size > MaxPatternsSize {
		return nil, fmt.Errorf("cannot compile match.%s: the patterns have %d bytes together, at most %d are allowed", field, size, MaxPatternsSize)
	}
	re, err := regexp.Compile(ImageRegexp(patterns))
	if err != nil {
		return nil, fmt.Errorf("cannot compile match.%s: %w", field, err)
	}
	return re, nil
}

func compileCommands(names []string) (*regexp.Regexp, error) {
	if len(names) == 0 {
		return nil, nil
	}
	if len(names) > MaxCommands {
		return nil, fmt.Errorf("cannot compile match.commands: %d names, at most %d are allowed", len(names), MaxCommands)
	}
	for i, n := range names {
		if !commandPattern.MatchString(n) {
			return nil, fmt.Errorf("cannot compile match.commands[%d] %q: not the base name of a program, write it like %q", i, n, "metacontroller")
		}
	}
	re, err := regexp.Compile(CommandRegexp(names))
	if err != nil {
		return nil, fmt.Errorf("cannot compile match.commands: %w", err)
	}
	return re, nil
}

// Containers returns those containers of the Pod that run an instance, of all
// four lists, in the order regular, init and sidecar, ephemeral. A nil spec
// has none.
func (s *Signature) Containers(spec *corev1.PodSpec) []Container {
	if spec == nil {
		return nil
	}
	var found []Container
	for i := range spec.Containers {
		found = s.appendInstance(found, ListRegular, &spec.Containers[i])
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		list := ListInit
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			list = ListSidecar
		}
		found = s.appendInstance(found, list, c)
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		found = s.appendInstance(found, ListEphemeral, &c)
	}
	return found
}

func (s *Signature) appendInstance(found []Container, list List, c *corev1.Container) []Container {
	repository := Repository(c.Image)
	if s.excludes != nil && s.excludes.MatchString(repository) {
		return found
	}
	line := CommandLine(c, s.names)
	var by By
	switch {
	case s.images != nil && s.images.MatchString(repository):
		by = ByImage
	case s.commands != nil && mentionsAny(line, s.names) && s.commands.MatchString(line):
		by = ByCommand
	default:
		return found
	}
	return append(found, Container{
		List:       list,
		Name:       c.Name,
		Image:      c.Image,
		Repository: repository,
		By:         by,
		Key:        c.Name + separator + c.Image + separator + line,
	})
}

func mentionsAny(s string, names []string) bool {
	for _, n := range names {
		if strings.Contains(s, n) {
			return true
		}
	}
	return false
}
