// Program node stands for Node.js in containers of the local cluster:
//
//	node FILE [ARGUMENT...]
//	node -e CODE [ARGUMENT...]
//
// See package javascript for what it can run.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/metacontroller-solo/solo/test/javascript"
)

func main() {
	options, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	options.Env, options.Signals = environ(), signals
	options.Stdout, options.Stderr = os.Stdout, os.Stderr
	code, err := javascript.Run(context.Background(), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func parse(args []string) (javascript.Options, error) {
	switch {
	case len(args) >= 2 && args[0] == "-e":
		return javascript.Options{Code: args[1], Args: args[2:]}, nil
	case len(args) >= 1 && !strings.HasPrefix(args[0], "-"):
		return javascript.Options{File: args[0], Args: args[1:]}, nil
	}
	return javascript.Options{}, fmt.Errorf("usage: node FILE | node -e CODE; the arguments are %q", args)
}

func environ() map[string]string {
	variables := map[string]string{}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		variables[name] = value
	}
	return variables
}
