// Program local runs a whole cluster on this machine, installs the product into
// it and shows what the product does.
//
//	main -> cluster (control plane, nodes, Services, the product) -> demo
//
// Everything listens on loopback, and everything ends with this program.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/metacontroller-solo/solo/test/local/cluster"
)

func main() {
	// The nodes' library logs through klog; what matters of it is in the Pods'
	// and the node's events.
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the program at once
	}()
	if err := command().ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "interrupted")
			os.Exit(130)
		}
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "local",
		Short:         "A cluster on this machine that shows what Metacontroller Solo does",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	var dir, tls string
	run := &cobra.Command{
		Use:   "run",
		Short: "Start the cluster, show the product, keep running until Ctrl-C",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runUntilInterrupted(cmd.Context(), dir, cluster.TLS(tls), newConsole(os.Stdout))
		},
	}
	run.Flags().StringVar(&dir, "dir", ".run", "folder for data, certificates and logs; kept from run to run")

	sample := &cobra.Command{
		Use:   "sample NAME...",
		Short: "Install samples of config/samples, with their examples, in the cluster that \"run\" runs",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			return installSamples(cmd.Context(), dir, names, newConsole(os.Stdout))
		},
	}
	sample.Flags().StringVar(&dir, "dir", ".run", "the folder that was given to \"run\"")

	demo := &cobra.Command{
		Use:   "demo",
		Short: "Start a throwaway cluster, check every step of the demo, stop",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDemo(cmd.Context(), cluster.TLS(tls), newConsole(os.Stdout))
		},
	}
	for _, command := range []*cobra.Command{run, demo} {
		command.Flags().StringVar(&tls, "tls", string(cluster.TLSLocal), "where the guard's certificate comes from: local, cert-manager or self-managed")
	}
	root.AddCommand(run, sample, demo)
	return root
}

// prepare starts the cluster, with the product and the demo's hook in it.
func prepare(ctx context.Context, dir string, tls cluster.TLS, console *console) (*demonstration, error) {
	started, err := cluster.Start(ctx, cluster.Options{Dir: dir, TLS: tls, Progress: console})
	if err != nil {
		return nil, err
	}
	c := &demonstration{Cluster: started, console: console}
	if err := c.Install(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	if err := c.installHook(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// runUntilInterrupted is make run.
func runUntilInterrupted(ctx context.Context, dir string, tls cluster.TLS, console *console) error {
	c, err := prepare(ctx, dir, tls, console)
	if err != nil {
		return err
	}
	defer c.Stop()
	demoErr := demo(ctx, c)
	if ctx.Err() != nil {
		return nil
	}
	if demoErr != nil {
		console.failure(demoErr)
	}
	console.invitation(c.Kubeconfig())
	select {
	case <-ctx.Done():
		console.say("stopping")
		return nil
	case err := <-c.Failed():
		return fmt.Errorf("the control plane failed: %w", err)
	}
}

// runDemo is make demo.
func runDemo(ctx context.Context, tls cluster.TLS, console *console) error {
	c, err := prepare(ctx, "", tls, console)
	if err != nil {
		return err
	}
	defer c.Stop()
	if err := demo(ctx, c); err != nil {
		return err
	}
	console.success()
	return nil
}

// installSamples is make sample.
func installSamples(ctx context.Context, dir string, names []string, console *console) error {
	c, err := cluster.Connect(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		console.say("installing %s", cluster.SampleFolder(name))
		if err := c.InstallSample(ctx, name); err != nil {
			return fmt.Errorf("cannot install sample %q: %w", name, err)
		}
		example := cluster.SampleFolder(name) + "/example.yaml"
		console.say("applying %s", example)
		if _, err := console.show(ctx, c.Kubectl, "apply", "-f", example); err != nil {
			return err
		}
	}
	return nil
}
