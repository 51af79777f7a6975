package chart

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacontroller-solo/solo/test/kit/process"
	"github.com/metacontroller-solo/solo/test/local/cluster"
)

// installPage is the page whose commands are run as they are written.
const installPage = "docs/install.md"

// The headings of that page with commands below them.
const (
	onEmptyCluster     = "## A cluster to try it in"
	onPrograms         = "## Helm and guard"
	onCertManager      = "## Helm, with cert-manager"
	onSelfManaged      = "## Helm, without cert-manager"
	onUpgrade          = "## Helm, upgrade"
	onUninstall        = "## Helm, uninstall"
	onKustomize        = "## Kustomize"
	onKustomizeRemoval = "## Kustomize, uninstall"
	onPipes            = "## Without Helm in the cluster"
)

// sections are the commands of a page, by heading.
func sections(t testing.TB, page string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), page))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	heading, block := "", false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			block = line == "```sh"
		case block:
			// Comments are for people.
			if command, _, _ := strings.Cut(line, " #"); strings.TrimSpace(command) != "" {
				found[heading] = append(found[heading], strings.TrimSpace(command))
			}
		case strings.HasPrefix(line, "#"):
			heading = line
		}
	}
	return found
}

// commands are those below a heading of the page.
func commands(t testing.TB, heading string) []string {
	t.Helper()
	found := sections(t, installPage)[heading]
	if len(found) == 0 {
		t.Fatalf("%s has no commands below %q", installPage, heading)
	}
	return found
}

// TestEveryCommandIsRun holds the pages to the headings whose commands TestNewcomer
// runs.
func TestEveryCommandIsRun(t *testing.T) {
	want := []string{onEmptyCluster, onPrograms, onCertManager, onSelfManaged, onUpgrade, onUninstall, onKustomize, onKustomizeRemoval, onPipes}
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(sections(t, installPage)))); diff != "" {
		t.Errorf("headings of %s with commands: -run +there\n%s", installPage, diff)
	}
	if found := sections(t, valuesPage); len(found) > 0 {
		t.Errorf("%s has commands that no test runs: %v", valuesPage, found)
	}
}

// TestNewcomer follows docs/install.md, and nothing else, from an empty cluster of
// make run to a working installation with either source of the certificate, on to an
// upgrade, and back.
func TestNewcomer(t *testing.T) {
	needHelm(t)
	clusters := commands(t, onEmptyCluster)
	if len(clusters) != 2 {
		t.Fatalf("the page starts clusters by %q", clusters)
	}
	t.Run("cert-manager", func(t *testing.T) {
		l := newcomer(t, clusters[1])
		b := l.bystander()
		l.testInstallPage(onCertManager)
		b.wantUnharmed(t)
	})
	t.Run("self-managed", func(t *testing.T) {
		l := newcomer(t, clusters[0])
		b := l.bystander()
		l.testInstallPage(onSelfManaged)
		l.testKustomizePage()
		for _, line := range commands(t, onPipes) {
			if output := l.shell(line); len(output) == 0 {
				t.Errorf("%s says nothing", line)
			}
		}
		b.wantUnharmed(t)
	})
}

// newcomer starts a cluster as the page says, and has the programs that it says.
func newcomer(t *testing.T, start string) *lab {
	t.Helper()
	l := &lab{t: t}
	l.programs = filepath.Join(root(t), "bin")
	l.shell(commands(t, onPrograms)...)

	dir := t.TempDir()
	output := &announcement{log: t.Output()}
	proc, err := process.Start(process.Spec{
		Name: start, Path: "bash", Args: []string{"-c", "exec " + start}, Dir: root(t), Stdout: output,
		Env: append(os.Environ(), "RUN_DIR="+dir, "RUN_FLAGS=--lock-wait="+lockWait.String()),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proc.Stop() })
	if err := proc.Until(t.Context(), func(context.Context) error {
		if output.kubeconfig() == "" {
			return fmt.Errorf("%s does not say that the cluster runs", start)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if l.cluster, err = cluster.Connect(dir); err != nil {
		t.Fatal(err)
	}
	if got := output.kubeconfig(); got != l.cluster.Kubeconfig() {
		t.Errorf("%s says that the kubeconfig is %s, and it is %s", start, got, l.cluster.Kubeconfig())
	}
	l.connect()
	l.addresses = "test/local/values.yaml"
	return l
}

// announcement is what make run prints.
type announcement struct {
	log  io.Writer
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (a *announcement) Write(data []byte) (int, error) {
	a.mu.Lock()
	a.text.Write(data) // never fails
	a.mu.Unlock()
	return a.log.Write(data)
}

var exported = regexp.MustCompile(`(?m)^ *export KUBECONFIG=(\S+)$`)

// kubeconfig is the path that the person is told, or empty before that.
func (a *announcement) kubeconfig() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if match := exported.FindStringSubmatch(a.text.String()); match != nil {
		return match[1]
	}
	return ""
}

// shell runs commands of the page as a person would: in the repository's root, with
// the programs in the PATH.
func (l *lab) shell(lines ...string) string {
	l.t.Helper()
	var all strings.Builder
	for _, line := range lines {
		l.step("$ " + line)
		// Already so: each command here has a shell of its own.
		if line == "export PATH=$PWD/bin:$PATH" {
			continue
		}
		// What the page says of the cluster of make run.
		for _, verb := range []string{"helm install ", "helm upgrade "} {
			if strings.HasPrefix(line, verb) {
				line += " --values " + l.addresses + " --timeout " + helmLimit
			}
		}
		home := l.t.TempDir()
		env := []string{
			"HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home,
			"PATH=" + l.programs + string(os.PathListSeparator) + os.Getenv("PATH"),
		}
		if l.cluster != nil {
			env = append(env, "KUBECONFIG="+l.cluster.Kubeconfig())
		}
		stdout, stderr, err := run(l.t.Context(), root(l.t), env, nil, "bash", "-o", "pipefail", "-c", line)
		all.WriteString(stdout + stderr)
		if err != nil {
			if l.cluster != nil {
				l.t.Log(l.explain())
			}
			l.t.Fatal(err)
		}
		l.t.Log(stdout + stderr)
	}
	return all.String()
}

// testInstallPage installs with Helm, upgrades and uninstalls.
func (l *lab) testInstallPage(heading string) {
	l.t.Helper()
	l.shell(commands(l.t, heading)...)
	l.wantHolder(namespace + "/" + release)
	l.wantEnforced()
	l.shell(commands(l.t, onUpgrade)...)
	l.wantEnforced()
	uninstall := commands(l.t, onUninstall)
	if len(uninstall) != 2 {
		l.t.Fatalf("the commands to uninstall are %q", uninstall)
	}
	l.shell(uninstall[0])
	l.wantNothingLeft("customresourcedefinitions")
	l.wantFree()
	// The other is for what Helm has lost sight of; it must do no harm.
	l.shell(uninstall[1])
	l.kubectl("delete", "crd", "-l", "app.kubernetes.io/part-of=metacontroller-solo")
	l.wantNothingLeft()
}

// testKustomizePage does the same with kustomize. The controller gets no further than
// its Pod: it has no addresses of its own in the local cluster. TestInstallation has it
// run.
func (l *lab) testKustomizePage() {
	l.t.Helper()
	l.shell(commands(l.t, onKustomize)...)
	l.wantEnforced()
	l.wantHolder("metacontroller/metacontroller")
	l.shell(commands(l.t, onKustomizeRemoval)...)
	l.wantNothingLeft()
	l.wantFree()
}
