package scan

import (
	"context"
	"encoding/json"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
)

// PageSize is how many objects a list asks for at a time. It bounds the memory
// that a list takes: a page of Pods is some MiB.
const PageSize = 250

// source is one kind of object that the scan looks at.
type source struct {
	// what is the resource, as in RBAC.
	what string
	// list makes an empty list. It fails where the API server does not serve the kind.
	list    func() (client.ObjectList, error)
	options []client.ListOption
	// keep says what is kept of an object; false for nothing. What it returns
	// must not hold on to the object.
	keep func(client.Object) (any, bool)
	// admission is set for one of the guard's own objects.
	admission *inspect.Object
}

// pages lists everything, a page at a time, and returns the resource version
// from which a watch goes on.
func (s source) pages(ctx context.Context, reader client.Reader, each func(client.Object) error) (string, error) {
	version, next := "", ""
	for {
		page, err := s.list()
		if err != nil {
			return "", err
		}
		options := append([]client.ListOption{client.Limit(PageSize), client.Continue(next)}, s.options...)
		if err := reader.List(ctx, page, options...); err != nil {
			return "", fmt.Errorf("cannot list %s: %w", s.what, err)
		}
		err = meta.EachListItem(page, func(item runtime.Object) error { return each(item.(client.Object)) })
		if err != nil {
			return "", err
		}
		version, next = page.GetResourceVersion(), page.GetContinue()
		if next == "" {
			return version, nil
		}
	}
}

// kept lists what is to be kept.
func (s source) kept(ctx context.Context, reader client.Reader) (map[client.ObjectKey]any, string, error) {
	// A list that takes longer than the API server remembers begins again.
	const tries = 3
	for try := 1; ; try++ {
		kept := map[client.ObjectKey]any{}
		version, err := s.pages(ctx, reader, func(object client.Object) error {
			if fact, ok := s.keep(object); ok {
				kept[client.ObjectKeyFromObject(object)] = fact
			}
			return nil
		})
		if err == nil || try == tries || !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			return kept, version, err
		}
	}
}

func listOf(list client.ObjectList) func() (client.ObjectList, error) {
	return func() (client.ObjectList, error) { return list.DeepCopyObject().(client.ObjectList), nil }
}

// pods are those that run, or may run, an instance.
func pods(signature *identify.Signature, accounts inspect.Accounts) source {
	return source{what: "pods", list: listOf(&corev1.PodList{}), keep: func(object client.Object) (any, bool) {
		return orNothing(inspect.PodOf(object.(*corev1.Pod), signature, accounts))
	}}
}

func orNothing[T any](fact T, ok bool) (any, bool) { return fact, ok }

// workloads are the kinds with a Pod template.
func workloads(mapper meta.RESTMapper, signature *identify.Signature, customs []guardv1alpha1.WorkloadRule) []source {
	built := func(what string, list client.ObjectList) source {
		return source{what: what, list: listOf(list), keep: func(object client.Object) (any, bool) { return orNothing(workloadOf(object, signature)) }}
	}
	all := []source{
		built("statefulsets.apps", &appsv1.StatefulSetList{}),
		built("deployments.apps", &appsv1.DeploymentList{}),
		built("replicasets.apps", &appsv1.ReplicaSetList{}),
		built("daemonsets.apps", &appsv1.DaemonSetList{}),
		built("replicationcontrollers", &corev1.ReplicationControllerList{}),
		built("jobs.batch", &batchv1.JobList{}),
		built("cronjobs.batch", &batchv1.CronJobList{}),
	}
	for _, custom := range customs {
		all = append(all, customWorkloads(mapper, signature, custom))
	}
	return all
}

