// Package cluster is a whole cluster on this machine with the product installed
// in it: a real control plane (test/kit), nodes whose containers are host processes
// (test/node), the guard as a Deployment, the controller as a StatefulSet of one.
// make run and the end-to-end tests use it alike.
//
//	Start ─> control plane, programs, nodes, Services ─> Install ─> Kubectl, Apply, Eventually
//
// Everything listens on loopback, and everything ends with Stop.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
	"github.com/metacontroller-solo/solo/test/node"
)

// Options say what to start. The zero value is a throwaway cluster that says
// nothing.
type Options struct {
	// Dir keeps the data from run to run; empty means a throwaway cluster.
	Dir string
	// Place tells clusters apart that run at the same time on one machine: their
	// nodes and Pods have other loopback addresses. It is one of the constants.
	Place Place
	// TLS is where the guard's certificate comes from; empty means TLSLocal.
	TLS TLS
	// LockWait is how long to wait for another cluster of this place to end; 0
	// gives the processes of one that was killed the time to disappear.
	LockWait time.Duration
	// Node is the path of a Node.js to run the samples with; empty means the
	// program that stands for it.
	Node string
	// AuditPolicyFile is the API server's audit policy; empty means no audit log.
	AuditPolicyFile string
	// Progress receives a line about each thing worth knowing; nil discards.
	Progress io.Writer
}

// Place is a share of the loopback addresses.
type Place struct {
	// name is that of the lock: one cluster for each place runs on a machine.
	name string
	// number chooses the addresses.
	number byte
}

// The places that there are.
var (
	// Person is for the cluster that a person started.
	Person = Place{"local", 0}
	// Test is for that of the end-to-end tests.
	Test = Place{"e2e", 1}
	// Monitoring is for that of the monitoring tests, Migrate for that of the moves
	// from the public Metacontroller.
	Monitoring = Place{"monitoring", 3}
	Migrate    = Place{"migrate", 4}
	// Chart is for that of the chart's tests.
	Chart = Place{"chart", 2}
)

// Cluster is everything that runs: the control plane, the nodes, the Services.
type Cluster struct {
	// Kubectl talks to the cluster as its administrator, and runs in Root.
	Kubectl *Kubectl
	// Root is the repository's root, where manifests and programs are.
	Root string

	options Options
	config  *rest.Config
	// plane is nil when another process runs the cluster.
	plane *kit.ControlPlane
	// stops end the parts, last started first.
	stops []func()
}

// nodeImage is that of Node.js.
const nodeImage = "docker.io/library/node"

// programs maps a program of this repository to the image repositories that
// mean it on the local nodes. The public image stands for our controller, so
// that a Pod of it would really start, were it ever admitted.
var programs = []struct {
	pkg    string
	images []string
	// entrypoints are paths in the image that mean the program.
	entrypoints []string
}{
	{"./cmd/controller", []string{"ghcr.io/metacontroller-solo/controller", "ghcr.io/metacontroller/metacontroller"}, []string{"/usr/bin/metacontroller"}},
	{"./cmd/guard", []string{"ghcr.io/metacontroller-solo/guard"}, nil},
	{"./test/local/hook", []string{"docker.io/local/greeting-hook"}, nil},
	{"./test/javascript/node", []string{nodeImage}, []string{"node"}},
}

// planeDir is the control plane's folder within that of a cluster that is kept.
const planeDir = "controlplane"

// lockWait gives the processes of a run that was killed the time to disappear.
const lockWait = 3 * time.Second

// nodes are the names of the nodes; two, so that the guard's replicas are apart.
var nodes = []string{"local-a", "local-b"}

// Start starts the control plane and the nodes. On an error nothing is left
// running. ctx bounds the start alone.
func Start(ctx context.Context, options Options) (_ *Cluster, err error) {
	root, err := kit.Root()
	if err != nil {
		return nil, err
	}
	if options.Place == (Place{}) {
		options.Place = Person
	}
	if options.TLS == "" {
		options.TLS = TLSLocal
	}
	if err := options.TLS.check(); err != nil {
		return nil, err
	}
	if options.LockWait == 0 {
		options.LockWait = lockWait
	}
	if options.Progress == nil {
		options.Progress = io.Discard
	}
	c := &Cluster{options: options, Root: root}
	defer func() {
		if err != nil {
			c.Stop()
		}
	}()
	// kubectl first: a missing one should not cost the person ten minutes.
	if c.Kubectl, err = newKubectl(root); err != nil {
		return nil, err
	}
	if err := c.lock(ctx); err != nil {
		return nil, err
	}

	plane := kit.Options{Persistent: options.Dir != "", AuditPolicyFile: options.AuditPolicyFile, Log: options.Progress}
	if options.Dir != "" {
		if plane.Dir, err = filepath.Abs(filepath.Join(options.Dir, planeDir)); err != nil {
			return nil, fmt.Errorf("cannot use folder %q: %w", options.Dir, err)
		}
	}
	c.say("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler")
	if c.plane, err = kit.Start(ctx, plane); err != nil {
		return nil, err
	}
	c.stops = append(c.stops, c.plane.Stop)
	c.Kubectl.kubeconfig, c.config = c.plane.Kubeconfig(0), c.plane.AdminConfig(0)
	c.say("the API server listens on %s", c.plane.URL(0))

	c.say("building controller, guard and what else the nodes run (a minute or two the first time)")
	images, err := c.buildPrograms(ctx)
	if err != nil {
		return nil, err
	}
	for place := range nodes {
		if err := c.startNode(ctx, place, images); err != nil {
			return nil, err
		}
	}
	c.say("nodes %s are up; their containers are processes of this machine", strings.Join(nodes, " and "))
	return c, c.startServices(ctx)
}

