package sandbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Program is what an image stands for on the host.
type Program struct {
	// Path is the local binary, Args go before the container's own.
	Path string
	Args []string
	// Entrypoints are paths in the image that name the program, for containers that set a command, such as "/usr/bin/metacontroller".
	// A command that starts with anything else is a program of the host.
	Entrypoints []string
}

// Images are the programs by image repository, such as "ghcr.io/metacontroller/metacontroller". Tags and digests do not matter.
type Images map[string]Program

// normal checks the repositories and returns the table with each under its full name.
func (i Images) normal() (Images, error) {
	out := Images{}
	for key, program := range i {
		repository, err := name.NewRepository(key)
		if err != nil {
			return nil, fmt.Errorf("cannot use %q as an image repository: %w", key, err)
		}
		out[repository.Name()] = program
	}
	return out, nil
}

// find returns the program of an image. The table is a normal one.
func (i Images) find(image string) (Program, error) {
	reference, err := name.ParseReference(image)
	if err != nil {
		return Program{}, fmt.Errorf("cannot parse image name %q: %w", image, err)
	}
	program, ok := i[reference.Context().Name()]
	if !ok {
		return Program{}, fmt.Errorf("cannot pull image %q: this node runs host processes and knows no local program for repository %q, only for %s",
			image, reference.Context().Name(), strings.Join(slices.Sorted(maps.Keys(i)), ", "))
	}
	return program, nil
}

// command is the program and arguments for a container's own command and args.
func (p Program) command(command, args []string) (string, []string) {
	switch {
	case len(command) == 0:
		return p.Path, slices.Concat(p.Args, args)
	case slices.Contains(p.Entrypoints, command[0]):
		return p.Path, slices.Concat(p.Args, command[1:], args)
	}
	return command[0], slices.Concat(command[1:], args)
}
