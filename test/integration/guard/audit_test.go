package guard_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/announce"
	"github.com/metacontroller-solo/solo/pkg/guard/audit"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/webhook"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/vitals"
)

// auditedNamespace is the one whose writes are in the API servers' own audit logs:
// testdata/audit-policy.yaml names it.
const auditedNamespace = "audited"

// secret is in what the tests ask for, and nowhere in what is said about it.
const secret = "hunter2-never-logged"

// TestAuditLog reads the guards' audit logs, the API servers' own, and the Events
// of what was asked for.
func TestAuditLog(t *testing.T) {
	s := prepare(t)
	namespace := &corev1.Namespace{}
	namespace.Name = auditedNamespace
	if err := s.admin().Create(s.ctx(), namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if err := s.admin().DeleteAllOf(s.ctx(), &corev1.Event{}, client.InNamespace(auditedNamespace)); err != nil {
		t.Fatal(err)
	}
	// It was there before the guard, and has a ReplicaSet.
	old := deployment(auditedNamespace, "old")
	old.Spec.Replicas = ptr.To[int32](0)
	if err := s.admin().Create(s.ctx(), old); err != nil {
		t.Fatal(err)
	}
	var made appsv1.ReplicaSet
	s.eventually(func() error {
		list := &appsv1.ReplicaSetList{}
		if err := s.admin().List(s.ctx(), list, client.InNamespace(auditedNamespace)); err != nil || len(list.Items) != 1 {
			return fmt.Errorf("%d ReplicaSets: %v", len(list.Items), err)
		}
		made = list.Items[0]
		return nil
	})
	for i := range 2 {
		s.start(guardConfig{server: i % s.cp.APIServers(), args: []string{"--audit-repeat-interval=3s"}})
	}
	s.point()
	s.admission(webhookOnly)
	if err := s.admin().Create(s.ctx(), statefulSet(auditedNamespace, "mc")); err != nil {
		t.Fatal(err)
	}
	s.phase(guardv1alpha1.HolderBound)

	t.Run("I05 join", func(t *testing.T) { s.at(t).joined() })
	t.Run("I04 I06 schema and allows", func(t *testing.T) { s.at(t).allows() })
	t.Run("F21 secret leakage", func(t *testing.T) { s.at(t).leaks() })
	t.Run("owners and Events", func(t *testing.T) { s.at(t).owned(&made) })
	t.Run("suspected instance", func(t *testing.T) { s.at(t).suspected() })
	t.Run("I01 message", func(t *testing.T) { s.at(t).message() })
	t.Run("I02 I03 actions", func(t *testing.T) { s.at(t).recordedActions() })
	t.Run("F07 F08 break-glass", func(t *testing.T) { s.at(t).breakGlass() })
	s.capture()
}

// envCapture names a file that gets the guards' audit logs of this test, valid by
// the schema, and one that gets the API servers' own with ".api" added.
const envCapture = "GUARD_AUDIT_CAPTURE"

func (s *suite) capture() {
	s.t.Helper()
	path := os.Getenv(envCapture)
	if path == "" {
		return
	}
	for _, g := range s.running() {
		g.process.Stop()
	}
	s.t.Logf("%d lines are valid by the schema and written to %s", len(s.records()), path)
	var ours, theirs []string
	for _, g := range s.guards {
		ours = append(ours, g.audit)
	}
	for server := range s.cp.APIServers() {
		theirs = append(theirs, s.cp.AuditLog(server))
	}
	for to, from := range map[string][]string{path: ours, path + ".api": theirs} {
		var all []byte
		for _, name := range from {
			content, err := os.ReadFile(name)
			if err != nil {
				s.t.Fatal(err)
			}
			all = append(all, content...)
		}
		if err := os.WriteFile(to, all, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// apiEvents are the lines of the API servers' own audit logs that have a decision
// id, by that id.
func (s *suite) apiEvents() map[string][]auditv1.Event {
	s.t.Helper()
	events := map[string][]auditv1.Event{}
	for server := range s.cp.APIServers() {
		file, err := os.Open(s.cp.AuditLog(server))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			s.t.Fatal(err)
		}
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			event := auditv1.Event{}
			if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
				s.t.Fatalf("%s: %v", lines.Text(), err)
			}
			for key, id := range event.Annotations {
				if strings.HasSuffix(key, "/"+webhook.AnnotationDecisionID) {
					events[id] = append(events[id], event)
				}
			}
		}
		if err := errors.Join(lines.Err(), file.Close()); err != nil {
			s.t.Fatal(err)
		}
	}
	return events
}

// joined makes a request of each sort, and a loop, and finds each of them in both
// logs under one id.
func (s *suite) joined() {
	before := s.apiEvents()
	loop := statefulSet(auditedNamespace, "loop")
	const loops = 12
	for i := range loops {
		refused(s.t, s.admins[i%len(s.admins)].Create(s.ctx(), loop.DeepCopy()), decide.RuleSecondWorkload, auditedNamespace+"/mc")
	}
	refused(s.t, s.admin().Create(s.ctx(), deployment(auditedNamespace, "second")), decide.RuleSecondWorkload, auditedNamespace+"/mc")
	refused(s.t, s.admin().Create(s.ctx(), pod(auditedNamespace, "bare", instanceImage), client.DryRunAll), decide.RulePodNotPinned, auditedNamespace+"/mc")
	if err := s.patch(statefulSet(auditedNamespace, "mc"), func(sts *appsv1.StatefulSet) {
		sts.Spec.Template.Annotations = map[string]string{"touched": "yes"}
	}); err != nil {
		s.t.Fatal(err)
	}
	impersonated := rest.CopyConfig(s.cp.AdminConfig(0))
	impersonated.Impersonate = rest.ImpersonationConfig{UserName: "jane\u202e", Groups: []string{"system:masters"}}
	refused(s.t, s.client(impersonated).Create(s.ctx(), job(auditedNamespace, "jane")), decide.RuleSecondWorkload, auditedNamespace+"/mc")

	var events map[string][]auditv1.Event
	var lines map[string][]audit.Record
	// What is counted has its line when the interval is over.
	s.eventually(func() error {
		events, lines = s.apiEvents(), map[string][]audit.Record{}
		counts := map[string]int64{}
		for _, record := range s.records() {
			if record.Object.Namespace == auditedNamespace {
				counts[record.DecisionID] += record.Count
				lines[record.DecisionID] = append(lines[record.DecisionID], record)
			}
		}
		var wrong []error
		for id := range events {
			if before[id] != nil {
				delete(events, id) // Of a guard that ran before.
				continue
			}
			if counts[id] != int64(len(events[id])) {
				wrong = append(wrong, fmt.Errorf("%s: the guards' logs count %d, the API servers' %d", id, counts[id], len(events[id])))
			}
		}
		return errors.Join(wrong...)
	})
	var table strings.Builder
	fmt.Fprintf(&table, "\n%-36s | %5s | %6s | %-6s | %-15s | %-18s | %-4s | %s\n", "decision id", "lines", "events", "answer", "rule", "object", "code", "user in the API server's log")
	asked := map[string]int{}
	for id, of := range events {
		record := lines[id][0]
		for _, event := range of {
			asked[event.ObjectRef.Name]++
			if record.Object.Name != event.ObjectRef.Name || record.Object.Resource != event.ObjectRef.Resource || record.Object.Namespace != event.ObjectRef.Namespace {
				s.t.Errorf("%s is about %+v in one log and %+v in the other", id, record.Object, event.ObjectRef)
			}
			if user := seenAs(event); record.User.Name != user {
				s.t.Errorf("%s is by %q in one log and %q in the other", id, record.User.Name, user)
			}
			if denied := record.Decision == audit.DecisionDeny; denied != (event.ResponseStatus.Code == http.StatusForbidden) {
				s.t.Errorf("%s: %s in one log and %d in the other", id, record.Decision, event.ResponseStatus.Code)
			}
		}
		by := of[0].User.Username
		if as := seenAs(of[0]); as != by {
			by += fmt.Sprintf(" as %q", as)
		}
		fmt.Fprintf(&table, "%-36s | %5d | %6d | %-6s | %-15s | %-18s | %-4d | %s\n", id, len(lines[id]), len(of), record.Decision, record.Rule,
			record.Object.Resource+" "+record.Object.Name, of[0].ResponseStatus.Code, by)
	}
	s.t.Log(table.String())
	for name, want := range map[string]int{"loop": loops, "second": 1, "bare": 1, "mc": 1, "jane": 1} {
		if asked[name] < want {
			s.t.Errorf("%d requests about %q are in both logs, want %d", asked[name], name, want)
		}
	}
	looped := 0
	for _, of := range lines {
		if of[0].Object.Name == "loop" {
			looped += len(of)
		}
	}
	if looped < 2 || looped >= loops {
		s.t.Errorf("a loop of %d has %d lines", loops, looped)
	}
}

// seenAs is who a request is by for admission: F10, whoever is impersonated. The
// API server's log knows by whom.
func seenAs(event auditv1.Event) string {
	if event.ImpersonatedUser != nil {
		return event.ImpersonatedUser.Username
	}
	return event.User.Username
}

// await waits for a record that is as wanted.
func (s *suite) await(what string, wanted func(audit.Record) bool) audit.Record {
	s.t.Helper()
	var found audit.Record
	s.eventually(func() error {
		records := s.records()
		at := slices.IndexFunc(records, wanted)
		if at < 0 {
			return fmt.Errorf("no record of %s among %d", what, len(records))
		}
		found = records[at]
		return nil
	})
	return found
}

// allows reads the line of the holder, which was let in.
func (s *suite) allows() {
	record := s.await("the holder", func(r audit.Record) bool {
		return r.Object.Namespace == auditedNamespace && r.Object.Name == "mc" && r.Operation == audit.OperationCreate
	})
	live := &appsv1.StatefulSet{}
	if err := s.admin().Get(s.ctx(), client.ObjectKey{Namespace: auditedNamespace, Name: "mc"}, live); err != nil {
		s.t.Fatal(err)
	}
	if record.Decision != audit.DecisionAllow || !record.Enforced || record.Severity != audit.SeverityInfo || record.Object.UID != live.UID ||
		record.Images[0].Image != instanceImage || !slices.Contains(record.User.Groups, "system:masters") || record.Holder.Name != "mc" ||
		record.PolicyGeneration < 1 || record.LatencySeconds <= 0 || !strings.HasPrefix(record.Replica, "guard-") {
		s.t.Fatalf("got %+v", record)
	}
	// The Pod that the StatefulSet controller made of it, with its owner.
	record = s.await("the holder's Pod", func(r audit.Record) bool {
		return r.Object.Kind == "Pod" && r.Object.Namespace == auditedNamespace && r.Object.Name == "mc-0"
	})
	if record.Decision != audit.DecisionAllow || len(record.Owners) != 1 || record.Owners[0].UID != live.UID || record.User.Name != decide.UserStatefulSetController {
		s.t.Fatalf("got %+v", record)
	}
	if record.User.CredentialID == "" || record.User.UID == "" {
		s.t.Fatalf("the token's id is missing: %+v", record.User)
	}
}

// leaks asks for an instance whose environment, arguments and annotations have a
// secret, and looks for it everywhere.
func (s *suite) leaks() {
	leaky := deployment(auditedNamespace, "leaky")
	container := &leaky.Spec.Template.Spec.Containers[0]
	container.Env = []corev1.EnvVar{{Name: "PASSWORD", Value: secret}}
	container.Command = []string{"/usr/bin/metacontroller"}
	container.Args = []string{"--token=" + secret, "--v=$(PASSWORD)"}
	leaky.Annotations = map[string]string{"note": secret}
	leaky.Spec.Template.Annotations = map[string]string{"note": secret}
	err := s.admin().Create(s.ctx(), leaky)
	refused(s.t, err, decide.RuleSecondWorkload, auditedNamespace+"/mc")
	record := s.await("the leaky one", func(r audit.Record) bool { return r.Object.Name == "leaky" })
	s.awaitEvent(s.policyReference(), announce.ReasonRefused, "leaky")
	said := []string{err.Error(), fmt.Sprint(record), fmt.Sprint(s.events())}
	for _, g := range s.guards {
		content, err := os.ReadFile(g.audit)
		if err != nil {
			s.t.Fatal(err)
		}
		said = append(said, string(content), g.stderr.String())
	}
	policy, err := json.Marshal(s.policy())
	if err != nil {
		s.t.Fatal(err)
	}
	for i, text := range append(said, string(policy)) {
		if strings.Contains(text, secret) {
			s.t.Errorf("text %d has the secret: %s", i, text)
		}
	}
}

func (s *suite) events() []corev1.Event {
	s.t.Helper()
	list := &corev1.EventList{}
	if err := s.admin().List(s.ctx(), list); err != nil {
		s.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(event corev1.Event) bool { return event.Source.Component != announce.Component })
}

// policyReference is the policy as an Event names it.
func (s *suite) policyReference() corev1.ObjectReference {
	policy := s.policy()
	return corev1.ObjectReference{APIVersion: guardv1alpha1.GroupVersion.String(), Kind: guardv1alpha1.SingletonPolicyKind, Name: policy.Name, UID: policy.UID}
}

// awaitEvent waits for an Event about an object with that text.
func (s *suite) awaitEvent(about corev1.ObjectReference, reason, text string) {
	s.t.Helper()
	s.eventually(func() error {
		var seen []string
		for _, event := range s.events() {
			about.ResourceVersion, about.FieldPath = event.InvolvedObject.ResourceVersion, event.InvolvedObject.FieldPath
			if event.InvolvedObject == about && event.Reason == reason && event.Type == corev1.EventTypeWarning && strings.Contains(event.Message, text) {
				return nil
			}
			seen = append(seen, fmt.Sprintf("%s %s: %s", event.InvolvedObject.Kind, event.Reason, event.Message))
		}
		return fmt.Errorf("no Event %s about %s with %q among %q", reason, about.Kind, text, seen)
	})
}

// owned lets a Pod be refused that belongs to the ReplicaSet of a Deployment, and
// one that only says so.
func (s *suite) owned(replicas *appsv1.ReplicaSet) {
	child := func(name string, uid types.UID) *corev1.Pod {
		p := pod(auditedNamespace, name, instanceImage)
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: replicas.Name, UID: uid, Controller: ptr.To(true)}}
		return p
	}
	refused(s.t, s.admin().Create(s.ctx(), child("child", replicas.UID)), decide.RulePodNotPinned, auditedNamespace+"/mc")
	record := s.await("the child", func(r audit.Record) bool { return r.Object.Name == "child" })
	if len(record.Owners) != 2 || record.Owners[0].UID != replicas.UID || record.Owners[1].Kind != "Deployment" || record.Owners[1].Name != "old" {
		s.t.Fatalf("the owners are %+v", record.Owners)
	}
	reference := func(kind, name string, uid types.UID) corev1.ObjectReference {
		return corev1.ObjectReference{APIVersion: "apps/v1", Kind: kind, Namespace: auditedNamespace, Name: name, UID: uid}
	}
	s.awaitEvent(s.policyReference(), announce.ReasonRefused, "child")
	s.awaitEvent(reference("ReplicaSet", replicas.Name, replicas.UID), announce.ReasonRefused, "child")
	s.awaitEvent(reference("Deployment", "old", record.Owners[1].UID), announce.ReasonRefused, "child")

	refused(s.t, s.admin().Create(s.ctx(), child("forger", "00000000-0000-0000-0000-000000000000")), decide.RulePodNotPinned, auditedNamespace+"/mc")
	record = s.await("the forger", func(r audit.Record) bool { return r.Object.Name == "forger" })
	if len(record.Owners) != 1 {
		s.t.Fatalf("the owners are %+v", record.Owners)
	}
	s.awaitEvent(s.policyReference(), announce.ReasonRefused, "forger")
	for _, event := range s.events() {
		if event.InvolvedObject.Kind == "ReplicaSet" && strings.Contains(event.Message, "forger") {
			s.t.Errorf("a forged owner has an Event: %s", event.Message)
		}
	}
	// A workload that exists and is refused a change.
	live := &appsv1.StatefulSet{}
	if err := s.admin().Get(s.ctx(), client.ObjectKey{Namespace: auditedNamespace, Name: "mc"}, live); err != nil {
		s.t.Fatal(err)
	}
	refused(s.t, s.patch(live, func(sts *appsv1.StatefulSet) { sts.Spec.Replicas = ptr.To[int32](3) }), decide.RuleScaleAboveOne, auditedNamespace+"/mc")
	s.awaitEvent(reference("StatefulSet", "mc", live.UID), announce.ReasonRefused, string(decide.RuleScaleAboveOne))
}

