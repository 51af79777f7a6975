package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
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
	if absolute, err := filepath.Abs(kubeconfig); err == nil {
		kubeconfig = absolute
	}
	fmt.Fprintf(c.out, `
%s In another terminal:

  export KUBECONFIG=%s
  kubectl get singletonpolicies,compositecontrollers
  kubectl get pods --all-namespaces

Press Ctrl-C here to stop it. The next "make run" goes on with the same data; "make clean" removes it.
`, c.bold("The cluster runs."), kubeconfig)
}

// kubectl runs commands as the person would type them.
type kubectl struct {
	path       string
	kubeconfig string
	console    *console
	dir        string // where it runs, so that paths of manifests are short
}

// newKubectl finds kubectl in PATH.
func newKubectl(kubeconfig string, console *console) (*kubectl, error) {
	path, err := exec.LookPath("kubectl")
	if err != nil {
		return nil, fmt.Errorf("cannot find kubectl in PATH: install it (https://kubernetes.io/docs/tasks/tools/) and try again: %w", err)
	}
	return &kubectl{path: path, kubeconfig: kubeconfig, console: console}, nil
}

// show runs kubectl before the person's eyes.
func (k *kubectl) show(ctx context.Context, args ...string) (string, error) {
	fmt.Fprintf(k.console.out, "   $ kubectl %s\n", quoted(args))
	output, err := k.quiet(ctx, args...)
	for line := range strings.Lines(output) {
		fmt.Fprintf(k.console.out, "     %s\n", strings.TrimRight(line, "\n"))
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

// quiet runs kubectl and shows nothing.
func (k *kubectl) quiet(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, k.path, args...)
	command.Dir = k.dir
	command.Env = append(os.Environ(), "KUBECONFIG="+k.kubeconfig)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	err := command.Run()
	if err != nil {
		if ctx.Err() != nil {
			return output.String(), ctx.Err()
		}
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(output.String()))
	}
	return output.String(), err
}
