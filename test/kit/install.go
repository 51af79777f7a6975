package kit

import (
	"context"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/rest"
)

// ControllerNamespace and ControllerAccount are where the controller lives, and as
// whom, as its manifests say.
const (
	ControllerNamespace = "metacontroller"
	ControllerAccount   = "metacontroller"
)

// InstallController does what an administrator does before the controller starts:
// it applies its CRDs, its namespace and service account, and its rights.
func InstallController(ctx context.Context, config *rest.Config) error {
	root, err := Root()
	if err != nil {
		return err
	}
	for _, file := range []string{
		"crd/metacontroller.k8s.io_compositecontrollers.yaml",
		"crd/metacontroller.k8s.io_decoratorcontrollers.yaml",
		"crd/metacontroller.k8s.io_controllerrevisions.yaml",
		"controller/namespace.yaml",
		"rbac/controller.yaml",
		"rbac/lease.yaml",
		"rbac/managed.yaml",
	} {
		if _, err := ApplyFile(ctx, config, filepath.Join(root, "config", filepath.FromSlash(file))); err != nil {
			return err
		}
	}
	account := fmt.Sprintf("{apiVersion: v1, kind: ServiceAccount, metadata: {name: %s, namespace: %s}}", ControllerAccount, ControllerNamespace)
	_, err = ApplyYAML(ctx, config, []byte(account))
	return err
}
