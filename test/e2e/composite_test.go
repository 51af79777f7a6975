package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

const (
	catSets     = "samples.metacontroller.io/v1/catsets"
	blueGreens  = "samples.metacontroller.io/v1/bluegreens"
	indexedJobs = "samples.metacontroller.io/v1/indexedjobs"
	tenants     = "samples.metacontroller.io/v1/tenants"
)

// environPatch is a JSON patch that sets the first variable of the first container.
func environPatch(value string) string {
	return fmt.Sprintf(`[{"op":"replace","path":"/spec/template/spec/containers/0/env/0/value","value":%q}]`, value)
}

func (s *sample) setEnviron(object, value string) {
	s.t.Helper()
	s.kubectl("patch", object, "-n", s.name, "--type=json", "-p", environPatch(value))
}

func (s *sample) wantNames(what string, got []string, want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("%s: Pods that %s:\n%s", s.doing, what, diff)
	}
}

func testCatSet(t *testing.T, s *sample) {
	pods := s.recordPods("app=cats")

	s.step("create: each Pod waits for those before it")
	s.example()
	history := pods.take(allReady(3, "meow"))
	s.wantNames("came", added(history), "cat-0", "cat-1", "cat-2")
	if starting := most(history, func(p podState) bool { return !p.ready }); starting > 1 {
		t.Errorf("%d Pods were starting at one time", starting)
	}
	s.want(catSets, s.name, "cat", "status.replicas", "3", "status.readyReplicas", "3", "status.selector", "app=cats")

	s.step("scale up")
	s.kubectl("scale", "catset", "cat", "-n", s.name, "--replicas=4")
	history = pods.take(allReady(4, "meow"))
	s.wantNames("came", added(history), "cat-3")
	s.wantNames("went", ended(history))

	s.step("roll: one Pod at a time, the highest first")
	s.setEnviron("catset/cat", "purr")
	history = pods.take(allReady(4, "purr"))
	s.wantNames("went", ended(history), "cat-3", "cat-2", "cat-1", "cat-0")
	s.wantNames("came", added(history), "cat-3", "cat-2", "cat-1", "cat-0")
	if fewest := fewestReady(history); fewest < 3 {
		t.Errorf("only %d of 4 Pods were ready at one time of the rolling update", fewest)
	}
	s.eventually(func() error {
		cat := s.get(catSets, s.name, "cat")
		if status, reason := condition(cat.Object, "Updated"); status != "True" || reason != "OnLatestRevision" {
			return fmt.Errorf("condition Updated is %q, %q", status, reason)
		}
		return nil
	})
	for _, pod := range history[len(history)-1] {
		s.wantAnswer("http://"+pod.ip+":8080/", "purr")
	}

	s.step("heal: a Pod that was deleted comes back")
	s.kubectl("delete", "pod", "cat-1", "-n", s.name, "--wait=false")
	history = pods.take(func(now map[string]podState) error {
		if now["cat-1"].uid == history[len(history)-1]["cat-1"].uid {
			return errors.New("cat-1 is the old one")
		}
		return allReady(4, "purr")(now)
	})
	s.wantNames("came", added(history), "cat-1")

	s.step("scale down: one at a time, the highest first")
	s.kubectl("scale", "catset", "cat", "-n", s.name, "--replicas=2")
	history = pods.take(allReady(2, "purr"))
	s.wantNames("went", ended(history), "cat-3", "cat-2")
	if ending := most(history, func(p podState) bool { return p.ending }); ending > 1 {
		t.Errorf("%d Pods were ending at one time", ending)
	}

	s.step("delete: the set is taken down in order")
	s.kubectl("delete", "catset", "cat", "-n", s.name, "--wait=false")
	history = pods.take(allReady(0, ""))
	s.wantNames("went", ended(history), "cat-1", "cat-0")
	s.wantNames("came", added(history))
	s.wantGone(catSets, s.name, "cat")
	s.wantNone("metacontroller.k8s.io/v1alpha1/controllerrevisions", s.name, "")
}

// condition returns the status and reason of a condition.
func condition(object map[string]any, name string) (status, reason string) {
	body, _ := object["status"].(map[string]any)
	conditions, _ := body["conditions"].([]any)
	for _, c := range conditions {
		if one, ok := c.(map[string]any); ok && one["type"] == name {
			status, _ = one["status"].(string)
			reason, _ = one["reason"].(string)
		}
	}
	return status, reason
}

// reply is one answer of a Service.
type reply struct {
	start, end time.Time
	version    string
}