// suspected runs Metacontroller's flags under a name that nobody knows.
func (s *suite) suspected() {
	heard := &warnings{}
	config := rest.CopyConfig(s.cp.AdminConfig(0))
	config.WarningHandler = heard
	odd := deployment(auditedNamespace, "odd")
	odd.Spec.Replicas = ptr.To[int32](0)
	odd.Spec.Template.Spec.Containers[0].Image = "registry.example/tools/runner:1"
	odd.Spec.Template.Spec.Containers[0].Args = []string{"--discovery-interval=30s", "--cache-flush-interval=30m", "--target-label-selector=a=b"}
	if err := s.client(config).Create(s.ctx(), odd); err != nil {
		s.t.Fatal(err)
	}
	if len(heard.lines) != 1 || !strings.HasPrefix(heard.lines[0], string(decide.RuleSuspectedInstance)+": ") || len([]rune(heard.lines[0])) > decide.MaxLine {
		s.t.Fatalf("warns %q", heard.lines)
	}
	s.t.Logf("warned: %s", heard.lines[0])
	record := s.await("the odd one", func(r audit.Record) bool { return r.Object.Name == "odd" && r.Object.Kind == "Deployment" })
	if record.Decision != audit.DecisionWarn || record.Enforced || record.Severity != audit.SeverityWarning || record.Rule != string(decide.RuleSuspectedInstance) {
		s.t.Fatalf("got %+v", record)
	}
	s.awaitEvent(s.policyReference(), announce.ReasonSuspected, "odd")
}

