package identify_test

import (
	"fmt"
	"math/rand"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/test/corpus"
)

// all are the cases that everything agrees on.
func all(t testing.TB) []corpus.Case {
	t.Helper()
	cases, err := corpus.All()
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

// handwritten are the containers of the handwritten cases.
func handwritten(t testing.TB) []corev1.Container {
	t.Helper()
	cases, err := corpus.Handwritten()
	if err != nil {
		t.Fatal(err)
	}
	containers := make([]corev1.Container, len(cases))
	for i, c := range cases {
		containers[i] = c.Spec.Containers[0]
	}
	return containers
}

func compile(t testing.TB, match v1alpha1.Match) *identify.Signature {
	t.Helper()
	s, err := identify.Compile(match)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func podOf(containers ...corev1.Container) *corev1.PodSpec {
	return &corev1.PodSpec{Containers: containers}
}

func verdict(found identify.Findings) corpus.Verdict {
	switch {
	case len(found.Instances) > 0:
		return corpus.Verdict(found.Instances[0].By)
	case len(found.Suspects) > 0:
		return corpus.Verdict(found.Suspects[0].By)
	default:
		return corpus.None
	}
}

func TestCorpus(t *testing.T) {
	signature := compile(t, v1alpha1.DefaultMatch())
	seen, reasons := map[string]bool{}, map[string]bool{}
	count := map[corpus.Verdict]int{}
	for _, c := range all(t) {
		if seen[c.Name] {
			t.Errorf("two cases are called %q", c.Name)
		}
		seen[c.Name], reasons[c.Why] = true, true
		count[c.Want]++
		found := signature.Find(c.Spec)
		if got := verdict(found); got != c.Want || len(found.Instances)+len(found.Suspects) > 1 {
			text, _ := yaml.Marshal(c.Spec)
			t.Errorf("%s: %s: got %s, want %s\n%s", c.Name, c.Why, got, c.Want, text)
		}
	}
	t.Logf("%d cases for %d reasons: %v", len(seen), len(reasons), count)
	if len(seen) < 1000 {
		t.Errorf("only %d cases", len(seen))
	}
	for _, v := range []corpus.Verdict{corpus.None, corpus.Image, corpus.Command, corpus.Flags} {
		if count[v] < 50 {
			t.Errorf("only %d cases of %s", count[v], v)
		}
	}
}

// TestUnrelatedChangesNothing adds what does not count to a Pod, and puts its
// container into every list.
func TestUnrelatedChangesNothing(t *testing.T) {
	s := compile(t, v1alpha1.DefaultMatch())
	cases := all(t)
	rapid.Check(t, func(rt *rapid.T) {
		c := rapid.SampledFrom(cases).Draw(rt, "case")
		spec := c.Spec.DeepCopy()
		harmless := func(n int) corev1.Container {
			return corev1.Container{Name: fmt.Sprint("metacontroller-", n), Image: rapid.SampledFrom([]string{"nginx", "ghcr.io/metacontroller/jsonnetd", "metacontroller"}).Draw(rt, "image"),
				Args: rapid.SliceOfN(rapid.SampledFrom([]string{"--x", "sts/metacontroller", "$(A)"}), 0, 3).Draw(rt, "args"),
				Env:  []corev1.EnvVar{{Name: "B", Value: "metacontroller"}}}
		}
		for i := range rapid.IntRange(0, 3).Draw(rt, "before") {
			spec.Containers = append([]corev1.Container{harmless(i)}, spec.Containers...)
		}
		for i := range rapid.IntRange(0, 3).Draw(rt, "after") {
			spec.InitContainers = append(spec.InitContainers, harmless(3+i))
			spec.EphemeralContainers = append(spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon(harmless(6 + i))})
		}
		spec.NodeName, spec.Hostname = rapid.String().Draw(rt, "node"), "metacontroller"
		found := s.Find(spec)
		if got := verdict(found); got != c.Want || len(found.Instances)+len(found.Suspects) > 1 {
			rt.Fatalf("%s: got %+v, want %s as before", c.Why, found, c.Want)
		}
	})
}

func TestListDoesNotMatter(t *testing.T) {
	s := compile(t, v1alpha1.DefaultMatch())
	rapid.Check(t, func(rt *rapid.T) {
		c := container().Draw(rt, "container")
		want := verdict(s.Find(podOf(c)))
		sidecar := c
		sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		for list, spec := range map[identify.List]*corev1.PodSpec{
			identify.ListInit:      {InitContainers: []corev1.Container{c}},
			identify.ListSidecar:   {InitContainers: []corev1.Container{sidecar}},
			identify.ListEphemeral: {EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(c)}}},
		} {
			found := s.Find(spec)
			if got := verdict(found); got != want {
				rt.Fatalf("got %s in %s, want %s", got, list, want)
			}
			for _, one := range slices.Concat(found.Instances, found.Suspects) {
				if one.List != list {
					rt.Fatalf("said to be in %s, it is in %s", one.List, list)
				}
			}
		}
	})
}

