package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// StepLimit bounds the wait for one thing; a loaded machine needs its time.
const StepLimit = 2 * time.Minute

// Kubectl runs commands as a person would type them.
type Kubectl struct {
	path       string
	kubeconfig string
	dir        string // where it runs, so that paths of manifests are short
}

// newKubectl finds kubectl in PATH.
func newKubectl(dir string) (*Kubectl, error) {
	path, err := exec.LookPath("kubectl")
	if err != nil {
		return nil, fmt.Errorf("cannot find kubectl in PATH: install it (https://kubernetes.io/docs/tasks/tools/) and try again: %w", err)
	}
	return &Kubectl{path: path, dir: dir}, nil
}

// Run runs kubectl and returns what it wrote.
func (k *Kubectl) Run(ctx context.Context, args ...string) (string, error) {
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

// Eventually waits until a condition holds; what says which, for the error.
func Eventually(ctx context.Context, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, StepLimit)
	defer cancel()
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return fmt.Errorf("waited %s in vain for %s: %w", StepLimit, what, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