// message compares what the person is told with what is in the log.
func (s *suite) message() {
	err := s.admin().Create(s.ctx(), deployment(auditedNamespace, "told"))
	refused(s.t, err, decide.RuleSecondWorkload, auditedNamespace+"/mc")
	record := s.await("the refusal", func(r audit.Record) bool { return r.Object.Name == "told" })
	if _, told, _ := strings.Cut(err.Error(), "denied the request: "); told != record.Message {
		s.t.Fatalf("told %q, and wrote %q", told, record.Message)
	}
}

// recordedActions breaks a rule of a policy that warns, and of one that audits.
func (s *suite) recordedActions() {
	for action, want := range map[guardv1alpha1.ValidationAction]string{
		guardv1alpha1.ActionWarn: audit.DecisionWarn, guardv1alpha1.ActionAudit: audit.DecisionDeny,
	} {
		s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
			spec.ValidationActions = []guardv1alpha1.ValidationAction{action}
		})
		second := deployment(auditedNamespace, "in-"+strings.ToLower(string(action)))
		second.Spec.Replicas = ptr.To[int32](0)
		if err := s.admin().Create(s.ctx(), second); err != nil {
			s.t.Fatal(err)
		}
		record := s.await("what was let in", func(r audit.Record) bool { return r.Object.Name == second.Name && r.Object.Kind == "Deployment" })
		if record.Decision != want || record.Enforced || record.Rule != string(decide.RuleSecondWorkload) || record.Severity != audit.SeverityWarning {
			s.t.Fatalf("%s: got %+v", action, record)
		}
		s.awaitEvent(s.policyReference(), announce.ReasonNotRefused, second.Name)
	}
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
		spec.ValidationActions = []guardv1alpha1.ValidationAction{guardv1alpha1.ActionDeny}
	})
}

