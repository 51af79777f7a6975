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
	"time"

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
	var product bool
	var lockWait time.Duration
	run := &cobra.Command{
		Use:   "run",
		Short: "Start the cluster, show the product, keep running until Ctrl-C",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			console := newConsole(os.Stdout)
			options := cluster.Options{Dir: dir, TLS: cluster.TLS(tls), LockWait: lockWait, Progress: console}
			if !product {
				return runEmpty(cmd.Context(), options, console)
			}
			return runUntilInterrupted(cmd.Context(), options, console)
		},
	}
	run.Flags().StringVar(&dir, "dir", ".run", "folder for data, certificates and logs; kept from run to run")
	run.Flags().BoolVar(&product, "product", true, "install the product and show it; without, the cluster is empty, to follow docs/install.md in")
	run.Flags().DurationVar(&lockWait, "lock-wait", 0, "how long to wait for another local cluster of this machine to end; 0 means a few seconds")

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
			console := newConsole(os.Stdout)
			return runDemo(cmd.Context(), cluster.Options{TLS: cluster.TLS(tls), Progress: console}, console)
		},
	}
	for _, command := range []*cobra.Command{run, demo} {
		command.Flags().StringVar(&tls, "tls", string(cluster.TLSLocal), "where the guard's certificate comes from: local, cert-manager or self-managed")
	}
	root.AddCommand(run, sample, demo)
	return root
}

// prepare starts the cluster, with the product and the demo's hook in it.
func prepare(ctx context.Context, options cluster.Options, console *console) (*demonstration, error) {
	started, err := cluster.Start(ctx, options)
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
func runUntilInterrupted(ctx context.Context, options cluster.Options, console *console) error {
	c, err := prepare(ctx, options, console)
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
	return untilInterrupted(ctx, c.Cluster, console)
}

// runEmpty is make run PRODUCT=false: a cluster to install the product in by hand.
func runEmpty(ctx context.Context, options cluster.Options, console *console) error {
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return err
	}
	defer c.Stop()
	if options.TLS == cluster.TLSCertManager {
		if err := c.StartCertManager(ctx); err != nil {
			return err
		}
	}
	console.emptiness(c.Kubeconfig())
	return untilInterrupted(ctx, c, console)
}

// untilInterrupted keeps a cluster running.
func untilInterrupted(ctx context.Context, c *cluster.Cluster, console *console) error {
	select {
	case <-ctx.Done():
		console.say("stopping")
		return nil
	case err := <-c.Failed():
		return fmt.Errorf("the control plane failed: %w", err)
	}
}

// runDemo is make demo.
func runDemo(ctx context.Context, options cluster.Options, console *console) error {
	c, err := prepare(ctx, options, console)
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
