package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/check"
	"github.com/metacontroller-solo/solo/pkg/guard/explain"
	"github.com/metacontroller-solo/solo/pkg/guard/finding"
	"github.com/metacontroller-solo/solo/pkg/guard/manifest"
)

// explainOptions are the flags of the verb explain.
type explainOptions struct {
	output
	connection
	files []string
}

func explainCommand(streams Streams) *cobra.Command {
	options := &explainOptions{}
	command := &cobra.Command{
		Use:   "explain [TYPE/NAME...]",
		Short: "Say who holds the slot, and what would be refused",
		Long: `Say who holds the slot, which Pod is active and since when, which rules apply,
and, for objects of the cluster or of files, whether the guard would refuse them.

An object of the cluster is judged as if it were created now, and as if it were
scaled to 2. Reading the SingletonPolicy is all that is needed; with less than
the rest of the permissions it says which one is missing. It exits with 1 if
something that was asked about would be refused.`,
		Example: `  guard explain
  guard explain statefulset/metacontroller -n metacontroller
  guard explain -f second.yaml -o json`,
		RunE: func(command *cobra.Command, args []string) error {
			return options.run(command.Context(), streams, args)
		},
	}
	options.connection.bind(command.Flags())
	command.Flags().StringArrayVarP(&options.files, "filename", "f", nil, "File or folder with manifests to judge by what the cluster is like now; - for standard input.")
	options.output.bind(command, finding.Text, finding.JSON)
	return command
}

func (o *explainOptions) run(ctx context.Context, streams Streams, things []string) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	for _, thing := range things {
		if kind, name, found := strings.Cut(thing, "/"); !found || kind == "" || name == "" {
			return usageError{fmt.Errorf("cannot tell what %q is, write it as statefulset/name", thing)}
		}
	}
	c, err := o.open()
	if err != nil {
		return err
	}
	now := time.Now()
	policy := &guardv1alpha1.SingletonPolicy{}
	switch err := c.client.Get(ctx, client.ObjectKey{Name: o.policy}, policy); {
	case apierrors.IsNotFound(err):
		policy = nil
	case err != nil:
		return c.unanswered(err)
	}
	view := explain.Of(o.policy, policy, now)
	for i := range view.Slots {
		activePod(ctx, c, view, &view.Slots[i])
	}
	e := &explainer{cluster: c, view: view, policy: policy, now: now}
	for _, thing := range things {
		if err := e.thing(ctx, thing); err != nil {
			return err
		}
	}
	faults, err := e.manifests(o.files, streams)
	if err != nil {
		return err
	}
	if finding.Format(o.format) == finding.JSON {
		err = finding.Encode(streams.Out, view)
	} else {
		err = explain.Write(streams.Out, view, o.style(streams.Out), now)
	}
	switch {
	case err != nil:
		return err
	case faults > 0:
		return exitError(exitUsage)
	case view.Refused():
		return exitError(exitFailure)
	default:
		return nil
	}
}

// activePod completes a slot with what its Pod says.
func activePod(ctx context.Context, c *cluster, view *explain.View, slot *explain.Slot) {
	if slot.Holder == nil || slot.Active == nil {
		return
	}
	pod := &corev1.Pod{}
	err := c.client.Get(ctx, client.ObjectKey{Namespace: slot.Holder.Namespace, Name: slot.Active.Name}, pod)
	if err != nil {
		view.Missing = append(view.Missing, "since when the active Pod runs: "+err.Error())
		return
	}
	slot.SetPod(pod)
}

// explainer judges by the policy as it is in the cluster.
type explainer struct {
	cluster *cluster
	view    *explain.View
	policy  *guardv1alpha1.SingletonPolicy
	now     time.Time
	mapper  meta.RESTMapper
}

// world is the cluster as the policy's status has it.
func (e *explainer) world(resources check.Resources) (*check.World, error) {
	policy := e.policy.DeepCopy()
	if policy == nil {
		policy = &guardv1alpha1.SingletonPolicy{}
		policy.Name = e.view.Policy
	}
	policy.SetDefaults()
	return check.New(check.Options{Policy: policy, Absent: e.policy == nil, Namespace: e.cluster.namespace, Resources: resources, Now: e.now})
}

