package engine

import (
	"errors"

	"github.com/go-logr/logr"

	"github.com/metacontroller-solo/solo/pkg/logging"
)

// Failure is an error of a pass with what a reader of the log looks for.
type Failure struct {
	Err error
	// Hook that was asked; empty if it is not about one.
	Hook string
	// Path in the hook's answer; empty if it is not about a place there.
	Path string
}

func (f *Failure) Error() string { return f.Err.Error() }

func (f *Failure) Unwrap() error { return f.Err }

// failureSink adds the values of a Failure to the line that reports it.
// controller-runtime writes that line, so that there is one and not two.
type failureSink struct{ logr.LogSink }

func withFailures(log logr.Logger) logr.Logger {
	if log.GetSink() == nil {
		return log
	}
	return log.WithSink(failureSink{log.GetSink()})
}

func (s failureSink) Error(err error, message string, values ...any) {
	var failure *Failure
	if errors.As(err, &failure) {
		if failure.Hook != "" {
			values = append(values, logging.KeyHook, failure.Hook)
		}
		if failure.Path != "" {
			values = append(values, logging.KeyPath, failure.Path)
		}
	}
	s.LogSink.Error(err, message, values...)
}

func (s failureSink) WithValues(values ...any) logr.LogSink {
	return failureSink{s.LogSink.WithValues(values...)}
}

func (s failureSink) WithName(name string) logr.LogSink {
	return failureSink{s.LogSink.WithName(name)}
}
