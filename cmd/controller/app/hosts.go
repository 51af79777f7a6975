package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/cluster"
	"github.com/metacontroller-solo/solo/pkg/controller/composite"
	"github.com/metacontroller-solo/solo/pkg/controller/declare"
	"github.com/metacontroller-solo/solo/pkg/controller/decorator"
	resources "github.com/metacontroller-solo/solo/pkg/controller/discovery"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/call"
	"github.com/metacontroller-solo/solo/pkg/controller/syncer"
	"github.com/metacontroller-solo/solo/pkg/controller/watch"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// hostParts are what hosts are made of.
type hostParts struct {
	config *Config
	caches *watch.Set
	table  *resources.Resources
	// definitions are the CRDs, their metadata alone.
	definitions *watch.Cache
	kinds       map[string]object.Kind
	writer      *cluster.Writer
	events      *cluster.Recorder
	// retire is engine.HostConfig.Retire.
	retire func(queue string)
	log    logr.Logger
}

// hostsOf makes a host for each kind of object that declares controllers.
func hostsOf(parts hostParts) []*engine.Host {
	// One copy of a kind is for parents and children alike.
	options := watch.Options{FieldManager: parts.config.fieldManager()}
	var tools declare.Tools
	host := func(name, resource string, build engine.Build) *engine.Host {
		return engine.NewHost(engine.HostConfig{
			Kind:     parts.kinds[resource],
			Claims:   tools.Claims,
			API:      parts.writer,
			Name:     name,
			Declared: parts.caches.Acquire(parts.kinds[resource], watch.Options{LabelSelector: parts.config.Selector.String()}),
			Open:     func(kind object.Kind) engine.Cache { return parts.caches.Acquire(kind, options) },
			Lookup:   parts.lookupRelated,
			Build:    build,
			Workers:  parts.config.Workers,
			Retire:   parts.retire,
			Events:   parts.events,
			Log:      parts.log,
		})
	}
	pool := call.NewPool(ctrlmetrics.Registry, sources{parts.caches}, clock.RealClock{})
	tools = declare.Tools{
		Lookup:       parts.lookup,
		StatusField:  parts.statusField,
		Caller:       func(webhook declare.Webhook) (syncer.Caller, error) { return callerOf(pool, webhook) },
		Writer:       parts.writer,
		Events:       parts.events,
		Clock:        clock.RealClock{},
		Log:          parts.log,
		Namespace:    parts.config.Namespace,
		ResyncPeriod: parts.config.CacheFlushInterval,
	}
	composites := &composite.Builder{Tools: tools}
	decorators := &decorator.Builder{Tools: tools}
	return []*engine.Host{
		host(compositeHost, v1alpha1.CompositeControllerResource, composites.Build),
		host(decoratorHost, v1alpha1.DecoratorControllerResource, decorators.Build),
	}
}

func callerOf(pool *call.Pool, webhook declare.Webhook) (syncer.Caller, error) {
	caller, err := pool.Caller(call.Identity{
		Hook: webhook.Which.String(), ControllerKind: webhook.Kind, ControllerName: webhook.Name,
	}, webhook.Webhook, webhook.Endpoints)
	if err != nil {
		// A nil *call.Caller would be a Caller.
		return nil, err
	}
	return caller, nil
}

func (p hostParts) lookupRelated(ctx context.Context, apiVersion, resource string) (object.Kind, bool, error) {
	found, absent, err := p.lookup(ctx, apiVersion, resource)
	return found.Kind, absent, err
}

func (p hostParts) lookup(ctx context.Context, apiVersion, resource string) (declare.Resource, bool, error) {
	found, err := p.table.Lookup(ctx, apiVersion, resource)
	if unknown := (*resources.UnavailableError)(nil); errors.As(err, &unknown) {
		err = &declare.UnavailableError{Err: err}
	}
	if err != nil {
		var absent *resources.NotFoundError
		return declare.Resource{}, errors.As(err, &absent), err
	}
	return declare.Resource{
		Kind:      found.Kind,
		HasStatus: found.HasStatus,
		Custom:    p.definitions.Get("", found.Resource+"."+found.Group) != nil,
	}, false, nil
}

// statusField looks at the schema of a custom resource: the copies of CRDs have
// their metadata alone. It is asked when a controller starts or changes.
func (p hostParts) statusField(ctx context.Context, kind object.Kind) (bool, error) {
	definition, err := p.writer.Get(ctx, kindCRD, "", kind.Resource+"."+kind.Group)
	if err != nil {
		return false, fmt.Errorf("cannot read the CustomResourceDefinition of %q: %w", kind.Resource, err)
	}
	return resources.StatusField(definition, kind.Version), nil
}
