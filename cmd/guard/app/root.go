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
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/metacontroller-solo/solo/pkg/version"
)

// Exit codes.
const (
	exitOK = 0
	// exitFailure is a violation that was found; of serve, any failure.
	exitFailure = 1
	// exitUsage is a command line, or input, that is no good.
	exitUsage = 2
	// exitUnreachable is a cluster that does not answer, or not this user.
	exitUnreachable = 3
)

const (
	// programName is what the program is called, unless kubectl calls it.
	programName = "guard"
	// pluginPrefix begins the file names of kubectl's plugins.
	pluginPrefix = "kubectl-"
)

// Streams are what the program reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// usageError is a command line, or input, that nothing can be done with.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// clusterError is a cluster that cannot be asked.
type clusterError struct{ err error }

func (e clusterError) Error() string { return e.err.Error() }
func (e clusterError) Unwrap() error { return e.err }

// exitError ends the program with a code, after it has said all.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Main runs the command line, whose first element is the program, and returns
// the exit code. SIGINT and SIGTERM end it in good order; a second signal ends it
// at once.
func Main(commandLine []string, streams Streams) int {
	// A reader of the audit log that goes away is an error of that write, and
	// must not end the guard.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	name := calledAs(commandLine[0])
	root := newCommand(name, streams)
	root.SetArgs(commandLine[1:])
	err := root.ExecuteContext(ctx)
	usage, cluster, exit := usageError{}, clusterError{}, exitError(0)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(streams.Err, "%s: %v; see %s --help\n", name, err, name)
		return exitUsage
	case errors.As(err, &cluster):
		_, _ = fmt.Fprintf(streams.Err, "%s: %v\n", name, err)
		return exitUnreachable
	default:
		_, _ = fmt.Fprintf(streams.Err, "%s: %v\n", name, err)
		return exitFailure
	}
}

// calledAs is how a person calls the program that was started: as a plugin of
// kubectl, whose file name has a dash for each space and an underscore for each
// dash, or by its name.
func calledAs(path string) string {
	file := strings.TrimSuffix(filepath.Base(path), ".exe")
	plugin, ok := strings.CutPrefix(file, pluginPrefix)
	if !ok || plugin == "" {
		return programName
	}
	return "kubectl " + strings.NewReplacer("-", " ", "_", "-").Replace(plugin)
}

func newCommand(name string, streams Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   programName,
		Short: "Keeps at most one Metacontroller active in a cluster",
		Long:  "Keeps at most one Metacontroller active in a cluster.\n\nExit codes: 0 in order, 1 a violation was found, 2 bad usage or input, 3 the cluster does not answer.",
		Args:  noArguments,
		// No template of our own for it: a program that uses one has all of the
		// methods of its libraries linked in, 26 MiB of them.
		Version:       version.String(),
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: name},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("no verb given")}
		},
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		serveCommand(streams.Out), checkCommand(streams), scanCommand(streams), explainCommand(streams), verifyCommand(streams),
		renderCommand(streams.Out), schemaCommand(streams.Out), versionCommand(streams.Out),
	)
	for _, command := range root.Commands() {
		command.Example = strings.ReplaceAll(command.Example, programName+" ", name+" ")
	}
	return root
}

// noArguments refuses arguments, as a usage error.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unknown argument %q", args[0])}
	}
	return nil
}