// workloadOf reads a built-in kind whose template runs an instance and that is
// not over. Its kind is taken from the type: an element of a list does not say it.
func workloadOf(object client.Object, signature *identify.Signature) (inspect.Workload, bool) {
	var template *corev1.PodSpec
	fact := inspect.Workload{Replicas: attempt.Replicas{Count: 1}}
	wants := func(replicas *int32) { fact.Replicas.Count = int64(ptr.Deref(replicas, 1)) }
	apps, batch := appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion
	var kind schema.GroupVersionKind
	switch w := object.(type) {
	case *appsv1.StatefulSet:
		kind, template = apps.WithKind("StatefulSet"), &w.Spec.Template.Spec
		wants(w.Spec.Replicas)
	case *appsv1.Deployment:
		kind, template = apps.WithKind("Deployment"), &w.Spec.Template.Spec
		wants(w.Spec.Replicas)
	case *appsv1.ReplicaSet:
		kind, template = apps.WithKind("ReplicaSet"), &w.Spec.Template.Spec
		wants(w.Spec.Replicas)
	case *appsv1.DaemonSet:
		kind, template = apps.WithKind("DaemonSet"), &w.Spec.Template.Spec
		fact.Replicas.Unbounded = true
	case *corev1.ReplicationController:
		if kind = corev1.SchemeGroupVersion.WithKind("ReplicationController"); w.Spec.Template != nil {
			template = &w.Spec.Template.Spec
		}
		wants(w.Spec.Replicas)
	case *batchv1.Job:
		if w.Status.CompletionTime != nil {
			return fact, false
		}
		kind, template = batch.WithKind("Job"), &w.Spec.Template.Spec
		wants(w.Spec.Parallelism)
	case *batchv1.CronJob:
		kind, template = batch.WithKind("CronJob"), &w.Spec.JobTemplate.Spec.Template.Spec
		wants(w.Spec.JobTemplate.Spec.Parallelism)
	}
	if len(signature.Containers(template)) == 0 {
		return fact, false
	}
	complete(&fact, object, kind)
	fact.Account = object.GetNamespace() + "/" + template.ServiceAccountName
	return fact, true
}

func complete(fact *inspect.Workload, object client.Object, kind schema.GroupVersionKind) {
	fact.Object = inspect.Object{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
	}
	fact.Owner = inspect.OwnerOf(object)
	fact.Generation = object.GetGeneration()
}

// customWorkloads is a kind of the policy's own. It is read as the webhook reads
// it, by the paths that the policy names.
func customWorkloads(mapper meta.RESTMapper, signature *identify.Signature, rule guardv1alpha1.WorkloadRule) source {
	resource := schema.GroupResource{Group: rule.Group, Resource: rule.Resource}
	list := func() (client.ObjectList, error) {
		kind, err := mapper.KindFor(resource.WithVersion(""))
		if err != nil {
			return nil, err
		}
		empty := &unstructured.UnstructuredList{}
		empty.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		return empty, nil
	}
	keep := func(object client.Object) (any, bool) {
		raw, err := json.Marshal(object)
		if err != nil {
			return nil, false
		}
		kind := object.GetObjectKind().GroupVersionKind()
		read, err := attempt.From(&admissionv1.AdmissionRequest{
			UID: object.GetUID(), Operation: admissionv1.Create, Namespace: object.GetNamespace(), Name: object.GetName(),
			Resource: metav1.GroupVersionResource{Group: rule.Group, Version: kind.Version, Resource: rule.Resource},
			Kind:     metav1.GroupVersionKind(kind), Object: runtime.RawExtension{Raw: raw},
		}, signature, []guardv1alpha1.WorkloadRule{rule})
		// What has no template where the policy says is judged at its Pods.
		if err != nil || !read.New.Instance() {
			return nil, false
		}
		fact := inspect.Workload{Replicas: read.New.Replicas}
		complete(&fact, object, kind)
		return fact, true
	}
	return source{what: resource.String(), list: list, keep: keep}
}

// admissionObject is one object of the guard's own.
func admissionObject(object inspect.Object) source {
	kind := schema.FromAPIVersionAndKind(object.APIVersion, object.Kind)
	empty := &unstructured.UnstructuredList{}
	empty.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	return source{
		what: object.Kind + " " + object.Name, list: listOf(empty), admission: &object,
		options: []client.ListOption{client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector(metav1.ObjectNameField, object.Name)}},
		keep: func(o client.Object) (any, bool) {
			u, ok := o.(*unstructured.Unstructured)
			if !ok {
				return nil, false
			}
			kept := map[string]any{}
			for key, value := range u.Object {
				if key != "metadata" && key != "status" {
					kept[key] = value
				}
			}
			return kept, true
		},
	}
}
