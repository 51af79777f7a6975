// Package identify says which containers of a Pod run an instance of the
// program that a SingletonPolicy makes a singleton.
//
//	container ─┬─ image ── Repository ──── excludeImages? never anything
//	           │                      └─── images?        an instance, by image
//	           └─ command, args, env ── CommandLine ─┬─ commands?     an instance, by command
//	                                                 └─ their flags?  a suspect
//
// Find is the one call for a Pod. A suspect has flags that only the program
// has, under an image and a name that nobody knows: it is worth a warning, and
// never a refusal.
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
	"slices"
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
	// ByFlags means that it has flags that only a program of match.commands has,
	// and that neither its image nor its command is listed: a suspect.
	ByFlags By = "Flags"
)

// Findings are what was found in one Pod. No container is in both lists.
type Findings struct {
	// Instances are the containers that run an instance.
	Instances []Container
	// Suspects are those that may run one, by their flags alone.
	Suspects []Container
}

// Container is a container that runs an instance, or may.
type Container struct {
	List List
	// Name is the container's name, unique in its Pod.
	Name string
	// Image is the reference as written in the Pod.
	Image string
	// Repository is what the reference names, as Repository returns it.
	Repository string
	By         By
	// Program is the one of match.commands whose flags a suspect has; empty for
	// an instance.
	Program string
	// Key tells whether two containers start the same thing: it is equal when
	// name, image and expanded command line are. It may be long; compare it,
	// do not print it, for it may carry values of environment variables.
	Key string
}

// Signature is a compiled Match. It is immutable and safe for concurrent use.
type Signature struct {
	images, excludes, commands *regexp.Regexp
	names                      []string
	signs                      []compiledSign
}

// compiledSign is a sign of a program: all the expressions must match.
type compiledSign struct {
	program string
	groups  []*regexp.Regexp
}

var bystander = regexp.MustCompile(BystanderRegexp)

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
	return &Signature{images: images, excludes: excludes, commands: commands, names: names, signs: compileSigns(names)}, nil
}

func compileSigns(programs []string) []compiledSign {
	var compiled []compiledSign
	for _, p := range programs {
		for _, expressions := range FlagRegexps([]string{p}) {
			c := compiledSign{program: p}
			for _, e := range expressions {
				c.groups = append(c.groups, regexp.MustCompile(e))
			}
			compiled = append(compiled, c)
		}
	}
	return compiled
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

// Containers returns Find's instances.
func (s *Signature) Containers(spec *corev1.PodSpec) []Container { return s.Find(spec).Instances }

// Find judges the containers of a Pod, of all four lists, in the order
// regular, init and sidecar, ephemeral. Nothing is found in a nil spec.
func (s *Signature) Find(spec *corev1.PodSpec) Findings {
	var found Findings
	if spec == nil {
		return found
	}
	for i := range spec.Containers {
		s.judge(&found, ListRegular, &spec.Containers[i])
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		list := ListInit
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			list = ListSidecar
		}
		s.judge(&found, list, c)
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		s.judge(&found, ListEphemeral, &c)
	}
	return found
}

func (s *Signature) judge(found *Findings, list List, c *corev1.Container) {
	repository := Repository(c.Image)
	if s.excludes != nil && s.excludes.MatchString(repository) {
		return
	}
	line := CommandLine(c, s.names)
	container := Container{
		List:       list,
		Name:       c.Name,
		Image:      c.Image,
		Repository: repository,
	}
	key := func() string { return c.Name + separator + c.Image + separator + line }
	switch {
	case s.images != nil && s.images.MatchString(repository) && !bystander.MatchString(repository):
		container.By = ByImage
	case s.commands != nil && mentionsAny(line, s.names) && s.commands.MatchString(line):
		container.By = ByCommand
	default:
		if container.Program = s.suspected(line); container.Program != "" {
			container.By, container.Key = ByFlags, key()
			found.Suspects = append(found.Suspects, container)
		}
		return
	}
	container.Key = key()
	found.Instances = append(found.Instances, container)
}

// suspected returns the program whose flags are in the line, or "".
func (s *Signature) suspected(line string) string {
	for _, c := range s.signs {
		if !slices.ContainsFunc(c.groups, func(group *regexp.Regexp) bool { return !group.MatchString(line) }) {
			return c.program
		}
	}
	return ""
}

func mentionsAny(s string, names []string) bool {
	for _, n := range names {
		if strings.Contains(s, n) {
			return true
		}
	}
	return false
}
