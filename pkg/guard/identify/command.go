package identify

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A command line is one string: the tokens of command, then the tokens of
// args, each ended by the separator. With no command the line begins with the
// separator: the image's own entrypoint, which nobody here can know, comes
// first. No program can be started with a NUL in an argument, so no token can
// pretend to be two.
const separator = "\x00"

// wrapper is a program, or a word of the shell, that starts another program
// named among its arguments.
type wrapper struct {
	name string
	// operand says that an argument of its own stands before the program: a
	// user, a directory, a file.
	operand bool
}

// wrappers is the one table of them. A program that is not in it hides what
// it starts; then only the image tells.
var wrappers = []wrapper{
	// Shells, whose -c takes a script.
	{name: "sh"}, {name: "bash"}, {name: "ash"}, {name: "dash"}, {name: "zsh"}, {name: "ksh"},
	{name: "busybox"}, {name: "toybox"},
	// Init programs for containers, and the scripts that images start with.
	{name: "tini"}, {name: "tini-static"}, {name: "dumb-init"}, {name: "catatonit"}, {name: "pid1"},
	{name: "entrypoint"}, {name: "entrypoint[.]sh"}, {name: "docker-entrypoint[.]sh"}, {name: "vault-env"},
	// Programs that change how, or as whom, another one runs.
	{name: "env"}, {name: "nohup"}, {name: "time"}, {name: "timeout"}, {name: "nice"}, {name: "ionice"},
	{name: "chrt"}, {name: "taskset"}, {name: "setsid"}, {name: "stdbuf"}, {name: "setpriv"}, {name: "prlimit"},
	{name: "unshare"}, {name: "sudo"}, {name: "doas"}, {name: "chpst"},
	{name: "su", operand: true}, {name: "su-exec", operand: true}, {name: "gosu", operand: true},
	{name: "runuser", operand: true}, {name: "chroot", operand: true}, {name: "flock", operand: true},
	{name: "setuidgid", operand: true}, {name: "s6-setuidgid", operand: true},
	// Debuggers and tracers.
	{name: "strace"}, {name: "ltrace"}, {name: "valgrind"}, {name: "dlv"},
	// Words of the shell that a command may follow.
	{name: "exec"}, {name: "eval"}, {name: "if"}, {name: "then"}, {name: "elif"}, {name: "else"},
	{name: "while"}, {name: "until"}, {name: "do"}, {name: "!"}, {name: "[{]"},
}

// The pieces of the expression. In a script words are parted by blanks, in a
// list of arguments by the separator; one gap stands for both.
const (
	gap = `[\s\x00]+`
	// dir is the directory part of a program's path. "=" and ":" keep values
	// of variables and URLs out.
	dir = `(?:[^\s\x00"'=:<>]*/)?`
	// flag is an option that takes no value in the next word: the letters that
	// always do (a user, a file, a directory, a name) may not end it.
	flag = `-(?:-[^\s\x00]*|[^\s\x00]*[^\s\x00uUoCa])?`
	// flagAndValue is an option with its value in the next word.
	flagAndValue = `(?:-\w*[oC]` + gap + `[^\s\x00-][^\s\x00]*|(?:-\w*[uUgGa]|--[\w-]+)` + gap + `[\w:,+][\w:,+-]*)`
	// plain is an operand in digits or capitals: 10s, TERM, 0x3, an
	// environment variable's name.
	plain = `[0-9A-Z][\w.:,+-]*`
	// assignment is NAME=value before a command. A whole argument may have
	// blanks in its value.
	assignment = `\w+=(?:(?:"[^"\x00]*"|'[^'\x00]*'|[^\s\x00"';&|])*` + gap + `|[^\x00\n;&|]*\x00)`
	// newCommand is where, in a script, another command begins.
	newCommand = `[;&|(\n\x60]`
	// lexed is script text in which quotes are closed, so that what is quoted
	// is never taken for a command. A comment may have a lone quote.
	lexed = `(?:[^"'\\\x00]|\\[^\x00]|"(?:[^"\\\x00]|\\[^\x00])*"|'[^'\x00]*'|#[^\n\x00]*)*`
	// script leads to the start of any command of a script after -c. Within a
	// script the script of a second shell is quoted.
	script = `-\w*c(?:\x00(?:-[^\x00]*\x00)*(?:` + lexed + newCommand + `)?|\s+["'](?:[^\x00]*` + newCommand + `)?)\s*`
	// positional is a script's command that comes from the words after it:
	// "$@", $0, ${1}.
	positional = `["']?\$[{]?[@*01][^\x00]*\x00(?:[^\x00]*\x00)?(?:[^\x00=:]*/)?`
)