// breakGlass uses an exception, and tries to without one.
func (s *suite) breakGlass() {
	annotated := deployment(auditedNamespace, "rescue")
	annotated.Annotations = map[string]string{"guard.metacontroller.io/exception": "please"}
	refused(s.t, s.admin().Create(s.ctx(), annotated.DeepCopy()), decide.RuleSecondWorkload, auditedNamespace+"/mc")
	record := s.await("the refusal", func(r audit.Record) bool { return r.Object.Name == "rescue" })
	if record.Decision != audit.DecisionDeny || !record.Enforced || record.Exception != nil || record.Severity != audit.SeverityWarning {
		s.t.Fatalf("F08: got %+v", record)
	}
	expires := metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second))
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
		spec.Exceptions = []guardv1alpha1.Exception{{Namespace: auditedNamespace, Name: "rescue", Reason: "the node is on fire", Expires: expires}}
	})
	annotated.Spec.Replicas = ptr.To[int32](0)
	if err := s.admin().Create(s.ctx(), annotated); err != nil {
		s.t.Fatal(err)
	}
	record = s.await("the exception", func(r audit.Record) bool {
		return r.Object.Name == "rescue" && r.Exception != nil && r.Object.Kind == "Deployment"
	})
	if record.Decision != audit.DecisionAllow || record.Severity != audit.SeverityCritical || record.Exception.Reason != "the node is on fire" || !record.Exception.Expires.Equal(expires.Time) {
		s.t.Fatalf("F07: got %+v", record)
	}
	s.awaitEvent(s.policyReference(), announce.ReasonExceptionUsed, "the node is on fire")
	excepted := 0.0
	for _, g := range s.running() {
		excepted += s.metric(g, "metacontroller_guard_excepted_requests_total")
	}
	if excepted == 0 {
		s.t.Error("F07: the exception is not counted")
	}
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) { spec.Exceptions = nil })
}