// connectTimeout is how long the API server of a cluster that runs may take to
// take a connection.
const connectTimeout = 5 * time.Second

// Connect returns the cluster that another process runs with its data in dir.
// Stop does nothing to it.
func Connect(dir string) (*Cluster, error) {
	root, err := kit.Root()
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: Options{Dir: dir, Progress: io.Discard}, Root: root}
	if c.Kubectl, err = newKubectl(root); err != nil {
		return nil, err
	}
	path, err := filepath.Abs(kit.KubeconfigIn(filepath.Join(dir, planeDir), 0))
	if err != nil {
		return nil, fmt.Errorf("cannot use folder %q: %w", dir, err)
	}
	c.Kubectl.kubeconfig = path
	if c.config, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
		return nil, fmt.Errorf("cannot find a cluster in folder %q; start one with \"make run\" first: %w", dir, err)
	}
	// The data of a cluster that was stopped stays.
	connection, err := net.DialTimeout("tcp", strings.TrimPrefix(c.config.Host, "https://"), connectTimeout)
	if err != nil {
		return nil, fmt.Errorf("the cluster in folder %q does not run; start it with \"make run\" first: %w", dir, err)
	}
	return c, connection.Close()
}

// say reports progress.
func (c *Cluster) say(format string, args ...any) {
	_, _ = fmt.Fprintf(c.options.Progress, format+"\n", args...)
}

// lock makes sure that one cluster of a place runs on this machine, since each uses
// the same loopback addresses for its nodes and Pods.
func (c *Cluster) lock(ctx context.Context) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("cannot find a folder for the lock: %w", err)
	}
	path := filepath.Join(cache, "metacontroller-solo", c.options.Place.name+".lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot create the lock's folder: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.LockWait)
	defer cancel()
	lock, err := process.Acquire(ctx, path)
	var locked *process.LockedError
	if errors.As(err, &locked) {
		return fmt.Errorf("a local cluster runs on this machine already; stop it first (Ctrl-C, or SIGTERM to its process): %w", err)
	}
	if err != nil {
		return err
	}
	c.stops = append(c.stops, lock.Release)
	return nil
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.Kubectl.kubeconfig }

// Config reaches the API server as its administrator.
func (c *Cluster) Config() *rest.Config { return c.config }

// AuditLog is the path of the API server's audit log, a JSON event per line.
func (c *Cluster) AuditLog() string { return c.plane.AuditLog(0) }

// Failed yields the error of a control plane that ended by itself.
func (c *Cluster) Failed() <-chan error { return c.plane.Failed() }

// dir is where the parts other than the control plane keep their data.
func (c *Cluster) dir(elements ...string) string {
	return filepath.Join(append([]string{c.plane.Dir()}, elements...)...)
}

// buildPrograms builds what the nodes run and returns the image table.
func (c *Cluster) buildPrograms(ctx context.Context) (node.Images, error) {
	images := node.Images{}
	bin := c.dir("bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, fmt.Errorf("cannot create folder %q: %w", bin, err)
	}
	for _, program := range programs {
		path := filepath.Join(bin, filepath.Base(program.pkg))
		if err := kit.BuildTo(ctx, program.pkg, path); err != nil {
			return nil, err
		}
		for _, image := range program.images {
			images[image] = node.Program{Path: path, Entrypoints: program.entrypoints}
		}
	}
	if c.options.Node != "" {
		images[nodeImage] = node.Program{Path: c.options.Node, Entrypoints: []string{"node"}}
	}
	return images, nil
}

// Stop ends everything, last started first, and returns when it is gone.
func (c *Cluster) Stop() {
	for len(c.stops) > 0 {
		last := len(c.stops) - 1
		c.stops[last]()
		c.stops = c.stops[:last]
	}
}
