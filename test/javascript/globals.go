package javascript

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dop251/goja"
)

// maxFile bounds a source file and what fs reads, in bytes.
const maxFile = 4 << 20

// builtins make the modules of Node.js that there are.
var builtins = map[string]func(*program) *goja.Object{
	"http":   (*program).http,
	"fs":     (*program).fs,
	"crypto": (*program).crypto,
}

// object makes an object of Go values and functions.
func (p *program) object(properties map[string]any) *goja.Object {
	o := p.vm.NewObject()
	for name, value := range properties {
		// Setting a property of a fresh object cannot fail.
		_ = o.Set(name, value)
	}
	return o
}

// throw makes an error of the program's out of one of ours.
func (p *program) throw(err error) { panic(p.vm.NewGoError(err)) }

// function returns an argument that must be one.
func (p *program) function(call goja.FunctionCall, place int) goja.Callable {
	f, ok := goja.AssertFunction(call.Argument(place))
	if !ok {
		panic(p.vm.NewTypeError("argument %d must be a function", place+1))
	}
	return f
}

func (p *program) globals() error {
	argv := append([]string{"node", p.options.File}, p.options.Args...)
	environ := map[string]any{}
	for name, value := range p.options.Env {
		environ[name] = value
	}
	write := func(w io.Writer) func(goja.FunctionCall) goja.Value {
		return func(call goja.FunctionCall) goja.Value {
			words := make([]string, len(call.Arguments))
			for i, argument := range call.Arguments {
				words[i] = p.printed(argument)
			}
			_, _ = fmt.Fprintln(w, strings.Join(words, " "))
			return goja.Undefined()
		}
	}
	globals := map[string]any{
		"process": p.object(map[string]any{
			"argv": argv,
			"env":  p.object(environ),
			"pid":  os.Getpid(),
			"on": func(call goja.FunctionCall) goja.Value {
				name := call.Argument(0).String()
				p.signals[name] = append(p.signals[name], p.function(call, 1))
				return call.This
			},
			"exit": func(call goja.FunctionCall) goja.Value {
				p.exit(int(call.Argument(0).ToInteger()))
				// Nothing of the program runs after it.
				p.vm.Interrupt(nil)
				return goja.Undefined()
			},
		}),
		"console": p.object(map[string]any{
			"log": write(p.options.Stdout), "info": write(p.options.Stdout),
			"warn": write(p.options.Stderr), "error": write(p.options.Stderr),
		}),
		"setTimeout":    p.timer(false),
		"setInterval":   p.timer(true),
		"clearTimeout":  p.clearTimer,
		"clearInterval": p.clearTimer,
	}
	for name, value := range globals {
		if err := p.vm.Set(name, value); err != nil {
			return fmt.Errorf("cannot set %s: %w", name, err)
		}
	}
	return nil
}

// printed is how console writes a value: text as it is, errors with their stack,
// the rest as JSON.
func (p *program) printed(value goja.Value) string {
	o, ok := value.(*goja.Object)
	if !ok {
		return value.String()
	}
	if stack := o.Get("stack"); stack != nil && !goja.IsUndefined(stack) {
		return stack.String()
	}
	if text, err := o.MarshalJSON(); err == nil {
		return string(text)
	}
	return value.String()
}

// timer is a running one. It belongs to the program's goroutine.
type timer struct {
	timer   *time.Timer
	forget  func()
	cleared bool
}

func (p *program) endTimer(t *timer) {
	t.cleared = true
	t.forget()
	p.pending--
}

func (p *program) timer(again bool) func(goja.FunctionCall) goja.Value {
	return func(call goja.FunctionCall) goja.Value {
		f := p.function(call, 0)
		pause := time.Duration(max(call.Argument(1).ToInteger(), 1)) * time.Millisecond
		var args []any
		for _, argument := range call.Arguments[min(2, len(call.Arguments)):] {
			args = append(args, argument)
		}
		t := &timer{}
		p.pending++
		var fire func()
		fire = func() {
			p.post(func() {
				if t.cleared {
					return
				}
				if !again {
					p.endTimer(t)
				}
				p.call(f, args...)
				if again && !t.cleared {
					t.timer = time.AfterFunc(pause, fire)
				}
			})
		}
		t.timer = time.AfterFunc(pause, fire)
		handle := p.vm.NewObject()
		_ = handle.Set("unref", func() *goja.Object { return handle })
		p.timers[handle] = t
		t.forget = func() { delete(p.timers, handle) }
		return handle
	}
}

