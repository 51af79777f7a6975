package controller_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// envChildren is how many of the hundred thousand children are made before the test
// goes on: all of them take minutes.
const envChildren = "HOSTILE_CHILDREN"

// hundredThousand is the memory, in MiB, that the controller may take for an answer
// with that many children.
const hundredThousand = 600

// TestHundredThousandChildren has an answer with that many. They are made, in
// bounded memory; others go on meanwhile; and when the parent goes, or the
// controller is to end, that ends too.
func TestHundredThousandChildren(t *testing.T) {
	const n = 100_000
	enough := 1000
	if given := os.Getenv(envChildren); given != "" {
		var err error
		if enough, err = strconv.Atoi(given); err != nil {
			t.Fatal(err)
		}
	}
	f := newFixture(t)
	big := many(n, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big-%d"}}`)
	good := defaultHook()
	var asked atomic.Int32
	f.hooks.Handle("/sync", func(w http.ResponseWriter, r *http.Request, call kit.HookRequest) {
		var about struct {
			Parent struct{ Metadata metav1.ObjectMeta }
		}
		if err := call.Decode(&about); err != nil {
			t.Error(err)
		}
		if !strings.HasPrefix(about.Parent.Metadata.Name, "big") {
			good(w, r, call)
			return
		}
		asked.Add(1)
		_, _ = io.WriteString(w, `{"status":{},"children":`+big+`}`)
	})
	f.composite(timeout(time.Minute))
	p := f.start("--workers=2")
	bystander := f.thing("bystander", object{"count": 1, "value": "x"})
	f.waitChild("bystander", "x")
	parent := f.thing("big", object{"count": 1, "value": "x"})
	made := func() int {
		t.Helper()
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
		if err := f.client.List(t.Context(), &list, client.InNamespace(f.ns), client.Limit(1)); err != nil {
			t.Fatal(err)
		}
		left := 0
		if list.RemainingItemCount != nil {
			left = int(*list.RemainingItemCount)
		}
		return len(list.Items) + left - 1 // that of the bystander
	}
	limit := 2*time.Minute + time.Duration(enough)*10*time.Millisecond
	kit.Eventually(t, limit, func() error {
		if got := made(); got < enough {
			return fmt.Errorf("%d of %d children", got, enough)
		}
		return nil
	})
	f.change(bystander, "meanwhile")
	if enough < n {
		// Nothing is made any more for a parent that is gone: only what was under way.
		f.delete(parent)
		kit.Eventually(t, limit, func() error {
			before := made()
			f.change(bystander, fmt.Sprint("after-", before))
			f.change(bystander, fmt.Sprint("after-that-", before))
			if after := made(); after > before {
				return fmt.Errorf("%d children were made meanwhile", after-before)
			}
			return nil
		})
		if got := made(); got == n {
			t.Error("all children were made for a parent that is gone")
		}

		// It is the same for the controller.
		calls := asked.Load()
		f.thing("big", object{"count": 1, "value": "x"})
		kit.Eventually(t, limit, func() error {
			if asked.Load() == calls {
				return fmt.Errorf("the hook was not asked again")
			}
			return nil
		})
	}
	peak := peakMemory(t, p.Pid())
	t.Logf("the controller took %d MiB at most", peak)
	if peak > hundredThousand*raceFactor {
		t.Errorf("the controller took %d MiB", peak)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestNumbers has numbers that no int64, and some that no float64, can hold. What
// the API server can keep arrives, and is not written again and again; what it
// cannot is an error in its own words.
func TestNumbers(t *testing.T) {
	for _, strategy := range []string{"dynamic-apply", "server-side-apply"} {
		t.Run(strategy, func(t *testing.T) {
			f := newFixture(t)
			f.applyTemplate("hostile.yaml")
			numbers := `"large":1e300,"small":1e-300,"whole":9223372036854775807,"least":-9223372036854775808,` +
				`"unsigned":18446744073709551615,"huge":123456789012345678901234567890,"float":1.0,"fraction":0.1,"minus":-0.0,` +
				`"odd":9007199254740993,"long":0.` + strings.Repeat("3", 100_000)
			f.hooks.Handle("/sync", func(w http.ResponseWriter, _ *http.Request, call kit.HookRequest) {
				var r request
				if err := call.Decode(&r); err != nil {
					t.Error(err)
				}
				spec, status := map[string]string{"good": numbers, "beyond": `"x":1e400`, "typed": `"x":1`}[r.Parent.Metadata.Name], ""
				if r.Parent.Metadata.Name == "good" {
					status = spec
				}
				typed := `1`
				if r.Parent.Metadata.Name == "typed" {
					typed = `1.5`
				}
				_, _ = fmt.Fprintf(w, `{"status":{%s},"children":[{"apiVersion":%q,"kind":"Bag","metadata":{"name":%q,"annotations":{"v":%q}},"spec":{%s},"typed":{"whole":%s}}]}`,
					status, thingAPI, r.Parent.Metadata.Name+"-bag", r.Parent.Spec.Value, spec, typed)
			})
			f.composite(func(cc *v1alpha1.CompositeController) {
				cc.Spec.ChildResources[0].APIVersion, cc.Spec.ChildResources[0].Resource = thingAPI, "bags"
			})
			f.start("--apply-strategy=" + strategy)
			good := f.thing("good", object{"count": 1, "value": "x"})
			bag := func() (spec map[string]json.Number, value string) {
				var read struct {
					Metadata metav1.ObjectMeta      `json:"metadata"`
					Spec     map[string]json.Number `json:"spec"`
				}
				raw := f.raw("/apis/" + thingAPI + "/namespaces/" + f.ns + "/bags/good-bag")
				if err := json.Unmarshal(raw, &read); err != nil {
					return nil, ""
				}
				return read.Spec, read.Metadata.Annotations["v"]
			}
			// A change of the parent between the two writes of a sync would have the
			// second one refused, and made again.
			settles := func(want string) {
				kit.Eventually(t, afterBackoff, func() error {
					if _, got := bag(); got != want {
						return fmt.Errorf("the bag has %q", got)
					}
					parent := good.DeepCopy()
					if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(good), parent); err != nil {
						return err
					}
					status, _ := parent.Object["status"].(map[string]any)
					if status["observedGeneration"] != parent.GetGeneration() {
						return fmt.Errorf("the status is of generation %v", status["observedGeneration"])
					}
					return nil
				})
			}
			settles("x")
			spec, _ := bag()
			for field, want := range map[string]string{
				"large": "1e+300", "small": "1e-300", "whole": "9223372036854775807", "least": "-9223372036854775808",
				"odd": "9007199254740993", "fraction": "0.1", "unsigned": "18446744073709552000",
			} {
				if got := spec[field].String(); got != want {
					t.Errorf("%s is %s, not %s", field, got, want)
				}
			}
			// Each change is one write of the child and one of the status, though the
			// API server writes some of the numbers in another way.
			for _, value := range []string{"y", "z"} {
				f.patch(good, fmt.Sprintf(`{"spec":{"value":%q}}`, value))
				settles(value)
			}
			calls := len(f.hooks.Requests("/sync"))
			f.patch(good, `{"metadata":{"annotations":{"touched":"yes"}}}`)
			f.hooks.WaitRequests(soon, "/sync", calls+1)

			beyond := f.thing("beyond", object{"count": 1, "value": "x"})
			f.told(beyond, "children[0].spec.x is 1e400", "float64")
			typed := f.thing("typed", object{"count": 1, "value": "x"})
			f.told(typed, "typed.whole")

			writes := map[string]int{}
			for _, one := range f.writes() {
				if strings.HasPrefix(one.ObjectRef.Name, "good") {
					writes[one.ObjectRef.Resource+"/"+one.ObjectRef.Subresource+" "+one.Verb]++
				}
			}
			for what, n := range writes {
				if n > 3 {
					t.Errorf("%s: %d times", what, n)
				}
			}
			for _, event := range f.eventsOf(good) {
				t.Errorf("there is an event: %.300s", event.Message)
			}
		})
	}
}

// raw is an object as the API server writes it, nil if it is not there.
func (f *fixture) raw(path string) []byte {
	f.t.Helper()
	config := rest.CopyConfig(f.cp.AdminConfig(0))
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		f.t.Fatal(err)
	}
	response, err := client.Get(config.Host + path)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		return nil
	}
	return answer
}
