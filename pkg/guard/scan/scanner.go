package scan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/logging"
)

const (
	// Interval is how often a scan looks at what no watch tells: nodes, Leases,
	// exceptions that expire.
	Interval = 10 * time.Second
	// settle is how long changes are gathered before a scan.
	settle = 250 * time.Millisecond
	// remembered is how long a node is looked at after an instance ran there: one
	// that was tainted out-of-service has no Pod any more when it wakes up.
	remembered = time.Hour
)

// Events writes Events. It is client-go's recorder.
type Events interface {
	Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any)
}

// Reasons and actions of Events on the policy.
const (
	reasonFound           = "Found"
	reasonGone            = "Gone"
	reasonTemplateChanged = "HolderTemplateChanged"
	actionTemplate        = "ChangeTemplate"
)

// Writer writes the status of a policy, and the report.
type Writer interface {
	Status() client.SubResourceWriter
	Apply(ctx context.Context, object runtime.ApplyConfiguration, options ...client.ApplyOption) error
}

// Deps are what a Scanner needs.
type Deps struct {
	// Cluster and Writer are of the API server, not of a cache.
	Cluster Cluster
	Writer  Writer
	Clock   clock.Clock
	// Policy is the name of the policy that is judged by.
	Policy  string
	Sources Sources
	Events  Events
	Metrics *Metrics
	// Changed is called when an instance, or the template of a workload that runs
	// one, came, went or changed. It must not block.
	Changed func()
}

// Scanner keeps what the status of a policy says of the cluster up to date. One
// runs at a time, in the guard that leads; a second one would do no harm.
type Scanner struct {
	deps Deps
	wake chan struct{}

	// All below is of the one goroutine of Start.

	// own is of the guard's own objects, instances of Pods and workloads.
	own, instances attended
	// signature is that of the last good policy.
	signature *identify.Signature
	// ran is when an instance was last seen on a node.
	ran map[string]time.Time
	// found are the findings of the last scan; nil before the first.
	found map[string]Finding
	// template is of the holder, as it was last seen.
	template template
	report   report
}

// attended is a view that is followed.
type attended struct {
	view *view
	stop context.CancelFunc
	// about is what the view depends on. If it changes, the view is made anew.
	about any
}

// end ends it, if there is one.
func (a *attended) end() {
	if a.stop != nil {
		a.stop()
	}
}

// about is what the view of Pods and workloads depends on.
type about struct {
	match    guardv1alpha1.Match
	accounts inspect.Accounts
}

// New makes a Scanner. Start runs it.
func New(deps Deps) *Scanner {
	return &Scanner{deps: deps, wake: make(chan struct{}, 1), ran: map[string]time.Time{}, report: report{writer: deps.Writer, mapper: deps.Cluster.RESTMapper()}}
}

// Wake asks for a scan soon. It does not block.
func (s *Scanner) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Start scans until ctx ends. It is a manager's Runnable, of the leader.
func (s *Scanner) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("scan").WithValues(logging.KeyPolicy, s.deps.Policy))
	defer func() {
		s.own.end()
		s.instances.end()
	}()
	for {
		wait := s.pass(ctx)
		timer := s.deps.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		case <-s.wake:
			timer.Stop()
			pause(ctx, settle)
		}
	}
}

// again is when to try again after an error.
const again = 2 * time.Second

// pass is one scan. It returns when the next one is due.
func (s *Scanner) pass(ctx context.Context) time.Duration {
	began := s.deps.Clock.Now()
	wait, err := s.scan(ctx, began)
	switch {
	case err == nil:
		return wait
	case errors.Is(err, errConflict), ctx.Err() != nil:
		return settle
	}
	log.FromContext(ctx).Error(err, "Cannot scan; trying again")
	return again
}

// errConflict means that somebody wrote the policy since it was read.
var errConflict = errors.New("the policy has changed since it was read")

