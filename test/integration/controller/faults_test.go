package controller_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// TestHookFaults lets the hook fail for one parent and answer for another.
func TestHookFaults(t *testing.T) {
	answerText := func(body string) kit.Hook { return kit.Status(http.StatusOK, body) }
	cases := []struct {
		name  string
		fault kit.Hook
		// says is what the event must have.
		says []string
	}{
		{"closed", kit.Closed(), []string{"cannot be reached"}},
		{"stalled", kit.Stalled(), []string{"did not answer within 5s"}},
		{"500", kit.Status(http.StatusInternalServerError, "database is down, password=hunter2"), []string{"status 500", "database is down"}},
		{"201", kit.Status(http.StatusCreated, `{"children":[]}`), []string{"status 201", "only 200"}},
		{"html", kit.HTML(), []string{"no valid JSON"}},
		{"malformed", kit.Malformed(), []string{"no valid JSON"}},
		{"empty", answerText(""), []string{"empty"}},
		{"truncated", kit.Truncated(), []string{"broke its answer off"}},
		{"huge", kit.Huge(20 << 20), []string{"16 MiB"}},
		{"null", answerText("null"), []string{"must be an object"}},
		{"no-children", answerText("{}"), []string{"children", "is missing"}},
		{"null-child", answerText(`{"children":[null]}`), []string{"children[0]"}},
		{"nameless-child", answerText(`{"children":[{"apiVersion":"v1","kind":"ConfigMap"}]}`), []string{"children[0].metadata.name"}},
		{"undeclared-kind", answerText(`{"children":[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}]}`), []string{"Secret"}},
		{"other-namespace", answerText(`{"children":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"default"}}]}`), []string{"default"}},
		{"refused-by-the-api-server", answerText(`{"children":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"Not A Name"}}]}`), []string{"Not A Name"}},
	}
	f := newFixture(t)
	fault := atomic.Pointer[kit.Hook]{}
	good := defaultHook()
	f.hooks.Handle("/sync", func(w http.ResponseWriter, r *http.Request, request kit.HookRequest) {
		var asked struct {
			Parent struct{ Metadata metav1.ObjectMeta }
		}
		if err := request.Decode(&asked); err != nil {
			t.Error(err)
		}
		if broken := fault.Load(); broken != nil && asked.Parent.Metadata.Labels["broken"] == "yes" {
			(*broken)(w, r, request)
			return
		}
		good(w, r, request)
	})
	f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Spec.Hooks.Sync.Webhook.Timeout = &metav1.Duration{Duration: 5 * time.Second}
	})
	p := f.start()
	bystander := f.thing("bystander", object{"count": 1, "value": "start"})
	f.waitChildren("bystander-", map[string]string{"bystander-0": "start"})

	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := *f
			f.t = t
			fault.Store(&c.fault)
			parent := f.brokenThing("p-" + c.name)
			event := f.event(parent, "SyncError", append([]string{"CompositeController", f.ns}, c.says...)...)
			if strings.Contains(event.Message, "hunter2") {
				t.Errorf("the event has a secret: %s", event.Message)
			}

			// Others are synced meanwhile.
			f.patch(bystander, fmt.Sprintf(`{"spec":{"value":%q}}`, c.name))
			f.waitChildren("bystander-", map[string]string{"bystander-0": c.name})

			// It is tried again by itself once the hook is back.
			fault.Store(nil)
			f.waitChildren("p-"+c.name+"-", map[string]string{"p-" + c.name + "-0": "x"})
			f.waitStatus(parent, 1)
		})
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func (f *fixture) brokenThing(name string) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: object{"apiVersion": thingAPI, "kind": "Thing", "spec": object{"count": 1, "value": "x"}}}
	u.SetNamespace(f.ns)
	u.SetName(name)
	u.SetLabels(map[string]string{testLabel: f.ns, "broken": "yes"})
	if err := f.client.Create(f.t.Context(), u); err != nil {
		f.t.Fatal(err)
	}
	return u
}

func TestHookThatIsDown(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(nil)
	f.start()
	f.hooks.Down()
	parent := f.thing("a", object{"count": 1, "value": "x"})
	f.event(parent, "SyncError", "cannot be reached", "connection refused")
	f.hooks.Up()
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	f.waitStatus(parent, 1)
}

func TestHookThatIsBusy(t *testing.T) {
	f := newFixture(t)
	good := defaultHook()
	f.hooks.Handle("/sync", kit.Sequence(
		kit.Status(http.StatusTooManyRequests, "", "Retry-After: 2"),
		kit.Status(http.StatusTooManyRequests, "", "Retry-After: soon"),
		good))
	f.composite(nil)
	f.start()
	parent := f.thing("a", object{"count": 1, "value": "x"})
	f.waitStatus(parent, 1)
	calls := f.hooks.Requests("/sync")
	for i, least := range []time.Duration{2 * time.Second, time.Second} {
		if gap := calls[i+1].At.Sub(calls[i].At); gap < least {
			t.Errorf("call %d came %s after the one before, not %s", i+1, gap, least)
		}
	}
	for _, event := range f.eventsOf(parent) {
		t.Errorf("there is an event: %s", event.Message)
	}
}

func TestResyncAfter(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", kit.JSON(func(r request) (object, error) {
		if len(r.Children) != 1 {
			return nil, errors.New("no children in the request")
		}
		return object{"children": desired(r), "status": object{}, "resyncAfterSeconds": 0.2}, nil
	}))
	f.composite(nil)
	f.start()
	f.thing("a", object{"count": 1, "value": "x"})
	f.hooks.WaitRequests(soon, "/sync", 8)
}
