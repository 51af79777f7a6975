package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/metacontroller-solo/solo/test/local/cluster"
)

// console is what the person sees: numbered steps, each with what to look for,
// and every command with its output.
type console struct {
	out   io.Writer
	bold  func(string) string
	dim   func(string) string
	step  int
	start time.Time
}

func newConsole(out *os.File) *console {
	plain := func(s string) string { return s }
	c := &console{out: out, bold: plain, dim: plain, start: time.Now()}
	if info, err := out.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" {
		c.bold = func(s string) string { return "\x1b[1m" + s + "\x1b[0m" }
		c.dim = func(s string) string { return "\x1b[2m" + s + "\x1b[0m" }
	}
	return c
}

// Write lets other parts report their progress here, a line at a time.
func (c *console) Write(line []byte) (int, error) {
	c.say("%s", strings.TrimRight(string(line), "\n"))
	return len(line), nil
}

func (c *console) say(format string, args ...any) {
	fmt.Fprintf(c.out, "%s %s\n", c.dim(fmt.Sprintf("[%5.1fs]", time.Since(c.start).Seconds())), fmt.Sprintf(format, args...))
}

// begin announces a step of the demo.
func (c *console) begin(title, look string) {
	c.step++
	fmt.Fprintf(c.out, "\n%s\n   look for: %s\n", c.bold(fmt.Sprintf("%d. %s", c.step, title)), look)
}

func (c *console) done(what string) { fmt.Fprintf(c.out, "   ok: %s\n", what) }

func (c *console) failure(err error) {
	fmt.Fprintf(c.out, "\n%s %v\n", c.bold("A step of the demo went wrong:"), err)
}

func (c *console) success() {
	fmt.Fprintf(c.out, "\n%s\n", c.bold(fmt.Sprintf("All %d steps are as they should be (%.0f s).", c.step, time.Since(c.start).Seconds())))
}

func (c *console) invitation(kubeconfig string) {
	c.invite("The cluster runs.", kubeconfig, "kubectl get singletonpolicies,compositecontrollers", "kubectl get pods --all-namespaces")
}

// emptiness is the invitation to a cluster without the product.
func (c *console) emptiness(kubeconfig string) {
	c.invite("The cluster runs, and is empty. docs/install.md says how to install in it.", kubeconfig, "kubectl get nodes")
}

// invite says how to use the cluster.
func (c *console) invite(what, kubeconfig string, commands ...string) {
	if absolute, err := filepath.Abs(kubeconfig); err == nil {
		kubeconfig = absolute
	}
	fmt.Fprintf(c.out, `
%s In another terminal:

  export KUBECONFIG=%s
  %s

Press Ctrl-C here to stop it. The next "make run" goes on with the same data; "make clean" removes it.
`, c.bold(what), kubeconfig, strings.Join(commands, "\n  "))
}

// show runs kubectl before the person's eyes.
func (c *console) show(ctx context.Context, kubectl *cluster.Kubectl, args ...string) (string, error) {
	fmt.Fprintf(c.out, "   $ kubectl %s\n", quoted(args))
	output, err := kubectl.Run(ctx, args...)
	for line := range strings.Lines(output) {
		fmt.Fprintf(c.out, "     %s\n", strings.TrimRight(line, "\n"))
	}
	return output, err
}

// quoted is how a person would type the arguments into a shell.
func quoted(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		if words[i] = arg; strings.ContainsAny(arg, ` "$&|;<>(){}*?!#~`+"\t\n") {
			words[i] = "'" + arg + "'"
		}
	}
	return strings.Join(words, " ")
}
