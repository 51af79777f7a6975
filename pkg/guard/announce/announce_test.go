package announce

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/audit"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// policies has every policy that is asked for.
type policies struct{ client.Reader }

func (policies) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if key.Name == "" {
		return errors.New("there is none")
	}
	object.(*guardv1alpha1.SingletonPolicy).Name = key.Name
	object.SetUID("p")
	return nil
}

// tally is a sink that counts.
type tally struct {
	mutex   sync.Mutex // guards the fields below
	created []corev1.Event
	patched int
}

func (s *tally) Create(event *corev1.Event) (*corev1.Event, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.created = append(s.created, *event)
	return event, nil
}

func (s *tally) Update(event *corev1.Event) (*corev1.Event, error) { return event, nil }

func (s *tally) Patch(event *corev1.Event, _ []byte) (*corev1.Event, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.patched++
	return event, nil
}

func (s *tally) counts() (created, patched int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return len(s.created), s.patched
}

func announcer(t *testing.T, sink *tally) *Announcer {
	t.Helper()
	a, err := New(Deps{
		Policies: policies{}, Sink: sink, Replica: "guard-0", Registry: prometheus.NewRegistry(),
		Owners: func(_ string, first audit.Owner) []audit.Owner { return []audit.Owner{first} },
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func denied(name string) audit.Record {
	return audit.Record{
		Policy: "metacontroller", Decision: audit.DecisionDeny, Enforced: true, Rule: string(decide.RuleSecondWorkload), Operation: audit.OperationCreate, Count: 1,
		Object: audit.Object{Kind: "Deployment", Resource: "deployments", Namespace: "prod", Name: name, UID: "u"}, Message: "second-workload: no\nmore", User: audit.User{Name: "jane"},
	}
}

func TestReasons(t *testing.T) {
	with := func(change func(*audit.Record)) audit.Record {
		r := denied("mc")
		change(&r)
		return r
	}
	exception := &audit.Exception{Namespace: "prod", Name: "mc", Reason: "fire", Expires: time.Unix(0, 0).UTC()}
	for name, test := range map[string]struct {
		record audit.Record
		want   string
		note   string
	}{
		"refused":   {denied("mc"), ReasonRefused, "CREATE of Deployment prod/mc by jane: second-workload: no"},
		"dry run":   {with(func(r *audit.Record) { r.DryRun, r.Enforced = true, false }), "", ""},
		"allowed":   {with(func(r *audit.Record) { r.Decision, r.Rule = audit.DecisionAllow, "" }), "", ""},
		"warned":    {with(func(r *audit.Record) { r.Decision, r.Enforced = audit.DecisionWarn, false }), ReasonNotRefused, "second-workload"},
		"audited":   {with(func(r *audit.Record) { r.Enforced = false }), ReasonNotRefused, "second-workload"},
		"suspected": {with(func(r *audit.Record) { r.Decision, r.Rule = audit.DecisionWarn, string(decide.RuleSuspectedInstance) }), ReasonSuspected, "CREATE"},
		"excepted": {with(func(r *audit.Record) { r.Decision, r.Rule, r.Exception = audit.DecisionAllow, "", exception }), ReasonExceptionUsed,
			"CREATE of Deployment prod/mc by jane: let through by the exception for prod/mc until 1970-01-01T00:00:00Z: fire"},
		"repeated": {with(func(r *audit.Record) { r.Repeated, r.Count = true, 9 }), ReasonRefused, "second-workload: no (9 more times)"},
	} {
		if got := reasonOf(test.record); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
		if note := noteOf(test.record); test.want != "" && !strings.Contains(note, test.note) {
			t.Errorf("%s: the note is %q", name, note)
		}
	}
}

// FuzzNote writes what clients can choose freely: it is one line that a terminal
// takes no orders from.
func FuzzNote(f *testing.F) {
	f.Add("jane\x1b[2K", "mc\n\u202e", "second-workload: \u2028\r\nnext")
	f.Fuzz(func(t *testing.T, user, name, message string) {
		r := denied(name)
		r.User.Name, r.Message = user, message
		note := noteOf(r)
		for _, c := range note {
			if unicode.In(c, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
				t.Fatalf("%U in %q", c, note)
			}
		}
		if len([]rune(note)) > maxNote {
			t.Fatalf("%d characters", len([]rune(note)))
		}
	})
}

// TestFlood tells far more than may become Events: nobody waits, and the cluster
// gets some of them.
func TestFlood(t *testing.T) {
	t.Run("C38 nobody reads", func(t *testing.T) {
		a := announcer(t, &tally{})
		start := time.Now()
		const total = 20_000
		for i := range total {
			a.Tell(denied(fmt.Sprint(i)))
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Fatalf("telling took %s", took)
		}
		if dropped := testutil.ToFloat64(a.dropped); dropped+float64(len(a.queue)) != total || len(a.queue) == 0 {
			t.Fatalf("%v dropped and %d wait", dropped, len(a.queue))
		}
	})
	t.Run("C38 Events are bounded", func(t *testing.T) {
		sink := &tally{}
		a := announcer(t, sink)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Start(ctx) }()
		tell := func(r audit.Record) {
			a.queue <- r // Past the limit in front.
		}
		for i := range 300 {
			r := denied(fmt.Sprint(i))
			r.Operation = audit.OperationUpdate
			r.Object.Name = "mc"
			r.Message = fmt.Sprintf("message %d", i)
			tell(r)
		}
		last := denied("end")
		last.Policy = "other" // Its own limit: it comes through, and is the last.
		tell(last)
		deadline := time.Now().Add(30 * time.Second)
		for {
			sink.mutex.Lock()
			through := len(sink.created) > 0 && sink.created[len(sink.created)-1].InvolvedObject.Name == "other"
			sink.mutex.Unlock()
			if through {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the last Event does not come")
			}
			time.Sleep(time.Millisecond)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		created, patched := sink.counts()
		// Of each of two objects 25 come through, of which most are combined.
		if created+patched > 2*25+1 {
			t.Fatalf("%d were created and %d patched", created, patched)
		}
		t.Logf("300 refusals are %d Events, %d times patched", created, patched)
		for _, event := range sink.created {
			if event.Type != corev1.EventTypeWarning || event.Source.Component != Component || event.Source.Host != "guard-0" || event.InvolvedObject.UID == "" {
				t.Errorf("got %+v", event)
			}
		}
	})
}