func (p *program) clearTimer(call goja.FunctionCall) goja.Value {
	handle, ok := call.Argument(0).(*goja.Object)
	if !ok {
		return goja.Undefined()
	}
	if t := p.timers[handle]; t != nil {
		t.timer.Stop()
		p.endTimer(t)
	}
	return goja.Undefined()
}

// require returns the function of that name for a module in a folder.
func (p *program) require(dir string) func(goja.FunctionCall) goja.Value {
	return func(call goja.FunctionCall) goja.Value {
		name := call.Argument(0).String()
		if strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../") || filepath.IsAbs(name) {
			path := name
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, name)
			}
			exports, err := p.load(path)
			if err != nil {
				p.rethrow(err)
			}
			return exports
		}
		name = strings.TrimPrefix(name, "node:")
		if known := p.modules[name]; known != nil {
			return known
		}
		build, ok := builtins[name]
		if !ok {
			p.throw(fmt.Errorf("cannot find module %q: only http, fs and crypto are there", name))
		}
		p.modules[name] = build(p)
		return p.modules[name]
	}
}

// rethrow passes an error of the program on as it is.
func (p *program) rethrow(err error) {
	var thrown *goja.Exception
	if errors.As(err, &thrown) {
		panic(thrown.Value())
	}
	p.throw(err)
}

// load returns what a module file exports. Each is run once.
func (p *program) load(path string) (goja.Value, error) {
	if known := p.modules[path]; known != nil {
		return known.Get("exports"), nil
	}
	source, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot load module %q: %w", path, err)
	}
	return p.module(path, source)
}

// module runs the source of a module, and returns what it exports.
func (p *program) module(path, source string) (goja.Value, error) {
	module := p.object(map[string]any{"exports": p.vm.NewObject()})
	p.modules[path] = module
	// On one line, so that the lines in a stack are those of the file.
	compiled, err := goja.Compile(path, "(function (exports, require, module, __filename, __dirname) {"+source+"\n})", false)
	if err != nil {
		return nil, err
	}
	wrapped, err := p.vm.RunProgram(compiled)
	if err != nil {
		return nil, err
	}
	body, ok := goja.AssertFunction(wrapped)
	if !ok {
		return nil, fmt.Errorf("cannot run module %q: it is not a function body", path)
	}
	dir := filepath.Dir(path)
	if _, err := body(goja.Undefined(), module.Get("exports"), p.vm.ToValue(p.require(dir)), module, p.vm.ToValue(path), p.vm.ToValue(dir)); err != nil {
		return nil, err
	}
	return module.Get("exports"), nil
}

func readFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return "", err
	}
	if len(content) > maxFile {
		return "", fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	return string(content), nil
}

// fs is the module of that name: readFileSync of text.
func (p *program) fs() *goja.Object {
	return p.object(map[string]any{
		"readFileSync": func(path, encoding string) string {
			if encoding != "utf8" && encoding != "utf-8" {
				p.throw(errors.New(`readFileSync reads text only: give it "utf8"`))
			}
			content, err := readFile(path)
			if err != nil {
				p.throw(err)
			}
			return content
		},
	})
}

// crypto is the module of that name: SHA-256 of text, as hexadecimal digits.
func (p *program) crypto() *goja.Object {
	return p.object(map[string]any{
		"createHash": func(algorithm string) *goja.Object {
			if algorithm != "sha256" {
				p.throw(fmt.Errorf("hash %q is not there: only sha256 is", algorithm))
			}
			hash := sha256.New()
			result := p.vm.NewObject()
			_ = result.Set("update", func(text string) *goja.Object {
				hash.Write([]byte(text))
				return result
			})
			_ = result.Set("digest", func(encoding string) string {
				if encoding != "hex" {
					p.throw(errors.New(`a digest is text only: give it "hex"`))
				}
				return hex.EncodeToString(hash.Sum(nil))
			})
			return result
		},
	})
}
