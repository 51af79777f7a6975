package app

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/metacontroller-solo/solo/pkg/guard/finding"
	"github.com/metacontroller-solo/solo/pkg/version"
)

// Variables of the environment about colours: https://no-color.org
const (
	envNoColor = "NO_COLOR"
	envTerm    = "TERM"
)

// output is how a verb prints what it found.
type output struct {
	format  string
	verbose bool
	strict  bool
	formats []finding.Format
}

// bind adds the flags. The first format is the default.
func (o *output) bind(command *cobra.Command, formats ...finding.Format) {
	o.formats = formats
	names := make([]string, len(formats))
	for i, format := range formats {
		names[i] = string(format)
	}
	command.Flags().StringVarP(&o.format, "output", "o", names[0], "Format: "+strings.Join(names, ", ")+".")
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// bindReport adds the flags of a verb that prints a report.
func (o *output) bindReport(command *cobra.Command) {
	o.bind(command, finding.Formats()...)
	command.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "Print what is in order too, in text.")
	command.Flags().BoolVar(&o.strict, "strict", false, "Exit with 1 for warnings too.")
}

// validate refuses an unknown format.
func (o *output) validate() error {
	if !slices.Contains(o.formats, finding.Format(o.format)) {
		return usageError{fmt.Errorf("--output %q is none of %v", o.format, o.formats)}
	}
	return nil
}

// style is how text can be shown on w.
func (o *output) style(w io.Writer) finding.Style {
	file, isFile := w.(*os.File)
	color := isFile && term.IsTerminal(int(file.Fd())) && os.Getenv(envNoColor) == "" && os.Getenv(envTerm) != "dumb"
	return finding.Style{Color: color, Verbose: o.verbose}
}

// report prints a report, says on the error stream what could not be read, and
// returns the exit code as an error.
func (o *output) report(streams Streams, report *finding.Report) error {
	report.Version = version.String()
	for _, fault := range report.Faults {
		where := finding.Clean(fault.File)
		if fault.Line > 0 {
			where += fmt.Sprintf(":%d", fault.Line)
		}
		_, _ = fmt.Fprintf(streams.Err, "%s: error: %s\n", where, finding.Clean(fault.Message))
	}
	if err := finding.Write(streams.Out, finding.Format(o.format), report, o.style(streams.Out)); err != nil {
		return err
	}
	switch {
	case len(report.Faults) > 0:
		return exitError(exitUsage)
	case report.Count(finding.Violation) > 0, o.strict && report.Count(finding.Warning) > 0:
		return exitError(exitFailure)
	default:
		return nil
	}
}
