package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
	"github.com/metacontroller-solo/solo/test/node"
)

// cluster is everything that runs: the control plane, the nodes, the Services.
type cluster struct {
	console *console
	plane   *kit.ControlPlane
	kubectl *kubectl
	// root is the repository's root, where manifests and programs are.
	root string
	// stops end the parts, last started first.
	stops []func()
}

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
}

// lockWait gives the processes of a run that was killed the time to disappear.
const lockWait = 3 * time.Second

// nodes are the names of the nodes; two, so that the guard's replicas are apart.
var nodes = []string{"local-a", "local-b"}

// startCluster starts the control plane and the nodes. An empty dir means a
// throwaway cluster. On an error nothing is left running.
func startCluster(ctx context.Context, dir string, console *console) (_ *cluster, err error) {
	root, err := kit.Root()
	if err != nil {
		return nil, err
	}
	c := &cluster{console: console, root: root}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	// kubectl first: a missing one should not cost the person ten minutes.
	if c.kubectl, err = newKubectl("", console); err != nil {
		return nil, err
	}
	c.kubectl.dir = root

	if err := c.lock(ctx); err != nil {
		return nil, err
	}

	options := kit.Options{Persistent: dir != "", Log: console}
	if dir != "" {
		if options.Dir, err = filepath.Abs(filepath.Join(dir, "controlplane")); err != nil {
			return nil, fmt.Errorf("cannot use folder %q: %w", dir, err)
		}
	}
	console.say("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler")
	if c.plane, err = kit.Start(ctx, options); err != nil {
		return nil, err
	}
	c.stops = append(c.stops, c.plane.Stop)
	c.kubectl.kubeconfig = c.kubeconfig()
	console.say("the API server listens on %s", c.plane.URL(0))

	console.say("building controller, guard and the demo's hook (a minute or two the first time)")
	images, err := c.buildPrograms(ctx)
	if err != nil {
		return nil, err
	}
	for place := range nodes {
		if err := c.startNode(ctx, place, images); err != nil {
			return nil, err
		}
	}
	console.say("nodes %s are up; their containers are processes of this machine", strings.Join(nodes, " and "))
	return c, c.startServices(ctx)
}

// lock makes sure that one local cluster runs on this machine, since each uses
// the same loopback addresses for its nodes, Pods and Services.
func (c *cluster) lock(ctx context.Context) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("cannot find a folder for the lock: %w", err)
	}
	path := filepath.Join(cache, "metacontroller-solo", "local.lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot create the lock's folder: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
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

// kubeconfig is the path of the administrator's kubeconfig.
func (c *cluster) kubeconfig() string { return c.plane.Kubeconfig(0) }

// dir is where the parts other than the control plane keep their data.
func (c *cluster) dir(elements ...string) string {
	return filepath.Join(append([]string{c.plane.Dir()}, elements...)...)
}

// buildPrograms builds what the nodes run and returns the image table.
func (c *cluster) buildPrograms(ctx context.Context) (node.Images, error) {
	images := node.Images{}
	bin := c.dir("bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, fmt.Errorf("cannot create folder %q: %w", bin, err)
	}
	for _, program := range programs {
		path := filepath.Join(bin, filepath.Base(program.pkg))
		build := exec.CommandContext(ctx, "go", "build", "-o", path, program.pkg)
		build.Dir = c.root
		if output, err := build.CombinedOutput(); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("cannot build %s: %w\n%s", program.pkg, err, output)
		}
		for _, image := range program.images {
			images[image] = node.Program{Path: path, Entrypoints: program.entrypoints}
		}
	}
	return images, nil
}

// stop ends everything, last started first, and returns when it is gone.
func (c *cluster) stop() {
	for len(c.stops) > 0 {
		last := len(c.stops) - 1
		c.stops[last]()
		c.stops = c.stops[:last]
	}
}
