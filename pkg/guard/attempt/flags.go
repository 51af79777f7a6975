package attempt

import (
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// Names of Metacontroller's flags, without dashes.
const (
	FlagLeaderElection          = "leader-election"
	FlagLeaderElectionID        = "leader-election-id"
	FlagLeaderElectionNamespace = "leader-election-namespace"
	FlagLeaderElectionLock      = "leader-election-resource-lock"
	FlagTargetLabelSelector     = "target-label-selector"
)

// FlagPattern is what one argument must look like for an instance's flags to be
// readable: a switch that is known to take no value, or a name with its value
// after "=". In any other form an argument may be the value of the one before,
// or end the flags, so that those after it would not count though they are there.
// It is for RE2, and the policies in the API server have it too.
const FlagPattern = `^--?(?:` + FlagLeaderElection + `|zap-devel|[A-Za-z0-9][-A-Za-z0-9_.]*=(?s:.*))$`

var flagRegexp = regexp.MustCompile(FlagPattern)

// Flags are what an instance is started with, as far as the modes look at it.
type Flags struct {
	// Readable is false where one cannot be sure what the program makes of its
	// arguments; nothing else is set then.
	Readable bool
	// LeaderElection is set if it takes a Lease before it works.
	LeaderElection bool
	// LeaseNamespace and LeaseName are of that Lease; empty where they are left
	// to the program's default. OtherLock is set for a lock that is no Lease.
	LeaseNamespace, LeaseName string
	OtherLock                 bool
	// Selector is the --target-label-selector; empty where it works on all objects.
	Selector string
}

// FlagsOf reads the flags of the one instance in a Pod's spec.
func FlagsOf(spec *corev1.PodSpec, signature *identify.Signature) Flags {
	return flagsOf(spec, signature.Containers(spec), signature.Names())
}

// flagsOf reads the flags of the one instance in a Pod.
func flagsOf(spec *corev1.PodSpec, instances []identify.Container, programs []string) Flags {
	if len(instances) != 1 {
		return Flags{}
	}
	command, args, ok := started(spec, instances[0])
	if !ok {
		return Flags{}
	}
	// The image's own entrypoint, or the program by name: a shell or another
	// program in front may do anything with what follows.
	if len(command) > 1 || len(command) == 1 && !slices.Contains(programs, path.Base(command[0])) {
		return Flags{}
	}
	return parseFlags(args)
}

// started finds a container's command and arguments.
func started(spec *corev1.PodSpec, instance identify.Container) (command, args []string, ok bool) {
	for _, list := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range list {
			if list[i].Name == instance.Name {
				return list[i].Command, list[i].Args, true
			}
		}
	}
	for i := range spec.EphemeralContainers {
		if c := &spec.EphemeralContainers[i]; c.Name == instance.Name {
			return c.Command, c.Args, true
		}
	}
	return nil, nil, false
}

// parseFlags reads arguments of which each is one flag. A flag that is there
// twice must say the same twice.
func parseFlags(args []string) Flags {
	values := map[string]string{}
	for _, argument := range args {
		if !flagRegexp.MatchString(argument) {
			return Flags{}
		}
		name, value, found := strings.Cut(strings.TrimLeft(argument, "-"), "=")
		if !found {
			value = "true"
		}
		if before, twice := values[name]; twice && before != value {
			value = ambiguous
		}
		values[name] = value
	}
	for _, name := range []string{FlagLeaderElection, FlagLeaderElectionID, FlagLeaderElectionNamespace, FlagLeaderElectionLock, FlagTargetLabelSelector} {
		// What a variable expands to is not known before the container starts.
		if strings.Contains(values[name], "$(") || values[name] == ambiguous {
			return Flags{}
		}
	}
	return Flags{
		Readable:       true,
		LeaderElection: values[FlagLeaderElection] == "true",
		LeaseNamespace: values[FlagLeaderElectionNamespace],
		LeaseName:      values[FlagLeaderElectionID],
		OtherLock:      values[FlagLeaderElectionLock] != "" && values[FlagLeaderElectionLock] != "leases",
		Selector:       values[FlagTargetLabelSelector],
	}
}

// ambiguous marks a flag with two values; no argument can be that.
const ambiguous = "\x00"
