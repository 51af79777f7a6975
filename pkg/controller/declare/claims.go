package declare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Finalizer is the one that the parents of a controller carry.
func Finalizer(kind, name string) string {
	return engine.FinalizerDomain + strings.ToLower(kind) + "-" + name
}

// Claims says where the controller that an object declares may have left its
// finalizer. It needs nothing of the object to be right but the names of the
// parents, and leaves out kinds that the API server does not serve.
func (t *Tools) Claims(ctx context.Context, declared *object.Object) (engine.Claims, error) {
	var parents struct {
		Spec struct {
			ParentResource v1alpha1.ResourceRule   `json:"parentResource"`
			Resources      []v1alpha1.ResourceRule `json:"resources"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(declared.Bytes(), &parents); err != nil {
		return engine.Claims{}, fmt.Errorf("cannot read %q: %w", declared, err)
	}
	claims := engine.Claims{Finalizer: Finalizer(declared.Kind(), declared.Name())}
	var errs []error
	for _, rule := range append(parents.Spec.Resources, parents.Spec.ParentResource) {
		if rule.Resource == "" {
			continue
		}
		switch found, absent, err := t.Lookup(ctx, rule.APIVersion, rule.Resource); {
		case absent:
		case err != nil:
			errs = append(errs, err)
		default:
			claims.Parents = append(claims.Parents, found.Kind)
		}
	}
	return claims, errors.Join(errs...)
}
