package corpus

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

const (
	// private is an image that says nothing.
	private = "registry.example.com/private/tools:v1"
	program = "metacontroller"
	digest  = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// row is one value of a dimension, and what it makes of the case.
type row struct {
	value string
	want  Verdict
	why   string
}

// generator numbers the cases and takes their places in turn, so that every
// dimension meets every kind and list.
type generator struct {
	cases []Case
}

var lists = []identify.List{identify.ListRegular, identify.ListInit, identify.ListSidecar, identify.ListEphemeral}

func (g *generator) add(group, why string, want Verdict, c corev1.Container) {
	n := len(g.cases)
	k, list := kinds[n%len(kinds)], lists[(n/len(kinds))%len(lists)]
	// Only a Pod has ephemeral containers.
	if list == identify.ListEphemeral {
		k = pods
	}
	g.addTo(group, why, want, k, list, c)
}

func (g *generator) addTo(group, why string, want Verdict, k kind, list identify.List, c corev1.Container) {
	if c.Name == "" {
		c.Name = "main"
	}
	if c.Image == "" {
		c.Image = private
	}
	g.cases = append(g.cases, placed(fmt.Sprintf("%s-%04d", group, len(g.cases)), why, want, k, list, c))
}

// Generated are the cases that the tables of this file make.
func Generated() []Case {
	g := &generator{}
	g.places()
	g.images()
	g.wrapped()
	g.scripts()
	g.references()
	g.flags()
	g.decoys()
	return g.cases
}

// places has one of each verdict in every list of every kind.
func (g *generator) places() {
	for _, k := range kinds {
		for _, list := range lists {
			if list == identify.ListEphemeral && k.resource != pods.resource {
				continue
			}
			where := fmt.Sprintf("in %s of %s", list, k.resource.Resource)
			g.addTo("place", "the image "+where, Image, k, list, corev1.Container{Image: "ghcr.io/metacontroller/metacontroller:v4"})
			g.addTo("place", "the command "+where, Command, k, list, corev1.Container{Command: []string{"/usr/bin/metacontroller"}})
			g.addTo("place", "the flags "+where, Flags, k, list, corev1.Container{Args: []string{"--client-go-qps=100"}})
			g.addTo("place", "a stranger "+where, None, k, list, corev1.Container{Image: "nginx", Args: []string{"--port=80"}})
		}
	}
}

var registries = []row{
	{"", "", "Docker Hub by default"},
	{"docker.io/", "", "Docker Hub by name"},
	{"index.docker.io/", "", "Docker Hub by its old name"},
	{"registry-1.docker.io/", "", "Docker Hub by its host"},
	{"ghcr.io/", "", "GitHub's registry"},
	{"GHCR.IO/", "", "a registry in capitals"},
	{"quay.io/", "", "another public registry"},
	{"localhost/", "", "localhost"},
	{"localhost:5000/", "", "localhost with a port"},
	{"reg.local:5000/", "", "a mirror with a port"},
	{"10.0.0.1:5000/", "", "an address with a port"},
	{"[2001:db8::1]:5000/", "", "an IPv6 address with a port"},
	{"mirror.example.com/cache/ghcr.io/", "", "a mirror with a deep path"},
	{"0123456789.dkr.ecr.eu-central-1.amazonaws.com/", "", "a cloud's registry"},
}

var repositories = []row{
	{"metacontroller/metacontroller", Image, "the public image"},
	{"metacontrollerio/metacontroller", Image, "the public image on Docker Hub"},
	{"metacontroller-solo/controller", Image, "our own image"},
	{"Metacontroller/metaController", Image, "the public image in capitals, which no runtime parses"},
	{"metacontroller-solo/guard", None, "the guard"},
	{"metacontroller/nodejs-server", None, "a server for hooks"},
	{"metacontroller/jsonnetd", None, "another server for hooks"},
	{"metacontrollerio/nodejs-server", None, "a server for hooks on Docker Hub"},
	{"metacontroller/metacontroller-helm", None, "a longer name"},
	{"metacontroller/metacontroller/extra", None, "a deeper path"},
	{"metacontroller", None, "the name alone"},
	{"my-metacontroller/metacontroller", None, "a longer organisation"},
	{"tools/metacontroller", None, "another organisation"},
	{"metacontroller/tools/controller", None, "the organisation as a directory"},
	{"metac\u043entroller/metacontroller", None, "a Cyrillic o in the organisation"},
	{"metacontroller/metacontroll\u0435r", None, "a Cyrillic e in the name"},
	{"\uff4detacontroller/metacontroller", None, "a full-width m"},
	{"metacontroller/metacontroller\u200b", None, "a blank without width"},
	{"meta\u00adcontroller/metacontroller", None, "a soft hyphen"},
	{"team/app", None, "a stranger"},
}

var versions = []string{"", ":v4.17.2", ":v4.17.2-distroless", ":v4.17.2-distroless-debug", ":LATEST", ":metacontroller", digest, ":v4.17.2" + digest}

func (g *generator) images() {
	for i, registry := range registries {
		for j, repository := range repositories {
			version := versions[(i+j)%len(versions)]
			g.add("image", repository.why+" from "+registry.why, repository.want,
				corev1.Container{Image: registry.value + repository.value + version})
		}
	}
	for _, version := range versions {
		for _, repository := range repositories[:3] {
			g.add("image", repository.why+" as "+version, Image, corev1.Container{Image: "ghcr.io/" + repository.value + version})
		}
		g.add("image", "a stranger as "+version, None, corev1.Container{Image: "example.com/tools" + version})
	}
}

// wrappers start the program that follows.
var wrappers = [][]string{
	nil,
	{"tini", "--"}, {"/sbin/tini", "-s", "--"}, {"dumb-init", "--"}, {"catatonit", "--"}, {"/init"}, {"/docker-entrypoint.sh"},
	{"/cnb/lifecycle/launcher"}, {"vault-env"}, {"scuttle"}, {"my_init", "--"},
	{"env", "A=b"}, {"env", "-i", "A=b", "C=d"}, {"env", "-u", "FOO"}, {"nice", "-n", "5"}, {"nice"}, {"ionice", "-c", "2", "-n", "7"},
	{"nohup"}, {"setsid"}, {"stdbuf", "-oL"}, {"timeout", "10s"}, {"timeout", "-k", "5", "-s", "KILL", "1h"}, {"time"},
	{"chrt", "-r", "10"}, {"taskset", "0x3"}, {"setpriv", "--reuid=1000", "--"}, {"unshare", "-r"}, {"nsenter", "-t", "1", "-m", "--"},
	{"numactl", "--interleave=all"}, {"sudo", "-u", "app"}, {"su-exec", "app"}, {"gosu", "app:app"}, {"chroot", "/root"},
	{"flock", "/tmp/lock"}, {"flock", "-n", "/tmp/lock"}, {"setarch", "x86_64"}, {"runuser", "-u", "app", "--"}, {"xargs", "-r"},
	{"/lib/ld-musl-x86_64.so.1"}, {"/lib64/ld-linux-x86-64.so.2"}, {"qemu-aarch64-static"}, {"busybox", "nohup"},
	{"strace", "-f", "-o", "/tmp/out"}, {"ltrace"}, {"valgrind", "--leak-check=full"}, {"gdb", "--args"}, {"gdbserver", ":2345"},
	{"perf", "record", "-g"}, {"dlv", "exec"}, {"dlv", "--listen=:2345", "--headless=true", "--api-version=2", "exec"},
	{"dlv", "exec", "--headless", "--continue"},
	{"wait-for-it.sh", "db:5432", "-t", "0", "--"}, {"chamber", "exec", "prod", "--"}, {"doppler", "run", "--"}, {"aws-vault", "exec", "x", "--"},
	{"tini", "--", "env", "A=b", "timeout", "5s", "nice"}, {"tini", "--", "su-exec", "app"},
}

// programs are what a wrapper starts.
var programs = []row{
	{"/usr/bin/metacontroller", Command, "the program with its path"},
	{"./metacontroller", Command, "the program from here"},
	{"/usr/bin/hook", None, "another program"},
	{"metacontroller-helper", None, "a longer name"},
	{"/metacontroller/bin/hook", None, "a directory of the name"},
	{"metac\u043entroller", None, "a Cyrillic o"},
	{"Metacontroller", None, "another case"},
}

// wheres put an argument vector into a container. Each is named.
var wheres = []struct {
	name string
	put  func(wrapper []string, program string) corev1.Container
}{
	{"in command", func(w []string, p string) corev1.Container { return corev1.Container{Command: argv(w, p, "--x")} }},
	{"in args", func(w []string, p string) corev1.Container { return corev1.Container{Args: argv(w, p, "--x")} }},
	{"in both", func(w []string, p string) corev1.Container {
		if len(w) == 0 {
			return corev1.Container{Command: []string{p}, Args: []string{"--x"}}
		}
		return corev1.Container{Command: w, Args: []string{p, "--x"}}
	}},
	{"in a script", func(w []string, p string) corev1.Container {
		return corev1.Container{Command: []string{"/bin/sh", "-c"}, Args: []string{"exec " + strings.Join(argv(w, p), " ")}}
	}},
	{"by a variable", func(w []string, p string) corev1.Container {
		return corev1.Container{Command: argv(w, "$(PROGRAM)"), Env: []corev1.EnvVar{{Name: "PROGRAM", Value: p}}}
	}},
}

func argv(wrapper []string, more ...string) []string { return append(slices.Clone(wrapper), more...) }

func (g *generator) wrapped() {
	for i, wrapper := range wrappers {
		name := "behind " + strings.Join(wrapper, " ")
		if len(wrapper) == 0 {
			name = "with nothing in front"
		}
		for _, where := range wheres {
			g.add("command", "the program "+where.name+" "+name, Command, where.put(wrapper, program))
		}
		for j, p := range programs {
			where := wheres[(i+j)%len(wheres)]
			g.add("command", p.why+" "+where.name+" "+name, p.want, where.put(wrapper, p.value))
		}
		g.add("command", "the name as an argument of another program "+name, None,
			corev1.Container{Command: argv(wrapper, "/usr/bin/hook", program)})
		g.add("command", "the name as a flag's value of another program "+name, None,
			corev1.Container{Command: argv(wrapper, "/usr/bin/hook", "--target", program)})
	}
}

// starting are scripts that start PROGRAM.
var starting = []string{
	"exec PROGRAM", "PROGRAM --x", "set -e; exec PROGRAM", "cd / && PROGRAM", "sleep 1\nexec PROGRAM", "A=b exec PROGRAM", "A='b c' PROGRAM",
	"if true; then PROGRAM; fi", "while true; do PROGRAM; done", "(PROGRAM --x)", "echo $(PROGRAM --version)", "PROGRAM & wait",
	"PROGRAM | tee /x", "true || PROGRAM", "{ PROGRAM; }", "! PROGRAM", "# a; b\nPROGRAM", "# don't\nPROGRAM", "echo 'a; b'; PROGRAM", "trap : TERM; PROGRAM",
	"cat <<EOF >/tmp/x\na: it's\nEOF\nexec PROGRAM", `exec "PROGRAM" --x`, "nohup PROGRAM >/x 2>&1 &", "sh -c 'PROGRAM --x'",
	"ulimit -n 1024; exec PROGRAM", "export A=b\nexec PROGRAM", "[ -f /x ] && exec PROGRAM", "exec env A=b PROGRAM", "test $# -gt 0 || exec PROGRAM",
	"read x </etc/x; PROGRAM", "set -x\r\nPROGRAM\r\n", "exec dlv exec --headless PROGRAM -- --x", "echo a#b; PROGRAM",
}

// mentioning are scripts that say PROGRAM and do not start it.
var mentioning = []string{
	"echo PROGRAM", "kubectl get sts PROGRAM", "# first; PROGRAM", "sleep 1 # then; PROGRAM", "## a; PROGRAM\nsleep 1", `echo "x; PROGRAM"`, "echo 'x\nPROGRAM'",
	"cat <<EOF\nPROGRAM\nEOF", "cat >/x <<'EOF'\nfirst\nPROGRAM --x\nEOF\nkubectl apply -f /x", "NAME=PROGRAM; echo $NAME", "NAME=PROGRAM", "test -x PROGRAM",
	"cp PROGRAM /x", "kubectl logs -l app=PROGRAM", "helm upgrade --install PROGRAM .", "for f in PROGRAM x; do echo $f; done",
	"case $1 in PROGRAM) echo;; esac", "echo $(basename PROGRAM)", "pgrep -x PROGRAM", "which PROGRAM || exit 1", "cmd --name=PROGRAM",
	"curl https://example.com/PROGRAM/x; exit", "until kubectl get sts PROGRAM; do sleep 1; done", "exec kubectl rollout status sts/PROGRAM",
}

func (g *generator) scripts() {
	put := func(script, program string) corev1.Container {
		return corev1.Container{Command: []string{"sh", "-c", strings.ReplaceAll(script, "PROGRAM", program)}}
	}
	for _, script := range starting {
		for _, p := range []string{program, "/usr/bin/metacontroller", "./metacontroller"} {
			g.add("script", fmt.Sprintf("%q starts %s", script, p), Command, put(script, p))
		}
		g.add("script", fmt.Sprintf("%q starts another program", script), None, put(script, "/usr/bin/hook"))
		g.add("script", fmt.Sprintf("%q is no script without -c", script), None,
			corev1.Container{Command: []string{"/usr/bin/hook", strings.ReplaceAll(script, "PROGRAM", program)}})
	}
	for _, script := range mentioning {
		for _, p := range []string{program, "/usr/bin/metacontroller"} {
			g.add("script", fmt.Sprintf("%q only mentions %s", script, p), None, put(script, p))
		}
	}
}

// references has variables, as the kubelet replaces them.
func (g *generator) references() {
	literal := func(pairs ...string) []corev1.EnvVar {
		var env []corev1.EnvVar
		for i := 0; i < len(pairs); i += 2 {
			env = append(env, corev1.EnvVar{Name: pairs[i], Value: pairs[i+1]})
		}
		return env
	}
	for i := 1; i < len(program); i++ {
		head, tail := program[:i], program[i:]
		g.add("reference", "the name is split over two variables", Command,
			corev1.Container{Command: []string{"$(A)$(B)"}, Env: literal("A", head, "B", tail)})
		g.add("reference", "the name is split over a variable and text", Command,
			corev1.Container{Command: []string{head + "$(B)"}, Env: literal("B", tail)})
		g.add("reference", "a variable refers to an earlier one", Command,
			corev1.Container{Command: []string{"$(B)"}, Env: literal("A", head, "B", "$(A)"+tail)})
		g.add("reference", "a variable does not refer to a later one", None,
			corev1.Container{Command: []string{"$(B)"}, Env: literal("B", "$(A)"+tail, "A", head)})
		g.add("reference", "a variable refers to the one before it, not to the last of the name", Command,
			corev1.Container{Command: []string{"$(B)"}, Env: literal("A", "x", "A", head, "B", "$(A)"+tail, "A", "y")})
		g.add("reference", "an escaped reference", None,
			corev1.Container{Command: []string{head + "$$(B)"}, Env: literal("B", tail)})
		g.add("reference", "a reference to nothing", None, corev1.Container{Command: []string{head + "$(B)"}, Env: literal("C", tail)})
		g.add("reference", "a reference to a variable from a source", None,
			corev1.Container{Command: []string{head + "$(B)"}, Env: []corev1.EnvVar{{Name: "B", ValueFrom: &corev1.EnvVarSource{
				ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: tail}, Key: tail}}}}})
		g.add("reference", "a reference to a variable of envFrom", None,
			corev1.Container{Command: []string{head + "$(B)"}, EnvFrom: []corev1.EnvFromSource{{
				ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: tail}}}}})
	}
}

