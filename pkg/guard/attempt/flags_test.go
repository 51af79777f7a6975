package attempt

import (
	"flag"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

const instanceImage = "ghcr.io/metacontroller/metacontroller:v4"

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		command, args []string
		want          Flags
	}{
		"none":                    {nil, nil, Flags{Readable: true}},
		"leader election":         {nil, []string{"--leader-election"}, Flags{Readable: true, LeaderElection: true}},
		"with one dash":           {nil, []string{"-leader-election=true"}, Flags{Readable: true, LeaderElection: true}},
		"off":                     {nil, []string{"--leader-election=false"}, Flags{Readable: true}},
		"another word for true":   {nil, []string{"--leader-election=1"}, Flags{Readable: true}},
		"lease":                   {nil, []string{"--leader-election", "--leader-election-id=a", "-leader-election-namespace=b"}, Flags{Readable: true, LeaderElection: true, LeaseName: "a", LeaseNamespace: "b"}},
		"lock":                    {nil, []string{"--leader-election-resource-lock=endpoints"}, Flags{Readable: true, OtherLock: true}},
		"leases":                  {nil, []string{"--leader-election-resource-lock=leases"}, Flags{Readable: true}},
		"selector":                {nil, []string{"--target-label-selector=team in (a,b),!c"}, Flags{Readable: true, Selector: "team in (a,b),!c"}},
		"twice the same":          {nil, []string{"--leader-election", "--leader-election=true"}, Flags{Readable: true, LeaderElection: true}},
		"on and off":              {nil, []string{"--leader-election", "--leader-election=false"}, Flags{}},
		"two selectors":           {nil, []string{"--target-label-selector=a", "--target-label-selector=b"}, Flags{}},
		"three selectors":         {nil, []string{"--target-label-selector=a", "--target-label-selector=b", "--target-label-selector=b"}, Flags{}},
		"value in the next":       {nil, []string{"--target-label-selector", "team=a"}, Flags{}},
		"swallowed":               {nil, []string{"--zap-log-level", "--leader-election"}, Flags{}},
		"behind an operand":       {nil, []string{"serve", "--leader-election"}, Flags{}},
		"behind two dashes":       {nil, []string{"--", "--leader-election"}, Flags{}},
		"a line break":            {nil, []string{"--target-label-selector=a\nb"}, Flags{Readable: true, Selector: "a\nb"}},
		"variable elsewhere":      {nil, []string{"--leader-election", "--kubeconfig=$(K)"}, Flags{Readable: true, LeaderElection: true}},
		"variable as a value":     {nil, []string{"--leader-election-id=$(K)"}, Flags{}},
		"variable as an argument": {nil, []string{"--leader-election", "$(ARGS)"}, Flags{}},
		"variable as a name":      {nil, []string{"--$(X)=1", "--leader-election"}, Flags{}},
		"program by name":         {[]string{"/usr/bin/metacontroller"}, []string{"--leader-election"}, Flags{Readable: true, LeaderElection: true}},
		"flags in command":        {[]string{"metacontroller", "--leader-election"}, nil, Flags{}},
		"a shell":                 {[]string{"sh", "-c", "metacontroller"}, []string{"--leader-election"}, Flags{}},
		"another program":         {[]string{"/bin/tini"}, []string{"--leader-election"}, Flags{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			spec := &corev1.PodSpec{Containers: []corev1.Container{
				{Name: "hook", Image: "nginx", Args: []string{"--leader-election"}},
				{Name: "main", Image: instanceImage, Command: test.command, Args: test.args},
			}}
			if got := FlagsOf(spec, signature(t)); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
	two := corev1.Container{Name: "more", Image: instanceImage}
	if got := FlagsOf(&corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: instanceImage}, two}}, signature(t)); got.Readable {
		t.Errorf("the flags of two instances are read as %+v", got)
	}
}

// TestFlagsAreWhatTheProgramReads compares with Go's own flag package, which
// the public Metacontroller reads its flags with: what is readable is read alike.
func TestFlagsAreWhatTheProgramReads(t *testing.T) {
	names := []string{FlagLeaderElection, FlagLeaderElectionID, FlagLeaderElectionNamespace, FlagLeaderElectionLock, FlagTargetLabelSelector, "workers", "zap-devel", "zap-log-level"}
	argument := rapid.Custom(func(t *rapid.T) string {
		dashes := rapid.SampledFrom([]string{"", "-", "--", "--", "--", "---"}).Draw(t, "dashes")
		name := rapid.SampledFrom(append(names, "", "x")).Draw(t, "name")
		value := rapid.SampledFrom([]string{"", "", "=", "=true", "=true", "=false", "=leases", "=a", "=b", "=a=b"}).Draw(t, "value")
		return dashes + name + value
	})
	readable := 0
	rapid.Check(t, func(t *rapid.T) {
		args := rapid.SliceOfN(argument, 0, 5).Draw(t, "args")
		got := parseFlags(args)
		if !got.Readable {
			return
		}
		set := flag.NewFlagSet("metacontroller", flag.ContinueOnError)
		set.SetOutput(io.Discard)
		elects := set.Bool(FlagLeaderElection, false, "")
		set.Bool("zap-devel", false, "")
		id, namespace := set.String(FlagLeaderElectionID, "", ""), set.String(FlagLeaderElectionNamespace, "", "")
		lock, selector := set.String(FlagLeaderElectionLock, "", ""), set.String(FlagTargetLabelSelector, "", "")
		set.String("workers", "", "")
		set.String("zap-log-level", "", "")
		if err := set.Parse(args); err != nil {
			return // It does not start.
		}
		readable++
		if len(set.Args()) > 0 {
			t.Fatalf("%q: %q is left over", args, set.Args())
		}
		want := Flags{
			Readable: true, LeaderElection: *elects, LeaseName: *id, LeaseNamespace: *namespace,
			OtherLock: *lock != "" && *lock != "leases", Selector: *selector,
		}
		if got != want {
			t.Fatalf("%q: got %+v, the program reads %+v", args, got, want)
		}
	})
	if readable == 0 {
		t.Error("nothing was compared")
	}
}

// FuzzFlags looks for panics, and for a flag that is nowhere in the arguments.
func FuzzFlags(f *testing.F) {
	f.Add("--leader-election\x00--leader-election-id=a")
	f.Add("--target-label-selector=team in (a,b)")
	f.Add("--a=\n\xff")
	f.Fuzz(func(t *testing.T, joined string) {
		got := parseFlags(strings.Split(joined, "\x00"))
		if got.LeaderElection && !strings.Contains(joined, FlagLeaderElection) || !strings.Contains(joined, got.Selector) || !strings.Contains(joined, got.LeaseName) {
			t.Fatalf("%q is read as %+v", joined, got)
		}
	})
}