// thing judges an object of the cluster.
func (e *explainer) thing(ctx context.Context, thing string) error {
	kind, name, _ := strings.Cut(thing, "/")
	mapping, err := e.mappingOf(kind)
	if err != nil {
		return err
	}
	live, err := dynamic.NewForConfig(e.cluster.config)
	if err != nil {
		return clusterError{err}
	}
	var reader dynamic.ResourceInterface = live.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		reader = live.Resource(mapping.Resource).Namespace(e.cluster.namespace)
	}
	object, err := reader.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return usageError{fmt.Errorf("%w in namespace %q; choose another with -n, or give a file with -f", err, e.cluster.namespace)}
	case err != nil:
		return e.cluster.unanswered(err)
	}
	world, err := e.world(check.Resources{mapping.GroupVersionKind.GroupKind(): mapping.Resource.Resource})
	if err != nil {
		return usageError{err}
	}
	verdict, err := apply(world, object)
	if err != nil {
		return usageError{fmt.Errorf("%s: %w", thing, err)}
	}
	e.view.Judge("created now", verdict)
	_, scales, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "replicas")
	if !verdict.Decision.Verdict.Allowed() || !verdict.Shape.Instance() || !scales {
		return nil
	}
	if err := unstructured.SetNestedField(object.Object, int64(2), "spec", "replicas"); err != nil {
		return usageError{fmt.Errorf("%s: %w", thing, err)}
	}
	if verdict, err = apply(world, object); err != nil {
		return usageError{fmt.Errorf("%s: %w", thing, err)}
	}
	e.view.Judge("scaled to 2", verdict)
	return nil
}

func apply(world *check.World, object *unstructured.Unstructured) (check.Verdict, error) {
	raw, err := object.MarshalJSON()
	if err != nil {
		return check.Verdict{}, err
	}
	return world.Apply(manifest.Object{
		APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Namespace: object.GetNamespace(), Name: object.GetName(), JSON: raw,
	})
}

// mappingOf finds what a person means by a type: a kind, a plural or a short name.
func (e *explainer) mappingOf(kind string) (*meta.RESTMapping, error) {
	if e.mapper == nil {
		client, err := discovery.NewDiscoveryClientForConfig(e.cluster.config)
		if err != nil {
			return nil, clusterError{err}
		}
		cached := memory.NewMemCacheClient(client)
		e.mapper = restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	}
	resource, group := schema.ParseResourceArg(strings.ToLower(kind))
	if resource == nil {
		resource = &schema.GroupVersionResource{Group: group.Group, Resource: group.Resource}
	}
	found, err := e.mapper.KindFor(*resource)
	if err == nil {
		var mapping *meta.RESTMapping
		if mapping, err = e.mapper.RESTMapping(found.GroupKind(), found.Version); err == nil {
			return mapping, nil
		}
	}
	if meta.IsNoMatchError(err) {
		return nil, usageError{fmt.Errorf("the cluster has no type %q", kind)}
	}
	return nil, e.cluster.unanswered(err)
}

// manifests judges files, and returns how many faults are in them.
func (e *explainer) manifests(paths []string, streams Streams) (faults int, err error) {
	if len(paths) == 0 {
		return 0, nil
	}
	set, err := manifest.Open(paths, streams.In, 0)
	if err != nil {
		return 0, usageError{err}
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	world, err := e.world(nil)
	if err != nil {
		return 0, usageError{err}
	}
	fault := func(err error) {
		faults++
		_, _ = fmt.Fprintln(streams.Err, finding.Clean(err.Error()))
	}
	for object, err := range set.Objects(nil) {
		if err != nil {
			fault(err)
			continue
		}
		verdict, err := world.Apply(object)
		if err != nil {
			fault(&manifest.Error{File: object.File, Line: object.Line, Err: err})
			continue
		}
		judged := e.view.Judge("created now", verdict)
		judged.File, judged.Line = object.File, object.Line
	}
	return faults, nil
}
