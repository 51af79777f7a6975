// The controller runs the controllers that CompositeControllers and
// DecoratorControllers declare. It is a drop-in for the public Metacontroller.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/metacontroller-solo/solo/cmd/controller/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(app.Main(ctx, os.Args[1:], app.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
