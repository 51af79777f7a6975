package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/test/bench/tally"
	"github.com/metacontroller-solo/solo/test/bench/workload"
	"github.com/metacontroller-solo/solo/test/kit"
)

// subjectAccount is the service account of what is measured, in the first
// namespace of a run.
const subjectAccount = "subject"

// manifests is the folder of the lab's manifests, below the repository's root.
const manifests = "test/bench/manifests"

// lab is a control plane with the kinds and the rights that the runs need. There
// is no kube-controller-manager: its garbage collector would watch every child,
// beside what is measured.
type lab struct {
	api
	plane  *kit.ControlPlane
	config *rest.Config
}

// planeOptions are those of the control plane of a lab.
func planeOptions(progress io.Writer) (kit.Options, error) {
	root, err := kit.Root()
	return kit.Options{
		WithoutControllers: true,
		AuditPolicyFile:    filepath.Join(root, manifests, "audit-policy.yaml"),
		// In MiB: the log is one file, however long it gets.
		APIServerArgs: []string{"--audit-log-maxsize=65536"},
		Log:           progress,
	}, err
}

// startLab starts a throwaway control plane, which stop ends.
func startLab(ctx context.Context, progress io.Writer) (l *lab, stop func(), err error) {
	options, err := planeOptions(progress)
	if err != nil {
		return nil, nil, err
	}
	plane, err := kit.Start(ctx, options)
	if err != nil {
		return nil, nil, err
	}
	if l, err = newLab(ctx, plane); err != nil {
		plane.Stop()
		return nil, nil, err
	}
	return l, plane.Stop, nil
}

// newLab makes a lab of a control plane.
func newLab(ctx context.Context, plane *kit.ControlPlane) (*lab, error) {
	root, err := kit.Root()
	if err != nil {
		return nil, err
	}
	l := &lab{plane: plane, config: plane.AdminConfig(0)}
	return l, l.install(ctx, root)
}

func (l *lab) install(ctx context.Context, root string) (err error) {
	if l.api, err = newAPI(l.config); err != nil {
		return err
	}
	config := filepath.Join(root, "config")
	for _, file := range []string{
		filepath.Join(config, "crd", "metacontroller.k8s.io_compositecontrollers.yaml"),
		filepath.Join(config, "crd", "metacontroller.k8s.io_decoratorcontrollers.yaml"),
		filepath.Join(config, "crd", "metacontroller.k8s.io_controllerrevisions.yaml"),
		filepath.Join(config, "controller", "namespace.yaml"),
		filepath.Join(config, "rbac", "controller.yaml"),
		filepath.Join(root, manifests, "things.yaml"),
	} {
		if _, err := kit.ApplyFile(ctx, l.config, file); err != nil {
			return err
		}
	}
	return nil
}

// version is that of the API server.
func (l *lab) version() (string, error) {
	client, err := discovery.NewDiscoveryClientForConfig(l.config)
	if err != nil {
		return "", fmt.Errorf("cannot make a client: %w", err)
	}
	version, err := client.ServerVersion()
	if err != nil {
		return "", fmt.Errorf("cannot ask the API server for its version: %w", err)
	}
	return version.GitVersion, nil
}

// corner is a run's part of a lab.
type corner struct {
	// dir is for files, kubeconfig is the subject's.
	dir, kubeconfig string
	// audit has the subject's requests.
	audit *tally.Log
}

// openCorner makes a run's namespaces, and an account for its subject.
func (l *lab) openCorner(ctx context.Context, plan workload.Plan) (_ *corner, err error) {
	c := &corner{}
	if c.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, fmt.Errorf("cannot make a folder for a run: %w", err)
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	for n := range plan.Namespaces {
		namespace := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": workload.Meta{Name: plan.Namespace(n)}}
		if err := l.create(ctx, "/api/v1/namespaces", namespace, nil); err != nil {
			return nil, err
		}
	}
	home := plan.Namespace(0)
	account := fmt.Appendf(nil, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s, namespace: %[2]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[2]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: bench}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: %[2]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[2]s-metacontroller}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: metacontroller}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: %[2]s}]
`, subjectAccount, home)
	if _, err := kit.ApplyYAML(ctx, l.config, account); err != nil {
		return nil, err
	}
	config, err := l.plane.TokenConfig(ctx, home, subjectAccount)
	if err != nil {
		return nil, err
	}
	c.kubeconfig = filepath.Join(c.dir, "kubeconfig")
	if err := kit.WriteKubeconfig(c.kubeconfig, config); err != nil {
		return nil, err
	}
	c.audit = &tally.Log{Path: l.plane.AuditLog(0), User: "system:serviceaccount:" + home + ":" + subjectAccount}
	return c, nil
}

// close removes the files; the objects go with the control plane.
func (c *corner) close() { _ = os.RemoveAll(c.dir) }
