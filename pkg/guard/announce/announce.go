// Package announce makes Events of decisions, where people look first: on the
// policy, and on the workloads that were refused something.
//
//	audit record that gets a line ─ Tell ─> limit ─> queue ─> look up policy and
//	owners ─> recorder (aggregates, limits each object) ─> API server
//
// It hangs on the audit log's lines, so that what is counted there makes no
// Events either. It never waits where decisions are made, and rather leaves one
// out than fill the cluster with them.
package announce

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/audit"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/owner"
	"github.com/metacontroller-solo/solo/pkg/metrics"
)

// Component is the source of the Events.
const Component = "metacontroller-guard"

// Reasons of the Events.
const (
	// ReasonRefused is a request that was refused.
	ReasonRefused = "InstanceRefused"
	// ReasonNotRefused is a request that breaks a rule of a policy that only warns
	// or audits.
	ReasonNotRefused = "InstanceNotRefused"
	// ReasonSuspected is a workload that may be an instance, by its flags alone.
	ReasonSuspected = "InstanceSuspected"
	// ReasonExceptionUsed is a request that an exception let through (break-glass).
	ReasonExceptionUsed = "ExceptionUsed"
)

const (
	// queueSize is how many records wait to be announced.
	queueSize = 256
	// rate, per second, and burst limit the records that are announced at all. The
	// recorder limits each object beside: to 25, and then one in five minutes.
	rate  = 5
	burst = 50
	// maxNote caps an Event's text, in characters.
	maxNote = 900
)

// Deps is what an Announcer needs.
type Deps struct {
	// Policies reads SingletonPolicies; a cache will do.
	Policies client.Reader
	// Owners returns an owner and those above it, as far as they exist.
	Owners func(namespace string, first audit.Owner) []audit.Owner
	// Sink takes the Events.
	Sink record.EventSink
	// Replica names this guard as their host.
	Replica  string
	Registry prometheus.Registerer
}

// Announcer makes Events. It is a Runnable of a manager.
type Announcer struct {
	deps    Deps
	limit   flowcontrol.PassiveRateLimiter
	queue   chan audit.Record
	dropped prometheus.Counter
}

// New makes an Announcer.
func New(deps Deps) (*Announcer, error) {
	a := &Announcer{
		deps:  deps,
		limit: flowcontrol.NewTokenBucketPassiveRateLimiter(rate, burst),
		queue: make(chan audit.Record, queueSize),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: metrics.GuardPrefix,
			Name:      "events_dropped_total",
			Help:      "Audit records that were not made Events because there were too many.",
		}),
	}
	if err := deps.Registry.Register(a.dropped); err != nil {
		return nil, fmt.Errorf("cannot register event metrics: %w", err)
	}
	return a, nil
}

// Tell queues a record to be announced, if there is something to say about it. It
// never waits.
func (a *Announcer) Tell(r audit.Record) {
	if reasonOf(r) == "" {
		return
	}
	if a.limit.TryAccept() {
		select {
		case a.queue <- r:
			return
		default:
		}
	}
	a.dropped.Inc()
}

// NeedLeaderElection says that each guard announces what it decided.
func (a *Announcer) NeedLeaderElection() bool { return false }

// Start announces until ctx ends.
func (a *Announcer) Start(ctx context.Context) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(a.deps.Sink)
	recorder := broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: Component, Host: a.deps.Replica})
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-a.queue:
			note := noteOf(r)
			for _, object := range a.concerned(ctx, r) {
				recorder.Event(object, corev1.EventTypeWarning, reasonOf(r), note)
			}
		}
	}
}

// reasonOf is empty where there is nothing to announce: what breaks no rule, and
// dry runs, which leave nothing behind.
func reasonOf(r audit.Record) string {
	switch {
	case r.DryRun:
		return ""
	case r.Exception != nil:
		return ReasonExceptionUsed
	case r.Rule == string(decide.RuleSuspectedInstance):
		return ReasonSuspected
	case r.Decision == audit.DecisionAllow:
		return ""
	case r.Enforced:
		return ReasonRefused
	default:
		return ReasonNotRefused
	}
}

// noteOf is one line. What clients wrote is in it without the letters that change
// what a terminal shows.
func noteOf(r audit.Record) string {
	where := r.Object.Name
	if r.Object.Namespace != "" {
		where = r.Object.Namespace + "/" + where
	}
	what := fmt.Sprintf("%s of %s %s by %s", r.Operation, r.Object.Kind, where, r.User.Name)
	said := decide.FirstLine(r.Message)
	if e := r.Exception; e != nil {
		said = fmt.Sprintf("let through by the exception for %s/%s until %s: %s", e.Namespace, e.Name, e.Expires.Format(time.RFC3339), e.Reason)
	}
	note := what + ": " + said
	if r.Repeated {
		note += fmt.Sprintf(" (%d more times)", r.Count)
	}
	return clip(strings.Map(func(c rune) rune {
		if unicode.In(c, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return unicode.ReplacementChar
		}
		return c
	}, note))
}

func clip(text string) string {
	runes := []rune(text)
	if len(runes) <= maxNote {
		return text
	}
	return string(runes[:maxNote-1]) + "…"
}

// concerned are the policy, the workload that was to be changed, and those that
// own the object: what there is of them.
func (a *Announcer) concerned(ctx context.Context, r audit.Record) []*corev1.ObjectReference {
	var objects []*corev1.ObjectReference
	policy := &guardv1alpha1.SingletonPolicy{}
	if err := a.deps.Policies.Get(ctx, client.ObjectKey{Name: r.Policy}, policy); err == nil {
		objects = append(objects, &corev1.ObjectReference{
			APIVersion: guardv1alpha1.GroupVersion.String(), Kind: guardv1alpha1.SingletonPolicyKind, Name: policy.Name, UID: policy.UID,
		})
	}
	for _, o := range a.chain(r) {
		objects = append(objects, &corev1.ObjectReference{
			APIVersion: o.APIVersion, Kind: o.Kind, Namespace: r.Object.Namespace, Name: o.Name, UID: o.UID,
		})
	}
	return objects
}

// chain begins with the object itself where it exists: it was to be changed, not
// made.
func (a *Announcer) chain(r audit.Record) []audit.Owner {
	if kind, ok := owner.KindOf(r.Object.Resource); ok && r.Operation == audit.OperationUpdate {
		apiVersion, name := kind.ToAPIVersionAndKind()
		return a.deps.Owners(r.Object.Namespace, audit.Owner{APIVersion: apiVersion, Kind: name, Name: r.Object.Name, UID: r.Object.UID})
	}
	if len(r.Owners) > 0 {
		return a.deps.Owners(r.Object.Namespace, r.Owners[0])
	}
	return nil
}