// metric is the sum of a guard's metric over its labels.
func (s *suite) metric(g *guard, name string) float64 {
	s.t.Helper()
	samples, err := vitals.Program{Metrics: g.metrics}.Families(s.ctx())
	if err != nil {
		s.t.Fatal(err)
	}
	sum := 0.0
	for _, sample := range samples[name].GetMetric() {
		sum += sample.GetCounter().GetValue()
	}
	return sum
}

// TestAuditSinks gives the guard's process sinks that take nothing: each decision
// comes at once and right all the same, and what is lost is counted.
func TestAuditSinks(t *testing.T) {
	s := prepare(t)
	fifo := filepath.Join(s.dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := func(closed bool) *os.File {
		from, to, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if closed {
			_ = from.Close()
		} else {
			t.Cleanup(func() { _ = from.Close() })
		}
		t.Cleanup(func() { _ = to.Close() })
		return to
	}
	tests := []struct {
		name   string
		config guardConfig
		// counts says that each line is lost at once.
		counts bool
		code   int
	}{
		{"a full disk", guardConfig{args: []string{"--audit-log=/dev/full"}}, true, 0},
		{"a named pipe without a reader", guardConfig{args: []string{"--audit-log=" + fifo}}, false, 1},
		{"standard output that nobody reads", guardConfig{args: []string{"--audit-log=-"}, stdout: pipe(false)}, false, 1},
		{"standard output whose reader is gone", guardConfig{args: []string{"--audit-log=-"}, stdout: pipe(true)}, true, 0},
	}
	for _, test := range tests {
		test.config.args = append(test.config.args, "--audit-repeat-interval=0")
		g := s.launch(test.config)
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s.at(t).unmoved(g, test.counts, test.code)
		})
	}
}