// poll asks a hook server behind a Service all the time, from several clients, and
// returns a function that ends it and returns the answers. Requests without one are
// left out: a connection may end with the Pod that it leads to.
func poll(ctx context.Context, url string) func() []reply {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex // guards replies
	var replies []reply
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			for ctx.Err() == nil {
				start := time.Now()
				text, err := answer(ctx, http.MethodPost, url)
				var decoded struct{ Status struct{ Version string } }
				if err == nil {
					err = json.Unmarshal([]byte(text), &decoded)
				}
				if err == nil {
					mu.Lock()
					replies = append(replies, reply{start, time.Now(), decoded.Status.Version})
					mu.Unlock()
				}
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
	return func() []reply {
		cancel()
		clients.Wait()
		return replies
	}
}

// mixed returns an answer of an older version to a request that began after a newer
// version had answered; nil when there is none. Versions are in the order of their
// names.
func mixed(replies []reply) error {
	byEnd := slices.SortedFunc(slices.Values(replies), func(a, b reply) int { return a.end.Compare(b.end) })
	for _, late := range replies {
		for _, early := range byEnd {
			if !early.end.Before(late.start) {
				break
			}
			if early.version > late.version {
				return fmt.Errorf("%s answered %s after %s had answered", late.version, late.start.Sub(early.end), early.version)
			}
		}
	}
	return nil
}

func TestMixed(t *testing.T) {
	at := func(start, end int, version string) reply {
		return reply{time.Unix(int64(start), 0), time.Unix(int64(end), 0), version}
	}
	for _, c := range []struct {
		reason  string
		replies []reply
		mixed   bool
	}{
		{"nothing", nil, false},
		{"one after the other", []reply{at(1, 2, "v1"), at(3, 4, "v2")}, false},
		{"an old answer that was under way", []reply{at(1, 5, "v1"), at(2, 3, "v2")}, false},
		{"an old answer afterwards", []reply{at(1, 2, "v2"), at(3, 4, "v1")}, true},
		{"one hidden among others", []reply{at(5, 6, "v1"), at(1, 2, "v1"), at(3, 9, "v3"), at(2, 3, "v2")}, true},
	} {
		if err := mixed(c.replies); (err != nil) != c.mixed {
			t.Errorf("%s: %v", c.reason, err)
		}
	}
}

func testBlueGreen(t *testing.T, s *sample) {
	const object = "bluegreen/greeter"
	released := func(version string, replicas int) {
		t.Helper()
		count := fmt.Sprint(replicas)
		s.want(blueGreens, s.name, "greeter", "status.released", "true", "status.readyReplicas", count, "status.replicas", count)
		// The old Pods have gone too.
		s.eventually(func() error {
			pods := s.list("v1/pods", s.name, "app=greeter")
			if len(pods) != replicas {
				return fmt.Errorf("there are %d Pods, not %d", len(pods), replicas)
			}
			return nil
		})
		service := s.get("v1/services", s.name, "greeter")
		text, err := answer(t.Context(), http.MethodPost, "http://"+field(service, "spec", "clusterIP")+"/sync")
		if want := fmt.Sprintf(`{"status":{"version":"%s"},"children":[]}`, version); err != nil || text != want {
			t.Errorf("%s: the Service answers %q, %v; want %s", s.doing, text, err, want)
		}
	}

	s.step("create")
	s.example()
	s.patch(object, s.name, `{"spec":{"drainSeconds":2}}`)
	released("v1", 2)
	parent := s.get(blueGreens, s.name, "greeter")
	service := s.get("v1/services", s.name, "greeter")
	stop := poll(t.Context(), "http://"+field(service, "spec", "clusterIP")+"/sync")

	s.step("roll: a release")
	s.setEnviron(object, "v2")
	released("v2", 2)
	s.step("roll: a release that another one overtakes")
	s.setEnviron(object, "v3")
	s.setEnviron(object, "v4")
	released("v4", 2)
	s.step("scale up")
	s.kubectl("scale", object, "-n", s.name, "--replicas=3")
	released("v4", 3)
	s.step("scale and release at once")
	s.patch(object, s.name, `{"spec":{"replicas":1}}`)
	s.setEnviron(object, "v5")
	released("v5", 1)

	replies := stop()
	if err := mixed(replies); err != nil {
		t.Errorf("two versions at one time: %v", err)
	}
	counts := map[string]int{}
	for _, r := range replies {
		counts[r.version]++
	}
	t.Logf("answers by version: %v", counts)
	for _, version := range []string{"v1", "v2", "v4", "v5"} {
		if counts[version] == 0 {
			t.Errorf("%s has never answered", version)
		}
	}

	s.step("delete")
	s.kubectl("delete", object, "-n", s.name)
	s.wantNone("apps/v1/replicasets", s.name, ownerSelector(parent))
	s.wantGone("v1/services", s.name, "greeter")
	s.wantNone("v1/pods", s.name, "app=greeter")
}

func testIndexedJob(t *testing.T, s *sample) {
	const object = "indexedjob/squares"
	pods := s.recordPods("app=squares")
	succeeded := func(count int) func(map[string]podState) error {
		return func(now map[string]podState) error {
			if len(now) != count {
				return fmt.Errorf("there are %d Pods, not %d", len(now), count)
			}
			for name, pod := range now {
				if pod.phase != corev1.PodSucceeded {
					return fmt.Errorf("Pod %q is %s", name, pod.phase)
				}
			}
			return nil
		}
	}
	running := func(p podState) bool { return p.phase != corev1.PodSucceeded && p.phase != corev1.PodFailed }

	s.step("create: two at a time")
	s.example()
	history := pods.take(succeeded(4))
	if count := most(history, running); count > 2 {
		t.Errorf("%d Pods ran at one time", count)
	}
	s.want(indexedJobs, s.name, "squares", "status.succeeded", "4", "status.active", "0", "status.failed", "0")
	for index, want := range map[int]string{0: "0 times 0 is 0\n", 3: "3 times 3 is 9\n"} {
		if said := s.kubectl("logs", "-n", s.name, fmt.Sprint("squares-", index)); said != want {
			t.Errorf("Pod %d said %q", index, said)
		}
	}
	first := history[len(history)-1]

	s.step("change: Pods that have run stay as they are, and the next ones are new")
	s.kubectl("patch", object, "-n", s.name, "--type=json", "-p",
		`[{"op":"replace","path":"/spec/template/spec/containers/0/command/2","value":"console.log('cube', process.env.JOB_INDEX ** 3)"}]`)
	s.step("scale up")
	s.patch(object, s.name, `{"spec":{"completions":6,"parallelism":3}}`)
	history = pods.take(succeeded(6))
	for name, pod := range first {
		if now := history[len(history)-1][name]; now.uid != pod.uid {
			t.Errorf("Pod %q is another one", name)
		}
	}
	if said := s.kubectl("logs", "-n", s.name, "squares-5"); said != "cube 125\n" {
		t.Errorf("the new Pod said %q", said)
	}

	s.step("roll: a Pod that is deleted runs again, by the new template")
	s.kubectl("delete", "pod", "squares-2", "-n", s.name)
	pods.take(func(now map[string]podState) error {
		if now["squares-2"].uid == first["squares-2"].uid {
			return errors.New("squares-2 is the old one")
		}
		return succeeded(6)(now)
	})
	if said := s.kubectl("logs", "-n", s.name, "squares-2"); said != "cube 8\n" {
		t.Errorf("the Pod said %q", said)
	}

	s.step("scale down")
	s.patch(object, s.name, `{"spec":{"completions":3}}`)
	history = pods.take(succeeded(3))
	if last := history[len(history)-1]; last["squares-0"].uid != first["squares-0"].uid {
		t.Error("squares-0 is another one")
	}
	s.want(indexedJobs, s.name, "squares", "status.succeeded", "3")

	s.step("delete")
	s.kubectl("delete", object, "-n", s.name)
	pods.take(succeeded(0))
}

func testTenant(t *testing.T, s *sample) {
	const object = "tenant/acme"
	quota := func(namespace, pods string) {
		t.Helper()
		s.want("v1/resourcequotas", namespace, "tenant", "spec.hard.pods", pods)
	}
	s.step("create: namespaces, and a quota in each")
	s.example()
	quota("acme-dev", "5")
	quota("acme-prod", "5")
	s.want(tenants, "", "acme", "status.namespaces", "2", "status.quotas", "2")
	dev := s.get("v1/namespaces", "", "acme-dev").GetUID()

	s.step("change, and heal")
	s.patch(object, "", `{"spec":{"pods":7}}`)
	quota("acme-dev", "7")
	s.patch("resourcequota/tenant", "acme-prod", `{"spec":{"hard":{"pods":"99"}}}`)
	quota("acme-prod", "7")
	s.kubectl("delete", "resourcequota", "tenant", "-n", "acme-prod")
	quota("acme-prod", "7")

	s.step("scale up")
	s.patch(object, "", `{"spec":{"environments":["dev","prod","test"]}}`)
	quota("acme-test", "7")
	s.want(tenants, "", "acme", "status.namespaces", "3", "status.quotas", "3")

	s.step("roll: other environments in the place of those")
	s.patch(object, "", `{"spec":{"environments":["dev","stage"]}}`)
	quota("acme-stage", "7")
	s.wantGone("v1/namespaces", "", "acme-test")
	s.wantGone("v1/namespaces", "", "acme-prod")
	if now := s.get("v1/namespaces", "", "acme-dev"); now == nil || now.GetUID() != dev {
		t.Error("acme-dev is not the one that it was")
	}
	s.want(tenants, "", "acme", "status.namespaces", "2", "status.quotas", "2")

	s.step("delete")
	s.kubectl("delete", object)
	s.wantNone("v1/namespaces", "", "samples.metacontroller.io/tenant=acme")
}