// TestBystanders has a wide pattern, which means neither this guard nor the
// servers for hooks, but what they start counts.
func TestBystanders(t *testing.T) {
	s := compile(t, v1alpha1.Match{Images: []string{"**/metacontroller/*", "**/metacontroller-solo/*", "docker.io/metacontrollerio/*"}, Commands: []string{"metacontroller"}})
	for image, want := range map[string]corpus.Verdict{
		"ghcr.io/metacontroller-solo/guard:v1":      corpus.None,
		"metacontroller/nodejs-server":              corpus.None,
		"metacontrollerio/jsonnetd:0.1":             corpus.None,
		"ghcr.io/metacontroller/metacontroller":     corpus.Image,
		"ghcr.io/metacontroller-solo/controller:v1": corpus.Image,
		"ghcr.io/metacontroller-solo/guardx:v1":     corpus.Image,
	} {
		if got := verdict(s.Find(podOf(corev1.Container{Image: image}))); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
	hidden := corev1.Container{Image: "evil.example.com/metacontroller-solo/guard", Command: []string{"metacontroller"}}
	if got := verdict(s.Find(podOf(hidden))); got != corpus.Command {
		t.Errorf("what starts the program in an image that is called like the guard is %s", got)
	}
}

// TestHints says that what is tested first, because it is cheap, is true
// for all that the whole expression matches.
func TestHints(t *testing.T) {
	patterns := []string{"**/metacontroller/metacontroller", "docker.io/library/nginx", "ghcr.io/a/*", "**/x/meta*", "localhost/a-*-b"}
	rapid.Check(t, func(rt *rapid.T) {
		pattern := rapid.SampledFrom(patterns).Draw(rt, "pattern")
		image := rapid.SampledFrom([]string{"", "ghcr.io/", "LOCALHOST:5000/", "index.docker.io/", "library/", "x.y/a/"}).Draw(rt, "registry") +
			rapid.SampledFrom([]string{"metacontroller/metacontroller", "Nginx", "a/b", "x/METAx", "a-c-b", "a"}).Draw(rt, "path") +
			rapid.SampledFrom([]string{"", ":v1", "@sha256:12", ":v1@sha256:12"}).Draw(rt, "version")
		s := compile(t, v1alpha1.Match{Images: []string{pattern}})
		if len(s.Containers(podOf(corev1.Container{Image: image}))) > 0 && !strings.Contains(strings.ToLower(image), identify.ImageHint(pattern)) {
			rt.Fatalf("pattern %q matches %q, which has no %q", pattern, image, identify.ImageHint(pattern))
		}
	})
	hint := regexp.MustCompile(identify.FlagHint(v1alpha1.DefaultMatch().Commands))
	for _, c := range all(t) {
		if c.Want != corpus.Flags {
			continue
		}
		line, _ := yaml.Marshal(c.Spec)
		if !hint.Match(line) {
			t.Errorf("%s: no hint of a flag in %s", c.Name, line)
		}
	}
	if identify.FlagHint([]string{"another"}) != "" {
		t.Error("flags of a program nothing is known of")
	}
}

func TestAllFourListsCount(t *testing.T) {
	const image = "ghcr.io/metacontroller/metacontroller:v1"
	spec := &corev1.PodSpec{
		Containers: []corev1.Container{{Name: "hook", Image: "hook"}, {Name: "a", Image: image}},
		InitContainers: []corev1.Container{
			{Name: "b", Image: image},
			{Name: "c", Image: image, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
		},
		EphemeralContainers: []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "d", Image: "debug", Command: []string{"metacontroller"}},
		}},
	}
	got := map[string]string{}
	for _, c := range compile(t, v1alpha1.DefaultMatch()).Containers(spec) {
		got[c.Name] = string(c.List) + " " + string(c.By)
	}
	want := map[string]string{"a": "containers Image", "b": "initContainers Image", "c": "sidecars Image", "d": "ephemeralContainers Command"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if found := compile(t, v1alpha1.DefaultMatch()).Containers(nil); found != nil {
		t.Errorf("a nil spec has instances: %v", found)
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		why, pattern, image string
		want                bool
	}{
		{"a pattern names its registry", "ghcr.io/a/b", "ghcr.io/a/b:1", true},
		{"a pattern names its registry, so another is not meant", "ghcr.io/a/b", "quay.io/a/b:1", false},
		{"a port is not compared", "reg.local/a/b", "reg.local:5000/a/b", true},
		{"any registry", "**/a/b", "reg.local:5000/x/y/a/b", true},
		{"any registry, Docker Hub's default too", "**/a/b", "a/b", true},
		{"any registry, but whole elements", "**/a/b", "reg.local/xa/b", false},
		{"a star stays within its element", "ghcr.io/*/b", "ghcr.io/a/b", true},
		{"a star does not cross a slash", "ghcr.io/*/b", "ghcr.io/x/a/b", false},
		{"a star may be a part", "ghcr.io/a/meta*", "ghcr.io/a/metacontroller", true},
		{"a star may be nothing", "ghcr.io/a/meta*", "ghcr.io/a/meta", true},
		{"a star in the registry", "*.example.com/a", "reg.example.com/a", true},
		{"a star in the registry is not more than one element", "*/a", "reg.example.com/x/a", false},
		{"Docker Hub's library", "docker.io/library/nginx", "nginx", true},
		{"Docker Hub's library is not left out of a pattern", "docker.io/nginx", "nginx", false},
		{"a dot is a dot", "ghcr.io/a/b.c", "ghcr.io/a/bxc", false},
		{"localhost is a registry", "localhost/a", "localhost:5000/a", true},
	} {
		t.Run(c.why, func(t *testing.T) {
			s := compile(t, v1alpha1.Match{Images: []string{c.pattern}})
			if got := len(s.Containers(podOf(corev1.Container{Image: c.image}))) == 1; got != c.want {
				t.Errorf("pattern %q, image %q (repository %q): got %v, want %v", c.pattern, c.image, identify.Repository(c.image), got, c.want)
			}
		})
	}
}

