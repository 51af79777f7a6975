package sandbox

import (
	"context"
	"fmt"
	"io"

	"k8s.io/utils/exec"
)

// Exec runs a command with the environment and in the folder of a container's process. A code that is not 0 gives an exec.CodeExitError.
func (p *Pod) Exec(ctx context.Context, name string, command []string, stdin io.Reader, stdout, stderr io.Writer) error {
	p.mu.Lock()
	var running *execution
	found := false
	for _, c := range p.containers {
		if c.name == name {
			found, running = true, c.running
		}
	}
	pod := p.pod
	p.mu.Unlock()
	switch {
	case !found:
		return fmt.Errorf("%w: %q", ErrNoSuchContainer, name)
	case running == nil:
		return fmt.Errorf("cannot run a command in container %q: it is not running", name)
	case len(command) == 0:
		return fmt.Errorf("cannot run a command in container %q: it is empty", name)
	}
	mounts, err := p.mounts(pod, running.spec)
	if err != nil {
		return err
	}
	code, err := p.runBeside(ctx, running.command, mounts, command, stdin, stdout, stderr)
	if err != nil {
		return err
	}
	if code != 0 {
		return exec.CodeExitError{Err: fmt.Errorf("command %q exited with %d", command[0], code), Code: code}
	}
	return nil
}
