package logging

import (
	"slices"

	"github.com/go-logr/logr"
)

// Lazy is a logger whose values are put into form when a line is written. zap does
// that when they are added: a waste for a logger that is made for each sync and
// says nothing in nearly all of them.
func Lazy(log logr.Logger) logr.Logger {
	// The methods of the sink are a frame between who logs and the logger.
	return logr.New(&lazy{log: log.WithCallDepth(1)})
}

// lazy is the sink of a Lazy logger.
type lazy struct {
	log    logr.Logger
	values []any
}

func (l *lazy) Init(info logr.RuntimeInfo) { l.log = l.log.WithCallDepth(info.CallDepth) }

func (l *lazy) Enabled(level int) bool { return l.log.V(level).Enabled() }

func (l *lazy) Info(level int, message string, values ...any) {
	l.log.V(level).WithValues(l.values...).Info(message, values...)
}

func (l *lazy) Error(err error, message string, values ...any) {
	l.log.WithValues(l.values...).Error(err, message, values...)
}

func (l *lazy) WithValues(values ...any) logr.LogSink {
	return &lazy{log: l.log, values: slices.Concat(l.values, values)}
}

func (l *lazy) WithName(name string) logr.LogSink {
	return &lazy{log: l.log.WithName(name), values: l.values}
}

func (l *lazy) WithCallDepth(depth int) logr.LogSink {
	return &lazy{log: l.log.WithCallDepth(depth), values: l.values}
}