// started is what stands before a program's name where a wrapper starts it.
var started = func() string {
	var plainNames, operandNames []string
	for _, w := range wrappers {
		if w.operand {
			operandNames = append(operandNames, w.name)
		} else {
			plainNames = append(plainNames, w.name)
		}
	}
	word := dir + `(?:(?:` + strings.Join(plainNames, "|") + `)|(?:` + strings.Join(operandNames, "|") + `)(?:` + gap + `[-/][^\s\x00]*)*` + gap + `[^\s\x00-][^\s\x00]*)` + gap
	skipped := `(?:(?:` + flag + `|` + flagAndValue + `|` + plain + `)` + gap + `|` + assignment + `)*`
	return `\x00?(?:` + word + skipped + `(?:` + script + `)?|` + assignment + `)+`
}()

// The text of CommandRegexp around the names, which stand between these three
// parts, twice the same: as the program itself, and behind a wrapper.
var (
	// CommandRegexpHead is the first word: any path in command, in args one
	// that is clearly a path, for "sts/name" is an argument.
	CommandRegexpHead = `^(?:(?:(?:[^\x00=:]*/)?|\x00(?:[./$][^\x00=:]*/)?)(?:`
	// CommandRegexpMiddle ends the first word and begins the search behind a
	// wrapper.
	CommandRegexpMiddle = `)\x00|` + started + `(?:["']?` + dir + `|` + positional + `)(?:`
	// CommandRegexpTail is what may follow a program's name.
	CommandRegexpTail = `)[\s\x00"';&|<>\x60])`
)

// CommandRegexp returns the RE2 expression that matches the command lines (as
// CommandLine returns them) that start one of the named programs. The names
// are valid ones.
func CommandRegexp(names []string) string {
	words := alternatives(names, CommandReplacements)
	return CommandRegexpHead + words + CommandRegexpMiddle + words + CommandRegexpTail
}

// ExpansionLimit bounds the work of expanding references to variables: a line
// with more references times variables than this is expanded only if the line
// or a variable mentions a name that is looked for.
const ExpansionLimit = 400

// CommandLine returns the command line of a container with its $(VAR)
// references replaced as the kubelet replaces them, as far as admission can
// know: from literal values in the container's own env, the last of a name,
// whose own references are replaced once; "$$" is a literal "$"; a reference
// to anything else stays as it is. Nested deeper than that, or split over
// variables in a container with very many, a name is not seen.
func CommandLine(c *corev1.Container, names []string) string {
	var b strings.Builder
	for _, tokens := range [][]string{c.Command, c.Args} {
		b.WriteString(strings.Join(tokens, separator))
		b.WriteString(separator)
	}
	line := b.String()
	if !strings.Contains(line, "$(") || !worthExpanding(line, c.Env, names) {
		return line
	}
	return expand(line, func(name string) (string, bool) {
		value, ok := literal(c.Env, name)
		if !ok {
			return "", false
		}
		if strings.Contains(value, "$(") {
			value = expand(value, func(name string) (string, bool) { return literal(c.Env, name) })
		}
		return value, true
	})
}

func worthExpanding(line string, env []corev1.EnvVar, names []string) bool {
	if len(env)*strings.Count(line, "$(") <= ExpansionLimit || mentionsAny(line, names) {
		return true
	}
	for i := range env {
		if mentionsAny(env[i].Value, names) {
			return true
		}
	}
	return false
}

// literal returns the value of the last variable of that name, if admission
// can know it.
func literal(env []corev1.EnvVar, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if env[i].Name == name {
			return env[i].Value, env[i].ValueFrom == nil
		}
	}
	return "", false
}

// expand replaces each $(name) that lookup knows, and each "$$" by "$". It
// splits where the kubelet scans, because CEL can split and cannot scan; the
// two differ only for text such as "$(a$$b)" or "$(a $(b)", which names no
// variable.
func expand(s string, lookup func(name string) (string, bool)) string {
	segments := strings.Split(s, "$$")
	for i, segment := range segments {
		parts := strings.Split(segment, "$(")
		for j := 1; j < len(parts); j++ {
			name, rest, closed := strings.Cut(parts[j], ")")
			if closed && name != "" {
				if value, known := lookup(name); known {
					parts[j] = value + rest
					continue
				}
			}
			parts[j] = "$(" + parts[j]
		}
		segments[i] = strings.Join(parts, "")
	}
	return strings.Join(segments, "$")
}
