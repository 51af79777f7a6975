package node

import (
	"fmt"
	stdlog "log"
	"strings"

	"github.com/go-logr/logr"
	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
)

// vkLogger takes VK's messages. It tells of each step and of each failed try, so all of them are for who asks for more.
type vkLogger struct{ logr.Logger }

var _ vklog.Logger = vkLogger{}

const (
	levelDebug = 5
	levelInfo  = 4
	levelWarn  = 2
)

func (l vkLogger) Debug(args ...any) { l.V(levelDebug).Info(fmt.Sprint(args...)) }
func (l vkLogger) Debugf(format string, args ...any) {
	l.V(levelDebug).Info(fmt.Sprintf(format, args...))
}
func (l vkLogger) Info(args ...any) { l.V(levelInfo).Info(fmt.Sprint(args...)) }
func (l vkLogger) Infof(format string, args ...any) {
	l.V(levelInfo).Info(fmt.Sprintf(format, args...))
}
func (l vkLogger) Warn(args ...any) { l.V(levelWarn).Info(fmt.Sprint(args...)) }
func (l vkLogger) Warnf(format string, args ...any) {
	l.V(levelWarn).Info(fmt.Sprintf(format, args...))
}
func (l vkLogger) Error(args ...any) { l.V(levelWarn).Info(fmt.Sprint(args...)) }
func (l vkLogger) Errorf(format string, args ...any) {
	l.V(levelWarn).Info(fmt.Sprintf(format, args...))
}
func (l vkLogger) Fatal(args ...any) { l.Logger.Error(nil, fmt.Sprint(args...)) }
func (l vkLogger) Fatalf(format string, args ...any) {
	l.Logger.Error(nil, fmt.Sprintf(format, args...))
}

func (l vkLogger) WithField(key string, value any) vklog.Logger {
	return vkLogger{l.WithValues(key, value)}
}

func (l vkLogger) WithFields(fields vklog.Fields) vklog.Logger {
	for key, value := range fields {
		l.Logger = l.WithValues(key, value)
	}
	return l
}

func (l vkLogger) WithError(err error) vklog.Logger { return vkLogger{l.WithValues("error", err)} }

// newStdlog makes a logger for net/http.
func newStdlog(l logr.Logger) *stdlog.Logger { return stdlog.New(lineWriter{l}, "", 0) }

type lineWriter struct{ logr.Logger }

func (w lineWriter) Write(p []byte) (int, error) {
	w.Info(strings.TrimSpace(string(p)))
	return len(p), nil
}
