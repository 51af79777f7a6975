package identify

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A command line is one string: the tokens of command, then the tokens of
// args, each ended by the separator. With no command the line begins with the
// separator: the image's own entrypoint, which nobody here can know, comes
// first. The separator is a blank to the expressions below, so that one blank
// stands for the end of a word and of a token; nobody writes a form feed into a
// command.
const separator = "\f"

// takes says what stands between a wrapper and the program that it starts.
type takes int

const (
	// takesOptions is options, numbers and NAME=value.
	takesOptions takes = iota
	// takesOperand is an argument of its own besides, before them or after some:
	// a user, a directory, a file, a verb.
	takesOperand
	// takesAll is whatever there is, up to a "--".
	takesAll
)

// wrapper is a program, or a word of the shell, that starts another program
// named among its arguments.
type wrapper struct {
	// name is its base name, as RE2 expression.
	name  string
	takes takes
}

// wrappers is the one table of them. A program that is not in it hides what
// it starts; then only the image tells, or the flags.
var wrappers = []wrapper{
	// Shells, whose -c takes a script.
	{name: "sh"}, {name: "bash"}, {name: "ash"}, {name: "dash"}, {name: "zsh"}, {name: "ksh"},
	{name: "busybox"}, {name: "toybox"},
	// Init programs for containers, and the scripts that images start with.
	{name: "tini"}, {name: "tini-static"}, {name: "dumb-init"}, {name: "catatonit"}, {name: "pid1"}, {name: "init"},
	{name: "entrypoint"}, {name: "entrypoint[.]sh"}, {name: "docker-entrypoint[.]sh"}, {name: "launcher"},
	{name: "vault-env"}, {name: "scuttle"}, {name: "kubexit"}, {name: "with-contenv"}, {name: "my_init"},
	// Programs that change how, or as whom, another one runs.
	{name: "env"}, {name: "nohup"}, {name: "time"}, {name: "timeout"}, {name: "nice"}, {name: "ionice"},
	{name: "chrt"}, {name: "taskset"}, {name: "setsid"}, {name: "stdbuf"}, {name: "setpriv"}, {name: "prlimit"},
	{name: "unshare"}, {name: "nsenter"}, {name: "numactl"}, {name: "cpulimit"}, {name: "softlimit"}, {name: "unbuffer"},
	{name: "sudo"}, {name: "doas"}, {name: "chpst"}, {name: "xargs"}, {name: "start-stop-daemon"},
	{name: "ld-[a-z]+[\\w.-]*"}, {name: "qemu-[a-z0-9_]+(?:-static)?"},
	{name: "su", takes: takesOperand}, {name: "su-exec", takes: takesOperand}, {name: "gosu", takes: takesOperand},
	{name: "runuser", takes: takesOperand}, {name: "chroot", takes: takesOperand}, {name: "flock", takes: takesOperand},
	{name: "setuidgid", takes: takesOperand}, {name: "s6-setuidgid", takes: takesOperand}, {name: "setarch", takes: takesOperand},
	// Debuggers and tracers.
	{name: "strace"}, {name: "ltrace"}, {name: "valgrind"}, {name: "dlv"}, {name: "gdb"},
	{name: "gdbserver", takes: takesOperand}, {name: "perf", takes: takesOperand}, {name: "rr", takes: takesOperand},
	// Programs that fetch secrets, or wait, first.
	{name: "wait-for(?:-it)?(?:[.]sh)?", takes: takesAll}, {name: "doppler", takes: takesAll},
	{name: "chamber", takes: takesAll}, {name: "aws-vault", takes: takesAll}, {name: "infisical", takes: takesAll},
	// Words of the shell that a command may follow.
	{name: "exec"}, {name: "eval"}, {name: "if"}, {name: "then"}, {name: "elif"}, {name: "else"},
	{name: "while"}, {name: "until"}, {name: "do"}, {name: "!"}, {name: "[{]"},
}

