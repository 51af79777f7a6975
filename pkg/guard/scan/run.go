package scan

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
)

// Finding is one thing that is not as it should be.
type Finding = inspect.Finding

// Reader is what one scan reads from: the API server itself, no cache.
type Reader interface {
	client.Reader
	RESTMapper() meta.RESTMapper
}

// Sources are what a scan looks at beside Pods and workloads. Each may be nil.
type Sources struct {
	// Admission renders the guard's own objects for a policy, or for one that does
	// not exist where it is nil. installed returns what is there of one of them,
	// nil if nothing is: what a person may choose is taken from there.
	Admission func(policy *guardv1alpha1.SingletonPolicy, installed func(kind, name string) map[string]any) ([]*unstructured.Unstructured, error)
	// Asked is the webhook that is asked about every workload.
	Asked inspect.Asked
	// Leases reads those that Metacontroller takes.
	Leases func(ctx context.Context) ([]inspect.Lease, error)
	// Silence says for how long no guard has led, 0 if one does.
	Silence func(ctx context.Context) (time.Duration, error)
}

// Options say what to scan.
type Options struct {
	// Policy is the name of the SingletonPolicy.
	Policy string
	// Now is the moment by which exceptions expire.
	Now time.Time
	Sources
}

// Result is what a scan has seen.
type Result struct {
	// Policy is as it was read, nil if it does not exist.
	Policy *guardv1alpha1.SingletonPolicy
	// Findings are what is not as it should be, the worst first.
	Findings []Finding
	// Instances are the Pods that run an instance, violations first, at most 100.
	Instances []guardv1alpha1.Instance
	// Running is how many there are.
	Running int
	// Conditions are Enforcing, Compliant and Drifted as they are now.
	Conditions []metav1.Condition
}

// Run looks at a cluster once. It only reads. An error means that the cluster
// could not be read at all; what may not be read is a finding.
func Run(ctx context.Context, reader Reader, o Options) (Result, error) {
	subject, err := look(ctx, reader, o.Policy, nil)
	if err != nil {
		return Result{}, err
	}
	sources, err := own(subject, o.Sources)
	if err != nil {
		return Result{}, err
	}
	v := newView(append(sources, others(reader.RESTMapper(), subject)...))
	if err := v.once(ctx, reader); err != nil {
		return Result{}, err
	}
	facts, err := gather(ctx, reader, subject, v.seen(), o)
	if err != nil {
		return Result{}, err
	}
	return judge(subject, facts, o), nil
}

func judge(s subject, facts inspect.Facts, o Options) Result {
	result := Result{Policy: s.policy, Findings: inspect.Judge(facts)}
	result.Conditions = inspect.Conditions(facts, result.Findings, o.Asked)
	status := &guardv1alpha1.SingletonPolicyStatus{}
	if s.policy != nil {
		status = &s.policy.Status
	}
	result.Instances = inspect.Instances(facts.Pods, facts.Workloads, status)
	for _, pod := range facts.Pods {
		if pod.Instance() {
			result.Running++
		}
	}
	return result
}

// subject is what a scan is about: read live, at its beginning.
type subject struct {
	policy    *guardv1alpha1.SingletonPolicy
	signature *identify.Signature
	invalid   string
	// holder is the StatefulSet that has the holder's name, nil if there is none.
	holder   *appsv1.StatefulSet
	accounts inspect.Accounts
}

// look reads the policy and its holder. last is the signature of the last good
// policy: it stands in for one that does not compile.
func look(ctx context.Context, reader client.Reader, name string, last *identify.Signature) (subject, error) {
	s := subject{accounts: inspect.Accounts{}}
	policy := &guardv1alpha1.SingletonPolicy{}
	switch err := reader.Get(ctx, client.ObjectKey{Name: name}, policy); {
	case err == nil:
		s.policy = policy
	case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
		return s, fmt.Errorf("cannot get SingletonPolicy %q: %w", name, err)
	}
	match := guardv1alpha1.DefaultMatch()
	if s.policy != nil {
		match = s.policy.Spec.Match
	}
	signature, err := identify.Compile(match)
	if err != nil {
		s.invalid = err.Error()
		if signature = last; signature == nil {
			if signature, err = identify.Compile(guardv1alpha1.DefaultMatch()); err != nil {
				return s, err
			}
		}
	}
	s.signature = signature
	if s.policy == nil {
		return s, nil
	}
	if fence := s.policy.Spec.Fence; fence != nil {
		s.accounts[fence.ServiceAccount.Namespace+"/"+fence.ServiceAccount.Name] = true
	}
	if holder := s.policy.Status.Holder; holder != nil {
		live := &appsv1.StatefulSet{}
		switch err := reader.Get(ctx, client.ObjectKey{Namespace: holder.Namespace, Name: holder.Name}, live); {
		case err == nil:
			s.holder = live
		case !apierrors.IsNotFound(err):
			return s, fmt.Errorf("cannot get StatefulSet %q: %w", holder.Display, err)
		}
	}
	if s.holder != nil {
		// The account that Pods have which ask for none says nothing.
		if account := s.holder.Spec.Template.Spec.ServiceAccountName; account != "" && account != "default" {
			s.accounts[s.holder.Namespace+"/"+account] = true
		}
	}
	return s, nil
}