var (
	// alone are flags of which one is a sign.
	alone = []string{"target-label-selector", "apply-strategy-ssa-field-manager", "client-go-qps", "client-go-burst"}
	// together are flags that are a sign together with --discovery-interval.
	together = []string{"cache-flush-interval", "events-qps", "events-burst", "zap-log-level", "zap-devel", "zap-encoder"}
	// common are flags that many programs have.
	common = []string{"discovery-interval", "leader-election", "leader-election-id", "workers", "metrics-address", "pprof-address",
		"health-probe-bind-address", "kubeconfig", "v", "apply-strategy", "cache-flush-interval", "zap-log-level", "events-qps"}
)

func (g *generator) flags() {
	forms := [][]string{{"--%s=1"}, {"-%s=1"}, {"--%s", "1"}}
	tokens := func(form []string, flag string) []string {
		out := slices.Clone(form)
		out[0] = fmt.Sprintf(out[0], flag)
		return out
	}
	places := func(why string, want Verdict, flags []string) {
		g.add("flags", why+" in args", want, corev1.Container{Args: flags})
		g.add("flags", why+" of a program", want, corev1.Container{Command: append([]string{"/opt/m", "--x"}, flags...)})
		g.add("flags", why+" in a script", want, corev1.Container{Command: []string{"sh", "-c", "exec /opt/m " + strings.Join(flags, " ")}})
		g.add("flags", why+" by a variable", want, corev1.Container{Args: []string{"$(FLAGS)"}, Env: []corev1.EnvVar{{Name: "FLAGS", Value: strings.Join(flags, " ")}}})
	}
	for _, form := range forms {
		for _, flag := range alone {
			places("the flag "+flag, Flags, tokens(form, flag))
			places("a flag longer than "+flag, None, tokens(form, flag+"-x"))
			places("a flag that ends in "+flag, None, tokens(form, "x-"+flag))
		}
		for _, flag := range together {
			places("--discovery-interval and "+flag, Flags, append(tokens(form, "discovery-interval"), tokens(form, flag)...))
		}
		for _, flag := range common {
			g.add("flags", "only the flag "+flag, None, corev1.Container{Args: tokens(form, flag)})
		}
	}
	for _, flag := range alone {
		g.add("flags", "the word "+flag+" is no flag", None, corev1.Container{Args: []string{flag, "x" + flag, "--doc=--" + flag}})
		g.add("flags", "the flag "+flag+" of the image", Image, corev1.Container{Image: "metacontrollerio/metacontroller", Args: []string{"--" + flag + "=1"}})
		g.add("flags", "the flag "+flag+" of the program", Command, corev1.Container{Command: []string{program, "--" + flag + "=1"}})
	}
}

// decoys say the name where it does not count.
func (g *generator) decoys() {
	for _, k := range kinds {
		for i, list := range lists[:3] {
			at := len(g.cases)
			g.addTo("decoy", "names, labels and annotations are not looked at", None, k, list, corev1.Container{
				Name: program, Image: "nginx", WorkingDir: "/metacontroller",
				Env: []corev1.EnvVar{{Name: "METACONTROLLER", Value: "/usr/bin/metacontroller --client-go-qps=1"}},
			})
			c := g.cases[at]
			marks := map[string]string{"app.kubernetes.io/name": program, "image": "metacontroller-metacontroller"}
			c.Object.SetLabels(marks)
			c.Object.SetAnnotations(map[string]string{"kubectl.kubernetes.io/default-container": program, "note": "ghcr.io/metacontroller/metacontroller"})
			c.Object.SetName(fmt.Sprintf("metacontroller-%d", i))
			if k.resource != pods.resource {
				// Of a Pod it would have to exist.
				c.Spec.ServiceAccountName = program
			}
			c.Spec.NodeSelector = map[string]string{"metacontroller": "metacontroller"}
			c.Spec.Volumes = []corev1.Volume{{Name: program, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}
	}
}