func (s *Scanner) scan(ctx context.Context, now time.Time) (time.Duration, error) {
	subject, err := look(ctx, s.deps.Cluster, s.deps.Policy, s.signature)
	if err != nil {
		return 0, err
	}
	if subject.invalid == "" && subject.policy != nil {
		s.signature = subject.signature
	}
	if err := s.attend(ctx, subject); err != nil {
		return 0, err
	}
	seen := s.own.view.seen()
	if !seen.synced {
		return Interval, nil // The view tells when it is.
	}
	seen = seen.with(s.instances.view.seen())
	options := Options{Policy: s.deps.Policy, Now: now, Sources: s.deps.Sources}
	facts, err := gather(ctx, s.deps.Cluster, subject, seen, options)
	if err != nil {
		return 0, err
	}
	if err := s.remember(ctx, &facts); err != nil {
		return 0, err
	}
	s.watchTemplate(ctx, subject)
	result := judge(subject, facts, options)
	written, err := s.write(ctx, result, seen.synced, now)
	if err != nil {
		return 0, err
	}
	if !seen.synced {
		return Interval, nil
	}
	s.tell(ctx, result)
	s.deps.Metrics.set(result, s.deps.Clock.Now(), s.deps.Clock.Since(now))
	s.report.write(ctx, result.Policy, written, now)
	return untilNext(facts), nil
}

// untilNext is when the next thing happens of which no watch tells.
func untilNext(facts inspect.Facts) time.Duration {
	next := Interval
	at := func(moment time.Time) {
		if left := moment.Sub(facts.Now); left > 0 {
			next = min(next, left+time.Millisecond)
		}
	}
	if facts.Policy != nil {
		for _, exception := range facts.Policy.Spec.Exceptions {
			at(exception.Expires.Time)
		}
	}
	for _, pod := range facts.Pods {
		if pod.Ends != nil {
			at(*pod.Ends)
		}
	}
	return next
}

// attend makes the views fit the subject.
func (s *Scanner) attend(ctx context.Context, subject subject) error {
	sources, err := own(subject, s.deps.Sources)
	if err != nil {
		return err
	}
	references := make([]inspect.Object, 0, len(sources))
	for _, source := range sources {
		references = append(references, *source.admission)
	}
	s.follow(ctx, &s.own, references, func() []source { return sources }, s.Wake)
	if subject.invalid != "" && s.instances.view != nil {
		return nil // What was seen by the last good policy is still seen.
	}
	want := about{accounts: subject.accounts}
	if subject.policy != nil {
		want.match = subject.policy.Spec.Match
	}
	s.follow(ctx, &s.instances, want, func() []source { return others(s.deps.Cluster.RESTMapper(), subject) }, func() {
		s.Wake()
		s.deps.Changed()
	})
	return nil
}

// follow begins a view, unless the one that there is fits.
func (s *Scanner) follow(ctx context.Context, a *attended, about any, sources func() []source, changed func()) {
	if a.view != nil && reflect.DeepEqual(a.about, about) {
		return
	}
	a.end()
	ctx, a.stop = context.WithCancel(ctx)
	a.view, a.about = newView(sources()), about
	go a.view.follow(ctx, s.deps.Cluster, changed)
}

