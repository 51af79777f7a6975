// Package app is the controller program: its flags, and how its parts are put
// together.
//
//	flags ─ Complete ─> Config ─ Run ─> listeners ─ API server ─ CRDs ─ lease ─> discovery, caches, hosts
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/version"
)

// Exit codes of the program.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// name begins each line that the program itself writes.
const name = "metacontroller"

// Streams are what the program reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Main runs the program until ctx ends and returns its exit code. What is wrong
// is one line on the error stream.
func Main(ctx context.Context, arguments []string, streams Streams) int {
	if len(arguments) > 0 && arguments[0] == rbacVerb {
		return printRBAC(ctx, arguments[1:], streams)
	}
	out := streams.Err
	var options Options
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags.SetOutput(out)
	flags.SortFlags = false
	options.AddFlags(flags)
	flags.Usage = func() {
		fmt.Fprintf(out, "Usage of %s, which runs the controllers; \"%s --help\" is about its roles:\n%s", name, rbacVerb, flags.FlagUsages())
	}

	usage, output := flags.Usage, io.Discard
	flags.Usage = func() {}
	flags.SetOutput(output)
	switch err := flags.Parse(doubleDashes(arguments, flags)); {
	case errors.Is(err, pflag.ErrHelp):
		usage()
		return exitOK
	case err != nil:
		say(out, fmt.Errorf("%w (see --help)", err))
		return exitUsage
	case flags.NArg() > 0:
		say(out, fmt.Errorf("takes no arguments, got %q (see --help)", flags.Arg(0)))
		return exitUsage
	case options.Version:
		fmt.Fprintln(out, version.String())
		return exitOK
	}
	config, err := options.Complete(os.Getenv)
	if err != nil {
		say(out, err)
		return exitUsage
	}
	log := logging.SetUp(options.Zap)
	if err := Run(ctx, config, log); err != nil {
		say(out, err)
		return exitError
	}
	return exitOK
}

// say writes what is wrong, on one line.
func say(out io.Writer, err error) {
	fmt.Fprintf(out, "%s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
}
