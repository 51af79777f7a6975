package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// installPage is the page whose commands are run as they are written.
const installPage = "docs/install.md"

// commands are the lines of the shell blocks below a heading of a page.
func commands(t testing.TB, page, heading string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), page))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	here, block := false, false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			block = line == "```sh"
		case block && here:
			found = append(found, line)
		case !block && strings.HasPrefix(line, "#"):
			here = line == heading
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no commands below %q", page, heading)
	}
	return found
}

// shell runs commands of a page as a person would: in the repository's root, with
// helm, kubectl and guard in the PATH.
func (l *lab) shell(lines ...string) string {
	l.t.Helper()
	var all strings.Builder
	for _, line := range lines {
		l.step(line)
		output, err := l.tryShell(line)
		all.WriteString(output)
		if err != nil {
			l.t.Fatalf("%v\n%s", err, l.explain())
		}
	}
	return all.String()
}

func (l *lab) tryShell(line string) (string, error) {
	l.t.Helper()
	// Pods of the local cluster have to be told their own addresses.
	for _, verb := range []string{"helm install ", "helm upgrade "} {
		if strings.HasPrefix(line, verb) {
			line += " --values " + l.addresses + " --timeout " + helmLimit
		}
	}
	home := l.t.TempDir()
	stdout, stderr, err := run(l.t.Context(), l.cluster.Root, []string{
		"KUBECONFIG=" + l.cluster.Kubeconfig(), "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home,
		"PATH=" + l.programs + string(os.PathListSeparator) + os.Getenv("PATH"),
	}, nil, "bash", "-c", line)
	return stdout + stderr, err
}

// testInstallPage follows docs/install.md from an empty cluster to an installed one,
// on to a newer one, and back.
func testInstallPage(l *lab) {
	l.shell(commands(l.t, installPage, "## Helm, without cert-manager")...)
	l.wantHolder(namespace + "/" + release)
	l.wantEnforced()
	l.shell(commands(l.t, installPage, "## Helm, upgrade")...)
	l.wantEnforced()
	uninstall := commands(l.t, installPage, "## Helm, uninstall")
	if len(uninstall) != 2 {
		l.t.Fatalf("the commands to uninstall are %q", uninstall)
	}
	l.shell(uninstall[0])
	l.wantNothingLeft("customresourcedefinitions")
	// The other is for what Helm has lost sight of; it must do no harm.
	l.shell(uninstall[1])
	l.kubectl("delete", "crd", "-l", "app.kubernetes.io/part-of=metacontroller-solo")
	l.wantNothingLeft()
}

// testKustomizePage does the same with kustomize. Two things differ in the local
// cluster: its Pods cannot listen on all addresses, so it is not waited for them.
func testKustomizePage(l *lab) {
	l.shell(commands(l.t, installPage, "## Kustomize")...)
	l.wantEnforced()
	l.wantHolder("metacontroller/metacontroller")
	l.shell(commands(l.t, installPage, "## Kustomize, uninstall")...)
	l.wantNothingLeft()
}

// testPipe (I11) runs what the page says of other tools.
func testPipe(l *lab) {
	for _, line := range commands(l.t, installPage, "## Without Helm in the cluster") {
		if output := l.shell(line); len(output) == 0 {
			l.t.Errorf("%s says nothing", line)
		}
	}
}
