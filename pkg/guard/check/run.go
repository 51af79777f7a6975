package check

import (
	"errors"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/finding"
	"github.com/metacontroller-solo/solo/pkg/guard/manifest"
)

// kindCRD is the kind that says under which name the API serves another kind.
const kindCRD = "CustomResourceDefinition"

// Request says what to judge.
type Request struct {
	Set *manifest.Set
	// Policy is judged by. Nil stands for the SingletonPolicies among the
	// manifests, each with a slot of its own, and where there is none for the
	// default policy.
	Policy *guardv1alpha1.SingletonPolicy
	// Holder has the slot in the beginning; nil leaves that to Policy's status.
	Holder *decide.Identity
	// Namespace is where objects go that name none.
	Namespace string
	Now       time.Time
}

// Run judges all objects of a set. The report has the findings and what could
// not be read; the error is about the policy.
func Run(request Request) (*finding.Report, error) {
	report := &finding.Report{Verb: "check", Rules: map[string]string{}}
	for _, rule := range append(decide.Rules(), decide.RuleSuspectedInstance) {
		report.Rules[string(rule)] = rule.Summary()
	}
	known := survey(request.Set, report)
	policies := known.policies
	if request.Policy != nil {
		policies = []*guardv1alpha1.SingletonPolicy{request.Policy}
	}
	if len(policies) == 0 {
		policies = []*guardv1alpha1.SingletonPolicy{{}}
		policies[0].Name = guardv1alpha1.DefaultPolicyName
	}
	var worlds []*World
	for _, policy := range policies {
		policy = policy.DeepCopy()
		policy.SetDefaults()
		if err := hold(policy, request.Holder); err != nil {
			return nil, err
		}
		world, err := New(Options{Policy: policy, Namespace: request.Namespace, Resources: known.resources, Now: request.Now})
		if err != nil {
			return nil, err
		}
		worlds = append(worlds, world)
	}
	report.Look("file", request.Set.Files())
	report.Look("object", 0)
	report.Look("instance", 0)
	for object, err := range request.Set.Objects(nil) {
		if err != nil {
			report.Faults = append(report.Faults, faultOf(err))
			continue
		}
		report.Look("object", 1)
		judge(worlds, object, report)
	}
	return report, nil
}

// judge judges one object by all policies.
func judge(worlds []*World, object manifest.Object, report *finding.Report) {
	instance := false
	for _, world := range worlds {
		verdict, err := world.Apply(object)
		if err != nil {
			report.Faults = append(report.Faults, finding.Fault{File: object.File, Line: object.Line, Message: err.Error()})
			break
		}
		instance = instance || verdict.Shape.Instance()
		if f, ok := Finding(verdict); ok {
			f.File, f.Line = object.File, object.Line
			report.Add(f)
		}
	}
	if instance {
		report.Look("instance", 1)
	}
}

// Finding is a verdict as it is reported; ok is false for what has nothing to do
// with the policy.
func Finding(v Verdict) (f finding.Finding, ok bool) {
	d := v.Decision
	f = finding.Finding{Rule: string(d.Rule), Message: d.Message, Object: &v.Object}
	switch {
	case !d.Verdict.Allowed():
		f.Level = finding.Violation
	case d.Verdict != decide.VerdictAllow:
		f.Level = finding.Warning
	case d.Matching:
		f.Level = finding.Passed
		f.Message = passed(d)
	default:
		return finding.Finding{}, false
	}
	return f, true
}

func passed(d decide.Decision) string {
	switch {
	case d.Exception != nil:
		return "let through by an exception of the policy until " + d.Exception.Expires.UTC().Format(time.RFC3339)
	case d.Notice != "":
		return d.Notice
	default:
		return "may be there"
	}
}

// hold gives the slot to the holder that was asked for.
func hold(policy *guardv1alpha1.SingletonPolicy, holder *decide.Identity) error {
	if holder == nil {
		return nil
	}
	if policy.Spec.Mode == guardv1alpha1.ModeSharded {
		return fmt.Errorf("cannot take %s for the holder: SingletonPolicy %q is Sharded, which has a holder for each shard", holder, policy.Name)
	}
	policy.Status.Epoch++
	policy.Status.Holder = &guardv1alpha1.Holder{
		Kind: "StatefulSet", Namespace: holder.Namespace, Name: holder.Name,
		UID: uidOf(*holder), Phase: guardv1alpha1.HolderBound, Epoch: policy.Status.Epoch,
	}
	return nil
}

// knowledge is what manifests say about how to judge the others.
type knowledge struct {
	policies  []*guardv1alpha1.SingletonPolicy
	resources Resources
}

// survey reads, before anything is judged, the policies and the CRDs, wherever
// they stand: in a cluster they would be there already.
func survey(set *manifest.Set, report *finding.Report) knowledge {
	known := knowledge{resources: Resources{}}
	for object, err := range set.Objects(manifest.Mentioning(guardv1alpha1.SingletonPolicyKind, kindCRD)) {
		if err != nil {
			// It comes again when all is read.
			continue
		}
		if err := known.learn(object); err != nil {
			report.Faults = append(report.Faults, finding.Fault{File: object.File, Line: object.Line, Message: err.Error()})
		}
	}
	return known
}

func (k *knowledge) learn(object manifest.Object) error {
	switch group := schema.FromAPIVersionAndKind(object.APIVersion, object.Kind).GroupKind(); group {
	case guardv1alpha1.GroupVersion.WithKind(guardv1alpha1.SingletonPolicyKind).GroupKind():
		policy, err := Policy(object)
		if err != nil {
			return err
		}
		// A manifest cannot set the status.
		policy.Status = guardv1alpha1.SingletonPolicyStatus{}
		k.policies = append(k.policies, policy)
	case apiextensionsv1.SchemeGroupVersion.WithKind(kindCRD).GroupKind():
		crd := apiextensionsv1.CustomResourceDefinition{}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(object.JSON, &crd); err != nil {
			return fmt.Errorf("cannot read this CRD: %w", err)
		}
		k.resources[schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}] = crd.Spec.Names.Plural
	}
	return nil
}

// Policy reads a SingletonPolicy. A field that its CRD does not know is an error:
// a misspelt one would be left out in silence.
func Policy(object manifest.Object) (*guardv1alpha1.SingletonPolicy, error) {
	if object.Kind != guardv1alpha1.SingletonPolicyKind || object.APIVersion != guardv1alpha1.GroupVersion.String() {
		return nil, fmt.Errorf("want a %s of %s, got a %.64q of %.64q", guardv1alpha1.SingletonPolicyKind, guardv1alpha1.GroupVersion, object.Kind, object.APIVersion)
	}
	policy := &guardv1alpha1.SingletonPolicy{}
	unknown, err := kjson.UnmarshalStrict(object.JSON, policy)
	if err = errors.Join(append(unknown, err)...); err != nil {
		return nil, fmt.Errorf("cannot read this SingletonPolicy: %w", err)
	}
	if policy.Name == "" {
		policy.Name = guardv1alpha1.DefaultPolicyName
	}
	return policy, nil
}

func faultOf(err error) finding.Fault {
	if fault := (*manifest.Error)(nil); errors.As(err, &fault) {
		return finding.Fault{File: fault.File, Line: fault.Line, Message: fault.Err.Error()}
	}
	return finding.Fault{Message: err.Error()}
}
