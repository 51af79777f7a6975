// The guard makes "at most one Metacontroller is active" a rule of the cluster.
package main

import (
	"os"

	"github.com/metacontroller-solo/solo/cmd/guard/app"
)

func main() {
	os.Exit(app.Main(os.Args, app.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