// unmoved sends more reviews than fit in any queue, and ends the guard.
func (s *suite) unmoved(g *guard, counts bool, code int) {
	if err := g.process.Until(s.ctx(), g.ready); err != nil {
		s.t.Fatalf("%v\n%s", err, g.stderr)
	}
	https := s.httpClient()
	const total = 300
	var longest, all time.Duration
	for i := range total {
		body := strings.NewReader(fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"r%d","operation":"CREATE","namespace":"default",
			"kind":{"group":"apps","version":"v1","kind":"Deployment"},"resource":{"group":"apps","version":"v1","resource":"deployments"},
			"object":{"metadata":{"name":"mc-%d"},"spec":{"template":{"spec":{"containers":[{"name":"m","image":"ghcr.io/metacontroller/metacontroller"}]}}}}}}`, i, i))
		start := time.Now()
		response, err := https.Post("https://"+g.webhook+webhook.Path, "application/json", body)
		if err != nil {
			s.t.Fatal(err)
		}
		review := struct {
			Response struct {
				Allowed          bool              `json:"allowed"`
				AuditAnnotations map[string]string `json:"auditAnnotations"`
			} `json:"response"`
		}{}
		err = errors.Join(json.NewDecoder(response.Body).Decode(&review), response.Body.Close())
		took := time.Since(start)
		longest, all = max(longest, took), all+took
		if err != nil || review.Response.Allowed || review.Response.AuditAnnotations[webhook.AnnotationDecisionID] == "" {
			s.t.Fatalf("review %d: %v, %+v", i, err, review)
		}
	}
	if decisions := s.metric(g, "metacontroller_guard_decisions_total"); decisions != total {
		s.t.Errorf("%v decisions are counted, want %d", decisions, total)
	}
	if counts {
		s.eventually(func() error {
			if lost := s.metric(g, "metacontroller_guard_audit_dropped_lines_total"); lost != total {
				return fmt.Errorf("%v lines are lost, want %d", lost, total)
			}
			return nil
		})
	}
	s.t.Logf("%d refusals, %s on average, %s at most", total, (all / total).Round(time.Microsecond), longest.Round(time.Microsecond))
	// It ends within the time that it gives the last lines, and says if they are lost.
	if err := g.process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	select {
	case <-g.process.Done():
	case <-time.After(3 * patience):
		s.t.Fatal("does not end")
	}
	if status, _ := g.process.Status(); status.Code != code {
		s.t.Errorf("ended with %s, want code %d:\n%s", status, code, g.stderr)
	}
}

// TestAuditFile rotates a guard's file, and moves it away from under it.
func TestAuditFile(t *testing.T) {
	s := prepare(t)
	g := s.start(guardConfig{args: []string{"--audit-log-max-size=1", "--audit-log-max-backups=2", "--audit-repeat-interval=0"}})
	info, err := os.Stat(g.audit)
	if err != nil || info.Mode().Perm()&^0o640 != 0 {
		t.Fatalf("the file is %v: %v", info, err)
	}
	kit.Eventually(t, patience, func() error { return os.Rename(g.audit, g.audit+".moved") })
	code, stderr := run(t, "schema")
	if code != 0 || stderr != "" {
		t.Fatalf("guard schema: %d %s", code, stderr)
	}
	s.unmoved(g, false, 0)
	if lines := len(s.records()); lines != 300 {
		t.Fatalf("%d lines are in the new file, want 300", lines)
	}
}