func TestCompileRefuses(t *testing.T) {
	many := make([]string, identify.MaxImages)
	for i := range many {
		many[i] = "ghcr.io/" + strings.Repeat("a", 100)
	}
	for _, c := range []struct {
		why   string
		match v1alpha1.Match
		says  string
	}{
		{"nothing would ever match", v1alpha1.Match{}, "images and commands are both empty"},
		{"a tag is not compared", v1alpha1.Match{Images: []string{"ghcr.io/a/b:v1"}}, "images[0]"},
		{"a digest is not compared", v1alpha1.Match{Images: []string{"ghcr.io/a/b@sha256:12"}}, "images[0]"},
		{"capitals are never in a reference", v1alpha1.Match{Images: []string{"ghcr.io/A/b"}}, "images[0]"},
		{"no registry", v1alpha1.Match{Images: []string{"a/b"}}, "names no registry"},
		{"two stars inside", v1alpha1.Match{Images: []string{"ghcr.io/**/b"}}, "images[0]"},
		{"two stars in an element", v1alpha1.Match{Images: []string{"**/a**/b"}}, "images[0]"},
		{"a regular expression", v1alpha1.Match{Images: []string{"**/a.*"}, ExcludeImages: []string{"**/(a|b)"}}, "excludeImages[0]"},
		{"too many bytes", v1alpha1.Match{Images: many}, "at most 2048"},
		{"too many commands", v1alpha1.Match{Commands: make([]string, identify.MaxCommands+1)}, "at most 16"},
		{"a path", v1alpha1.Match{Commands: []string{"/usr/bin/metacontroller"}}, "commands[0]"},
		{"no name", v1alpha1.Match{Commands: []string{""}}, "commands[0]"},
	} {
		t.Run(c.why, func(t *testing.T) {
			_, err := identify.Compile(c.match)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got error %v, want one that says %q", err, c.says)
			}
		})
	}
}

