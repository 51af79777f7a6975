package javascript

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/dop251/goja"
)

// exitUncaught is node's exit code after an error that nobody caught.
const exitUncaught = 1

// Options say what to run. One of File and Code must be set.
type Options struct {
	// File is the main module, Code a program given as text (node -e).
	File, Code string
	// Args are process.argv after the program's name and file.
	Args []string
	// Env is process.env.
	Env map[string]string
	// Stdout and Stderr take what console writes; nil discards.
	Stdout, Stderr io.Writer
	// Signals are handed to the functions of process.on. One without a function
	// ends the program, as it does in node.
	Signals <-chan os.Signal
}

// program is a running program. Everything but post belongs to the goroutine of
// Run.
type program struct {
	options Options
	vm      *goja.Runtime
	modules map[string]*goja.Object
	// signals are the functions of process.on, by the signal's name.
	signals map[string][]goja.Callable
	timers  map[*goja.Object]*timer
	// pending counts what can still bring a job: servers and timers.
	pending int
	// exited is set by process.exit and by an error that nobody caught.
	exited bool
	code   int
	// stops end what runs besides, such as servers.
	stops []func()

	jobs chan func()
	done chan struct{}
}

// Run runs a program to its end and returns its exit code. It ends early with
// ctx; the error is then ctx's. Errors of the program itself are written to
// Stderr, with their stack, and give the code 1.
func Run(ctx context.Context, options Options) (code int, err error) {
	if (options.File == "") == (options.Code == "") {
		return 0, errors.New("cannot run JavaScript: give either a file or code")
	}
	if options.Stdout == nil {
		options.Stdout = io.Discard
	}
	if options.Stderr == nil {
		options.Stderr = io.Discard
	}
	p := &program{
		options: options,
		vm:      goja.New(),
		modules: map[string]*goja.Object{},
		signals: map[string][]goja.Callable{},
		timers:  map[*goja.Object]*timer{},
		jobs:    make(chan func()),
		done:    make(chan struct{}),
	}
	defer func() {
		close(p.done)
		for _, stop := range p.stops {
			stop()
		}
	}()
	// A script that does not come back is stopped too.
	defer context.AfterFunc(ctx, func() { p.vm.Interrupt(ctx.Err()) })()
	if err := p.globals(); err != nil {
		return 0, err
	}
	p.try(p.main)
	for p.pending > 0 && !p.exited {
		select {
		case job := <-p.jobs:
			job()
		case sent := <-options.Signals:
			p.signal(sent)
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
	}
	return p.code, ctx.Err()
}

// main loads the main module.
func (p *program) main() error {
	if p.options.Code != "" {
		dir, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("cannot find the working folder: %w", err)
		}
		_, err = p.module(filepath.Join(dir, "[eval]"), p.options.Code)
		return err
	}
	path, err := filepath.Abs(p.options.File)
	if err != nil {
		return fmt.Errorf("cannot find file %q: %w", p.options.File, err)
	}
	_, err = p.load(path)
	return err
}

// post hands a job to the program's goroutine. It is false when the program has
// ended.
func (p *program) post(job func()) bool {
	select {
	case p.jobs <- job:
		return true
	case <-p.done:
		return false
	}
}

// try runs a part of the program. An error that nobody caught ends it.
func (p *program) try(part func() error) {
	if p.exited {
		return
	}
	err := part()
	// process.exit has interrupted the script with nil.
	if err == nil || p.exited {
		return
	}
	var interrupted *goja.InterruptedError
	if !errors.As(err, &interrupted) {
		message := err.Error()
		var thrown *goja.Exception
		if errors.As(err, &thrown) {
			message = thrown.String()
		}
		_, _ = fmt.Fprintf(p.options.Stderr, "Uncaught %s\n", message)
	}
	p.exit(exitUncaught)
}

// call calls a function of the program from outside of it.
func (p *program) call(f goja.Callable, args ...any) {
	p.try(func() error {
		values := make([]goja.Value, len(args))
		for i, arg := range args {
			values[i] = p.vm.ToValue(arg)
		}
		_, err := f(goja.Undefined(), values...)
		return err
	})
}

func (p *program) exit(code int) {
	if !p.exited {
		p.exited, p.code = true, code
	}
}

// signalNames are the signals that a program can wait for.
var signalNames = map[os.Signal]string{syscall.SIGTERM: "SIGTERM", os.Interrupt: "SIGINT"}

func (p *program) signal(sent os.Signal) {
	functions := p.signals[signalNames[sent]]
	if len(functions) == 0 {
		number, _ := sent.(syscall.Signal)
		p.exit(128 + int(number))
		return
	}
	for _, f := range functions {
		p.call(f, signalNames[sent])
	}
}