// The pieces of the expression. In a script words are parted by blanks, in a
// list of arguments by the separator; \s stands for both. The API server counts
// the characters of the expression, so they are few.
const (
	// dir is the directory part of a program's path. "=" and ":" keep values
	// of variables and URLs out.
	dir = `(?:[^\s"'=:<>]*/)?`
	// flag is an option that takes no value in the next word: the letters that
	// always do (a user, a file, a directory, a name) may not end it.
	flag = `-(?:-\S*|\S*[^\suUoCa])?`
	// flagAndValue is an option with its value in the next word.
	flagAndValue = `(?:-\w*[oC]\s+[^\s-]\S*|(?:-\w*[uUgGa]|--[\w-]+)\s+[\w:,+][\w:,+-]*)`
	// plain is an operand in digits or capitals: 10s, TERM, 0x3, an
	// environment variable's name.
	plain = `[0-9A-Z][\w.:,+-]*`
	// assignment is NAME=value before a command. A whole argument may have
	// blanks in its value.
	assignment = `\w+=(?:(?:"[^"\f]*"|'[^'\f]*'|[^\s"';&|])*\s+|[^\f\n;&|]*\f)`
	// blank is what may stand before a command within a token.
	blank = `[^\S\f]`
	// newCommand is where, in a script, another command begins.
	newCommand = `[;&|(\n\x60]`
	// lexed is script text in which quotes are closed and comments end with
	// their line, so that neither what is quoted nor what is commented is ever
	// taken for a command. A "#" within a word begins no comment, and a comment
	// may have a lone quote. There is no "<<" in it: see hereDocument.
	lexed = `(?:[^"'\\\f#<]|<[^"'\\\f#<]|[^\s"'\\;&|()<>#]#+|\\[^\f]|"(?:[^"\\\f]|\\[^\f])*"|'[^'\f]*'|` + comment + `)*`
	// comment ends with its line, and a command may follow.
	comment = `#[^\n\f]*\n`
	// hereDocument leads to a command behind a here document: a line of it may
	// begin with any word, so there only what follows "exec" counts.
	hereDocument = `[^\f]*<<[^\f]*\n` + blank + `*exec\s`
	// script leads to the start of any command of a script after -c. Within a
	// script the script of a second shell is quoted.
	script = `-\w*c(?:\f(?:-[^\f]*\f)*(?:` + lexed + `(?:` + newCommand + `|` + comment + `)|` + hereDocument + `)?|` + blank + `+["'](?:[^\f]*` + newCommand + `)?)` + blank + `*`
	// positional is a script's command that comes from the words after it:
	// "$@", $0, ${1}.
	positional = `["']?\$[{]?[@*01][^\f]*\f(?:[^\f]*\f)?(?:[^\f=:]*/)?`
)

// started is what stands before a program's name where a wrapper starts it.
var started = func() string {
	names := map[takes][]string{}
	for _, w := range wrappers {
		names[w.takes] = append(names[w.takes], w.name)
	}
	oneOf := func(t takes) string { return `(?:` + strings.Join(names[t], "|") + `)` }
	word := dir + `(?:` + oneOf(takesOptions) +
		`|` + oneOf(takesOperand) + `(?:\s+-(?:s\s+/\S*|\S*))*\s+[^\s-]\S*` +
		`|` + oneOf(takesAll) + `(?:\s+[^\s;&|]+)*\s--)\s+`
	skipped := `(?:(?:` + flag + `|` + flagAndValue + `|` + plain + `)\s+|` + assignment + `)*`
	return `\f?(?:` + word + skipped + `(?:` + script + `)?|` + assignment + `)+`
}()

// The text of CommandRegexp around the names, which stand between these three
// parts, twice the same: as the program itself, and behind a wrapper.
var (
	// CommandRegexpHead is the first word: any path in command, in args one
	// that is clearly a path, for "sts/name" is an argument.
	CommandRegexpHead = `^(?:(?:(?:[^\f=:]*/)?|\f(?:[./$][^\f=:]*/)?)(?:`
	// CommandRegexpMiddle ends the first word and begins the search behind a
	// wrapper.
	CommandRegexpMiddle = `)\f|` + started + `(?:["']?` + dir + `|` + positional + `)(?:`
	// CommandRegexpTail is what may follow a program's name.
	CommandRegexpTail = `)[\s"';&|<>\x60])`
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
// whose own references to variables that stand before it are replaced once;
// "$$" is a literal "$"; a reference to anything else (a later variable, one
// from a source, one of envFrom, none) stays as it is. Nested deeper than
// that, or split over variables in a container with very many, a name is not
// seen.
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
		i, ok := literal(c.Env, name)
		if !ok {
			return "", false
		}
		value := c.Env[i].Value
		if strings.Contains(value, "$(") {
			value = expand(value, func(name string) (string, bool) {
				before, ok := literal(c.Env[:i], name)
				if !ok {
					return "", false
				}
				return c.Env[before].Value, true
			})
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

// literal returns where the last variable of that name is, if admission can
// know its value.
func literal(env []corev1.EnvVar, name string) (int, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if env[i].Name == name {
			return i, env[i].ValueFrom == nil
		}
	}
	return 0, false
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
