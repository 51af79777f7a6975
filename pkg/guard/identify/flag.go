package identify

import (
	"slices"
	"strings"
)

// sign is a set of flags by which a program gives itself away whatever its
// image and its binary are called: one flag of each group.
type sign [][]string

// signs are the signs of programs that match.commands can name. A flag that
// others have too is a sign only together with another. They are
// Metacontroller's flags of all its versions, searched for in the public code
// of others: the first group is nowhere else but in its forks, of the second
// sign either half alone is.
var signs = map[string][]sign{
	"metacontroller": {
		{{"target-label-selector", "apply-strategy-ssa-field-manager", "client-go-qps", "client-go-burst"}},
		{{"discovery-interval"}, {"cache-flush-interval", "events-qps", "events-burst", "zap-log-level", "zap-devel", "zap-encoder"}},
	},
}

// What stands before and after a flag's name: the start of a word, one dash or
// two (Go's package flag takes both), then a value or the end of the word.
const (
	flagRegexpHead = `[\s"']--?(?:`
	flagRegexpTail = `)[=\s"';&|]`
)

// FlagRegexps returns, for each sign of the named programs, the RE2 expressions
// that a command line (as CommandLine returns it) must all match to show it. It
// is empty for programs that nothing is known of.
func FlagRegexps(programs []string) [][]string {
	var all [][]string
	for _, p := range programs {
		for _, s := range signs[p] {
			all = append(all, s.regexps())
		}
	}
	return all
}

func (s sign) regexps() []string {
	out := make([]string, len(s))
	for i, group := range s {
		out[i] = flagRegexpHead + strings.Join(group, "|") + flagRegexpTail
	}
	return out
}

// FlagHint is an RE2 expression that matches every token of a command line that
// could be part of a sign of the programs, and few others; empty if they have no signs.
func FlagHint(programs []string) string {
	var first []string
	for _, p := range programs {
		for _, s := range signs[p] {
			first = append(first, s[0]...)
		}
	}
	if len(first) == 0 {
		return ""
	}
	slices.Sort(first)
	return "-(?:" + strings.Join(slices.Compact(first), "|") + ")"
}