// rules are the custom kinds of the policy.
func (s subject) rules() []guardv1alpha1.WorkloadRule {
	if s.policy == nil {
		return nil
	}
	return s.policy.Spec.Match.Workloads
}

// own are the guard's own objects as sources.
func own(s subject, from Sources) ([]source, error) {
	if from.Admission == nil {
		return nil, nil
	}
	rendered, err := from.Admission(s.policy, func(string, string) map[string]any { return nil })
	if err != nil {
		return nil, err
	}
	var all []source
	for _, object := range rendered {
		all = append(all, admissionObject(reference(object)))
	}
	return all, nil
}

// others are Pods and workloads as sources.
func others(mapper meta.RESTMapper, s subject) []source {
	return append(workloads(mapper, s.signature, s.rules()), pods(s.signature, s.accounts))
}

func reference(object *unstructured.Unstructured) inspect.Object {
	return inspect.Object{APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Name: object.GetName()}
}

// gather completes what a view has with live reads of a few objects.
func gather(ctx context.Context, reader client.Reader, s subject, v seen, o Options) (inspect.Facts, error) {
	facts := inspect.Facts{
		Policy: s.policy, Name: o.Policy, Invalid: s.invalid, Now: o.Now,
		Pods: v.pods, Workloads: v.workloads, Unread: v.unread, HolderRead: true,
	}
	if s.holder != nil {
		facts.HolderUID = s.holder.UID
	}
	var err error
	if facts.Admission, err = compare(s, v, o.Sources); err != nil {
		return facts, err
	}
	names := make([]string, 0, len(v.pods))
	for _, pod := range v.pods {
		if pod.Instance() {
			names = append(names, pod.Node)
		}
	}
	if facts.Nodes, err = nodes(ctx, reader, names); err != nil {
		return facts, err
	}
	if s.policy != nil {
		all := &guardv1alpha1.SingletonPolicyList{}
		if err := reader.List(ctx, all); err != nil {
			return facts, fmt.Errorf("cannot list SingletonPolicies: %w", err)
		}
		facts.Others = slices.DeleteFunc(all.Items, func(other guardv1alpha1.SingletonPolicy) bool { return other.Name == o.Policy })
	}
	if o.Leases != nil {
		facts.Leases, err = o.Leases(ctx)
		if err = unread(&facts, "leases.coordination.k8s.io", err); err != nil {
			return facts, err
		}
	}
	if o.Silence != nil {
		facts.GuardSilence, err = o.Silence(ctx)
		if err = unread(&facts, "leases.coordination.k8s.io", err); err != nil {
			return facts, err
		}
	}
	return facts, nil
}

// unread makes a fact of an error that will not go away by itself.
func unread(facts *inspect.Facts, what string, err error) error {
	why, ok := unreadable(err)
	if !ok {
		return err
	}
	if why != "" {
		facts.Unread = append(facts.Unread, inspect.Unread{What: what, Why: why})
	}
	return nil
}

// compare compares the guard's installed objects with what they should be.
func compare(s subject, v seen, from Sources) ([]inspect.Compared, error) {
	if from.Admission == nil {
		return nil, nil
	}
	rendered, err := from.Admission(s.policy, func(kind, name string) map[string]any {
		for object, fields := range v.admission {
			if object.Kind == kind && object.Name == name {
				return fields
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var all []inspect.Compared
	for _, want := range rendered {
		c := inspect.Compared{Object: reference(want), CRD: want.GetKind() == kindCRD, Fix: fixAdmission}
		if c.CRD {
			c.Fix = fixCRD
		}
		if got, ok := v.admission[c.Object]; ok {
			c.Differences = inspect.Drift(got, want.Object)
		} else {
			c.Missing = true
		}
		all = append(all, c)
	}
	return all, nil
}

const (
	kindCRD      = "CustomResourceDefinition"
	fixAdmission = "apply what \"guard render\" prints (kubectl apply -k config/webhook), and find out who changed it"
	fixCRD       = "kubectl apply -k config/crd, of the guard's own version"
)

// maxNodes bounds how many nodes one scan reads.
const maxNodes = 50

// nodes reads the nodes of the names, each once.
func nodes(ctx context.Context, reader client.Reader, names []string) (map[string]inspect.Node, error) {
	all := map[string]inspect.Node{}
	for _, name := range names {
		if _, done := all[name]; done || name == "" || len(all) == maxNodes {
			continue
		}
		node := &corev1.Node{}
		switch err := reader.Get(ctx, client.ObjectKey{Name: name}, node); {
		case err == nil:
			all[name] = inspect.NodeOf(node)
		case apierrors.IsNotFound(err):
			all[name] = inspect.Node{Gone: true}
		default:
			return nil, fmt.Errorf("cannot get Node %q: %w", name, err)
		}
	}
	return all, nil
}