// remember adds the nodes where an instance ran a while ago.
func (s *Scanner) remember(ctx context.Context, facts *inspect.Facts) error {
	for _, pod := range facts.Pods {
		if pod.Instance() && pod.Node != "" {
			s.ran[pod.Node] = facts.Now
		}
	}
	maps.DeleteFunc(s.ran, func(_ string, last time.Time) bool { return facts.Now.Sub(last) > remembered })
	// After a change of leader the status tells.
	if facts.Policy != nil && s.found == nil {
		for _, instance := range facts.Policy.Status.Instances {
			if instance.Node != "" {
				s.ran[instance.Node] = facts.Now
			}
		}
	}
	var names []string
	for name := range s.ran {
		if _, read := facts.Nodes[name]; !read {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	more, err := nodes(ctx, s.deps.Cluster, names)
	if err != nil {
		return err
	}
	for name, node := range more {
		facts.Nodes[name] = node
	}
	return nil
}

// write writes the part of the status that is the scan's, and returns the
// findings in it. Before everything was looked at, that is what the guard's own
// objects say.
func (s *Scanner) write(ctx context.Context, result Result, complete bool, now time.Time) ([]guardv1alpha1.Finding, error) {
	if result.Policy == nil {
		return nil, nil
	}
	policy := result.Policy.DeepCopy()
	for _, condition := range result.Conditions {
		if !complete && condition.Type == guardv1alpha1.ConditionCompliant {
			continue
		}
		condition.LastTransitionTime = metav1.NewTime(now)
		meta.SetStatusCondition(&policy.Status.Conditions, condition)
	}
	if complete {
		policy.Status.Instances = result.Instances
		policy.Status.Findings = inspect.Status(result.Findings, result.Policy.Status.Findings, now)
	}
	findings := policy.Status.Findings
	if equality.Semantic.DeepEqual(policy.Status, result.Policy.Status) {
		return findings, nil
	}
	switch err := s.deps.Writer.Status().Update(ctx, policy); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, errConflict
	case err != nil:
		return nil, fmt.Errorf("cannot update status of SingletonPolicy %q: %w", policy.Name, err)
	}
	return findings, nil
}

// tell logs, and writes Events about, what came and what went since the last
// scan. What the status had before this process began is not told again.
func (s *Scanner) tell(ctx context.Context, result Result) {
	before := s.found
	if before == nil {
		before = map[string]Finding{}
		if result.Policy != nil {
			for _, f := range result.Policy.Status.Findings {
				read := inspect.FromStatus(f)
				before[read.Key()] = read
			}
		}
	}
	logger := log.FromContext(ctx)
	s.found = map[string]Finding{}
	var came, went []Finding
	for _, f := range result.Findings {
		s.found[f.Key()] = f
		if _, known := before[f.Key()]; !known {
			came = append(came, f)
			logger.Info("Found", logging.KeyFinding, f.ID, logging.KeySeverity, f.Severity, logging.KeyObject, f.Object.String(), logging.KeyReason, f.Message)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, still := s.found[key]; !still {
			f := before[key]
			went = append(went, f)
			logger.Info("Gone", logging.KeyFinding, f.ID, logging.KeyObject, f.Object.String(), logging.KeyReason, f.Message)
		}
	}
	s.events(result.Policy, corev1.EventTypeWarning, reasonFound, came)
	s.events(result.Policy, corev1.EventTypeNormal, reasonGone, went)
}

// events writes one Event for each object and kind of finding: two that differ
// in their note alone would be taken for one that happened twice.
func (s *Scanner) events(policy *guardv1alpha1.SingletonPolicy, kind, reason string, findings []Finding) {
	type about struct {
		id     inspect.ID
		object inspect.Object
	}
	notes := map[about][]string{}
	var order []about
	for _, f := range findings {
		key := about{f.ID, f.Object}
		if notes[key] == nil {
			order = append(order, key)
		}
		notes[key] = append(notes[key], f.Message)
	}
	for _, key := range order {
		related := &corev1.ObjectReference{
			APIVersion: key.object.APIVersion, Kind: key.object.Kind, Namespace: key.object.Namespace, Name: key.object.Name, UID: key.object.UID,
		}
		s.event(policy, related, kind, reason, string(key.id), fmt.Sprintf("%s: %s", key.id, strings.Join(notes[key], "; ")))
	}
}

// maxNote is how long an Event's note may be, in bytes; the API allows 1 KiB.
const maxNote = 1000

func (s *Scanner) event(policy *guardv1alpha1.SingletonPolicy, related runtime.Object, kind, reason, action, note string) {
	// An Event needs an object; without the policy the log tells.
	if policy == nil || s.deps.Events == nil {
		return
	}
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "") + "…"
	}
	s.deps.Events.Eventf(policy, related, kind, reason, action, "%s", note)
}
