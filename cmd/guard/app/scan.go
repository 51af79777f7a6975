package app

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/config/crd"
	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/guard/scan"
	"github.com/metacontroller-solo/solo/pkg/singleton"
)

const (
	// eventsFrom is the reporting controller of Events.
	eventsFrom = "metacontroller-guard"

	kindWebhooks = "ValidatingWebhookConfiguration"
)

// asked is the webhook that must be asked about every workload.
var asked = inspect.Asked{Kind: kindWebhooks, Name: pin.WebhookConfigurationName, Webhook: pin.WorkloadsWebhook}

// addScanner runs the scan in the leader. changed is called when an instance or
// its workload changed.
func addScanner(ctx context.Context, manager ctrl.Manager, options *serveOptions, live client.WithWatch, changed func()) error {
	metrics, err := scan.NewMetrics(ctrlmetrics.Registry)
	if err != nil {
		return fmt.Errorf("cannot register metrics: %w", err)
	}
	sources, err := scanSources(live, pin.Options{TimeoutSeconds: options.webhookTimeout})
	if err != nil {
		return err
	}
	scanner := scan.New(scan.Deps{
		Cluster: live, Writer: live, Clock: clock.RealClock{}, Policy: options.policy, Sources: sources,
		Events: manager.GetEventRecorder(eventsFrom), Metrics: metrics, Changed: changed,
	})
	if err := onPolicyChange(ctx, manager, scanner.Wake); err != nil {
		return err
	}
	if err := manager.Add(scanner); err != nil {
		return fmt.Errorf("cannot add the scan: %w", err)
	}
	return nil
}

// scanSources are what a scan looks at beside Pods and workloads. expected is
// what the admission objects are rendered with; the policy's part of it, and the
// guard's address, are taken from the cluster.
func scanSources(live client.Reader, expected pin.Options) (scan.Sources, error) {
	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(crd.SingletonPolicy, &definition.Object); err != nil {
		return scan.Sources{}, fmt.Errorf("cannot read the CRD of SingletonPolicy: %w", err)
	}
	definition, err := asInstalled(definition)
	if err != nil {
		return scan.Sources{}, err
	}
	return scan.Sources{
		Admission: (&renderer{expected: expected, definition: definition}).objects,
		Asked:     asked,
		Leases:    func(ctx context.Context) ([]inspect.Lease, error) { return singletonLeases(ctx, live, time.Now()) },
	}, nil
}

// asInstalled adds to a CRD what the API server fills in.
func asInstalled(definition *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	raw, err := json.Marshal(definition) // Numbers as JSON has them.
	if err != nil {
		return nil, fmt.Errorf("cannot encode the CRD of SingletonPolicy: %w", err)
	}
	read := &unstructured.Unstructured{}
	if err := read.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("cannot read the CRD of SingletonPolicy: %w", err)
	}
	if err := unstructured.SetNestedStringMap(read.Object, map[string]string{"strategy": "None"}, "spec", "conversion"); err != nil {
		return nil, fmt.Errorf("cannot complete the CRD of SingletonPolicy: %w", err)
	}
	return read, nil
}

// renderer renders the guard's own objects, and again only if what they depend
// on has changed: it is asked at every scan.
type renderer struct {
	expected   pin.Options
	definition *unstructured.Unstructured

	mutex sync.Mutex // guards all below
	key   string
	last  []*unstructured.Unstructured
}

// objects implements scan.Sources.Admission.
func (r *renderer) objects(policy *guardv1alpha1.SingletonPolicy, installed func(kind, name string) map[string]any) ([]*unstructured.Unstructured, error) {
	options := r.expected
	if policy != nil {
		options.SingletonPolicy, options.Match = policy.Name, policy.Spec.Match
	}
	address(&options, installed(kindWebhooks, pin.WebhookConfigurationName))
	key, err := json.Marshal(options)
	if err != nil {
		return nil, fmt.Errorf("cannot render the admission objects: %w", err)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.key == string(key) {
		return r.last, nil
	}
	var all []*unstructured.Unstructured
	for _, object := range pin.Objects(options) {
		rendered, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, fmt.Errorf("cannot render %T %q: %w", object, object.GetName(), err)
		}
		all = append(all, &unstructured.Unstructured{Object: rendered})
	}
	all = append(all, r.definition)
	r.key, r.last = string(key), all
	return r.last, nil
}

// address takes over where the API server reaches the guard: a person may choose
// that, and only the guard's certificate and the caBundle say whether it is the
// guard. All webhooks must have the same.
func address(options *pin.Options, installed map[string]any) {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if installed == nil || runtime.DefaultUnstructuredConverter.FromUnstructured(installed, configuration) != nil {
		return
	}
	for _, webhook := range configuration.Webhooks {
		if webhook.Name != pin.WorkloadsWebhook {
			continue
		}
		options.URL = ptr.Deref(webhook.ClientConfig.URL, "")
		if service := webhook.ClientConfig.Service; service != nil {
			options.Namespace, options.Service = service.Namespace, service.Name
			options.Path, options.Port = ptr.Deref(service.Path, ""), ptr.Deref(service.Port, 0)
		}
	}
}

// slack is how much longer than it lasts a Lease is taken for live: its times are
// of the holder's clock.
const slack = time.Minute

// singletonLeases reads the Leases that Metacontroller takes by default: the one
// of the cluster, and those of the same name that a public Metacontroller elects
// its leader on.
func singletonLeases(ctx context.Context, live client.Reader, now time.Time) ([]inspect.Lease, error) {
	all := &coordinationv1.LeaseList{}
	if err := live.List(ctx, all, client.MatchingFields{"metadata.name": singleton.DefaultName}); err != nil {
		return nil, fmt.Errorf("cannot list Leases %q: %w", singleton.DefaultName, err)
	}
	var read []inspect.Lease
	for i := range all.Items {
		lease := &all.Items[i]
		holder := singleton.HolderOf(lease)
		fact := inspect.Lease{
			Namespace: lease.Namespace, Name: lease.Name, Holder: holder.Identity,
			Fixed: lease.Namespace == singleton.DefaultNamespace,
			Live:  now.Sub(holder.Renewed) < holder.Duration+slack,
		}
		fact.Pod, _, _ = strings.Cut(holder.Identity, "_")
		// Only our controller leaves its process there, and its Pod's uid beside.
		if identity, ok := singleton.ParseIdentity(holder.Identity); ok && holder.Process != "" {
			fact.Pod, fact.PodUID = identity.Pod, types.UID(identity.UID)
		}
		read = append(read, fact)
	}
	return read, nil
}

// guardSilence says for how long no guard has renewed the Lease that the leader
// has, 0 if one leads.
func guardSilence(live client.Reader, namespace, name string) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		lease := &coordinationv1.Lease{}
		err := live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, lease)
		holder := singleton.HolderOf(lease)
		silence := time.Since(holder.Renewed)
		switch {
		case apierrors.IsNotFound(err):
			return slack, nil
		case err != nil:
			return 0, fmt.Errorf("cannot get Lease %q: %w", namespace+"/"+name, err)
		case holder.Free(), silence > holder.Duration+slack/2:
			return max(silence, time.Second), nil
		}
		return 0, nil
	}
}

// trigger adds a request to a controller's queue, from outside of its events.
type trigger struct {
	request reconcile.Request

	mutex sync.Mutex // guards queue
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// start implements source.Func.
func (t *trigger) start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.queue = queue
	return nil
}

// fire does not block.
func (t *trigger) fire() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.queue != nil {
		t.queue.Add(t.request)
	}
}