func TestExcludeWins(t *testing.T) {
	s := compile(t, v1alpha1.Match{
		Images: []string{"**/metacontroller/*"}, Commands: []string{"metacontroller"},
		ExcludeImages: []string{"**/metacontroller/hook"},
	})
	rapid.Check(t, func(rt *rapid.T) {
		c := container().Draw(rt, "container")
		c.Image = rapid.SampledFrom([]string{"", "ghcr.io/", "localhost:5000/x/"}).Draw(rt, "registry") + "metacontroller/hook" +
			rapid.SampledFrom([]string{"", ":v1", "@sha256:12"}).Draw(rt, "version")
		if found := s.Containers(podOf(c)); len(found) > 0 {
			rt.Fatalf("%q is excluded and yet an instance %+v", c.Image, found[0])
		}
	})
}

// container draws containers that are likely to be near the edges.
func container() *rapid.Generator[corev1.Container] {
	token := rapid.OneOf(
		rapid.SampledFrom([]string{"metacontroller", "/usr/bin/metacontroller", "sh", "-c", "--", "exec metacontroller", "env", "A=b", "tini",
			"timeout", "10s", "su-exec", "app", "$(A)", "$$(A)", "$(B", "kubectl get metacontroller", "a; metacontroller", "'", "\"", "\\", "\n", "$@", "", "--client-go-qps=1", "--discovery-interval", "-zap-devel", "\f"}),
		rapid.String(),
		rapid.StringMatching(`[-a-z$()"' ;&|=/]{0,20}`),
	)
	image := rapid.OneOf(
		rapid.SampledFrom([]string{"nginx", "ghcr.io/metacontroller/metacontroller:v1", "metacontrollerio/metacontroller", "a/metacontroller/metacontroller"}),
		rapid.String(),
		rapid.StringMatching(`[A-Za-z0-9.:/@_-]{0,40}`),
	)
	return rapid.Custom(func(t *rapid.T) corev1.Container {
		c := corev1.Container{
			Name:    rapid.SampledFrom([]string{"a", "b", "metacontroller"}).Draw(t, "name"),
			Image:   image.Draw(t, "image"),
			Command: rapid.SliceOfN(token, 0, 5).Draw(t, "command"),
			Args:    rapid.SliceOfN(token, 0, 5).Draw(t, "args"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "variables") {
			e := corev1.EnvVar{Name: rapid.SampledFrom([]string{"A", "B", ""}).Draw(t, "variable"), Value: token.Draw(t, "value")}
			if rapid.Bool().Draw(t, "from") {
				e.ValueFrom = &corev1.EnvVarSource{}
			}
			c.Env = append(c.Env, e)
		}
		return c
	})
}

func TestOrderOfContainersDoesNotMatter(t *testing.T) {
	s := compile(t, v1alpha1.DefaultMatch())
	rapid.Check(t, func(rt *rapid.T) {
		containers := rapid.SliceOfN(container(), 0, 5).Draw(rt, "containers")
		count := func(cs []corev1.Container) map[string]int {
			keys := map[string]int{}
			for _, c := range s.Containers(podOf(cs...)) {
				keys[c.Key]++
			}
			return keys
		}
		before := count(containers)
		rand.New(rand.NewSource(int64(rapid.Int().Draw(rt, "seed")))).Shuffle(len(containers), func(i, j int) {
			containers[i], containers[j] = containers[j], containers[i]
		})
		if diff := cmp.Diff(before, count(containers)); diff != "" {
			rt.Fatal(diff)
		}
	})
}

func TestNamesAndEnvironmentOfOthersDecideNothing(t *testing.T) {
	s := compile(t, v1alpha1.DefaultMatch())
	rapid.Check(t, func(rt *rapid.T) {
		c := container().Draw(rt, "container")
		want := verdict(s.Find(podOf(c)))
		c.Name = rapid.String().Draw(rt, "another name")
		c.WorkingDir = "/metacontroller"
		c.Env = append(c.Env, corev1.EnvVar{Name: "unused.variable", Value: "metacontroller"})
		if got := verdict(s.Find(podOf(c))); got != want {
			rt.Fatalf("got %s, want %s as before", got, want)
		}
	})
}

var portOfRegistry = regexp.MustCompile(`^([^/:]*):[^/]*/`)

// oracle is what go-containerregistry says, in the words of this package.
func oracle(image string) (string, bool) {
	ref, err := name.ParseReference(image, name.WeakValidation)
	// Letters outside ASCII are in no reference that a registry serves; lower
	// case is ASCII's here, for it is in CEL.
	if err != nil || strings.ContainsFunc(image, func(r rune) bool { return r > unicode.MaxASCII }) {
		return "", false
	}
	repository := strings.ToLower(ref.Context().Name())
	repository = portOfRegistry.ReplaceAllString(repository, "$1/")
	if rest, ok := strings.CutPrefix(repository, "index.docker.io/"); ok {
		repository = "docker.io/" + rest
	}
	return repository, true
}

func checkRepository(t interface{ Fatalf(string, ...any) }, image string) bool {
	got := identify.Repository(image)
	want, parsed := oracle(image)
	if parsed && got != want {
		t.Fatalf("Repository(%q) is %q, go-containerregistry says %q", image, got, want)
	}
	return parsed
}

func TestRepositoryAgreesWithParser(t *testing.T) {
	parsed := 0
	rapid.Check(t, func(rt *rapid.T) {
		element := rapid.StringMatching(`[a-z0-9]([a-z0-9._-]{0,5}[a-z0-9])?`)
		registry := rapid.SampledFrom([]string{"", "", "ghcr.io/", "localhost/", "localhost:80/", "docker.io/", "index.docker.io/", "Reg.Local:5000/", "library/", "a.b:1/"})
		image := registry.Draw(rt, "registry") + strings.Join(rapid.SliceOfN(element, 1, 3).Draw(rt, "path"), "/") +
			rapid.SampledFrom([]string{"", ":v1", ":V1.2_x"}).Draw(rt, "tag") +
			rapid.SampledFrom([]string{"", "@sha256:" + strings.Repeat("a", 64)}).Draw(rt, "digest")
		if checkRepository(rt, image) {
			parsed++
		}
	})
	if parsed == 0 {
		t.Error("not one of the drawn references could be parsed, so nothing was compared")
	}
}

func FuzzRepository(f *testing.F) {
	for _, c := range handwritten(f) {
		f.Add(c.Image)
	}
	f.Fuzz(func(t *testing.T, image string) {
		checkRepository(t, image)
		if r := identify.Repository(image); !strings.Contains(r, "/") {
			t.Fatalf("Repository(%q) is %q, without a registry", image, r)
		}
	})
}

// FuzzIdentify looks for containers that make a panic, or that are found without a reason.
func FuzzIdentify(f *testing.F) {
	for _, c := range handwritten(f) {
		f.Add(c.Image, strings.Join(c.Command, "\n"), strings.Join(c.Args, "\n"), "A", "metacontroller")
	}
	s, err := identify.Compile(v1alpha1.DefaultMatch())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, image, command, args, variable, value string) {
		c := corev1.Container{Image: image, Command: strings.Split(command, "\n"), Args: strings.Split(args, "\n"), Env: []corev1.EnvVar{{Name: variable, Value: value}}}
		found := s.Find(podOf(c))
		if len(found.Instances)+len(found.Suspects) > 1 {
			t.Fatalf("one container is %+v", found)
		}
		mentions := strings.Contains(image+command+args+value, "metacontroller") || strings.Contains(command+args, "$(")
		if verdict(found) == corpus.Command && !mentions {
			t.Fatalf("%q %q does not mention the program and yet starts it", command, args)
		}
		if len(found.Suspects) == 1 && !strings.Contains(command+args+value, "-") {
			t.Fatalf("%q %q has no flag and is yet a suspect", command, args)
		}
	})
}

func BenchmarkContainers(b *testing.B) {
	s := compile(b, v1alpha1.DefaultMatch())
	words := strings.Repeat("kubectl get sts metacontroller; ", 1000)
	for name, c := range map[string]corev1.Container{
		"ordinary":       {Image: "nginx:1.27", Args: []string{"--a=b", "--c=d"}},
		"script of 32kB": {Image: "kubectl", Command: []string{"sh", "-c", words}},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s.Containers(podOf(c))
			}
		})
	}
}
