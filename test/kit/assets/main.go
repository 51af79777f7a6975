// Command assets builds the programs of the control plane, and cert-manager, unless
// they are there already, and prints the folder that holds the former: a value for
// KUBEBUILDER_ASSETS.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/metacontroller-solo/solo/test/kit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	dir, err := kit.Assets(ctx, os.Stderr)
	if err == nil {
		_, err = kit.BuildCertManager(ctx, os.Stderr)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
