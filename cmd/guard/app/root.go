// Package app is the command line of the guard: one file for each verb. It is
// the only place that knows both what the guard's packages need and what
// satisfies them.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// usageError is a command line that cannot be run.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// Main runs the command line and returns the exit code. SIGINT and SIGTERM end
// it in good order; a second signal ends it at once.
func Main(args []string, stdout, stderr io.Writer) int {
	// A reader of the audit log that goes away is an error of that write, and
	// must not end the guard.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	root := newCommand(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	usage := usageError{}
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(stderr, "guard: %v; see guard --help\n", err)
		return exitUsage
	default:
		_, _ = fmt.Fprintf(stderr, "guard: %v\n", err)
		return exitFailure
	}
}

func newCommand(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "guard",
		Short:         "Keeps at most one Metacontroller active in a cluster",
		Args:          noArguments,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("no verb given")}
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(serveCommand(stdout), renderCommand(stdout), schemaCommand(stdout), versionCommand(stdout))
	return root
}

// noArguments refuses arguments, as a usage error.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unknown argument %q", args[0])}
	}
	return nil
}
