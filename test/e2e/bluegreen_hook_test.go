package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"pgregory.net/rapid"
)

const (
	blueGreenRevision = "samples.metacontroller.io/revision"
	blueGreenTurned   = "samples.metacontroller.io/turned-at"
)

// blueGreenWorld is a cluster as far as the hook of BlueGreen sees it, without
// anything that moves by itself.
type blueGreenWorld struct {
	url      string
	version  int
	replicas int
	drain    int
	sets     map[string]map[string]any
	service  map[string]any
	status   map[string]any
	resync   float64
}

type fataler interface{ Fatalf(string, ...any) }

// sync calls the hook once and does what the controller would do with the answer:
// write what differs, with a new generation for a new spec.
func (w *blueGreenWorld) sync(t fataler, ask func(url, request string) (int, map[string]any)) {
	children := map[string]any{"Service.v1": map[string]any{}, "ReplicaSet.apps/v1": map[string]any{}}
	if w.service != nil {
		children["Service.v1"] = map[string]any{"home/web": w.service}
	}
	sets := map[string]any{}
	for name, set := range w.sets {
		sets["home/"+name] = set
	}
	children["ReplicaSet.apps/v1"] = sets
	request, err := json.Marshal(map[string]any{
		"parent": map[string]any{
			"metadata": map[string]any{"name": "web", "namespace": "home"},
			"status":   w.status,
			"spec": map[string]any{
				"replicas": w.replicas, "drainSeconds": w.drain,
				"service": map[string]any{"ports": []any{map[string]any{"port": 80}}},
				"template": map[string]any{
					"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
					"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": fmt.Sprint("i:", w.version)}}},
				},
			},
		},
		"children": children,
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	code, answer := ask(w.url+"/sync", string(request))
	if code != http.StatusOK {
		t.Fatalf("the hook answers %d, %v", code, answer)
	}
	w.status, _ = answer["status"].(map[string]any)
	w.resync, _ = answer["resyncAfterSeconds"].(float64)
	kept := map[string]map[string]any{}
	for _, c := range answer["children"].([]any) {
		child := c.(map[string]any)
		if child["kind"] == "Service" {
			w.service = child
			continue
		}
		name := child["metadata"].(map[string]any)["name"].(string)
		generation := 1.0
		if old := w.sets[name]; old != nil {
			generation = old["metadata"].(map[string]any)["generation"].(float64)
			if fmt.Sprint(old["spec"]) != fmt.Sprint(child["spec"]) {
				generation++
			}
			child["status"] = old["status"]
		}
		child["metadata"].(map[string]any)["generation"] = generation
		kept[name] = child
	}
	w.sets = kept
}

func revisionOf(set map[string]any) string {
	labels := set["spec"].(map[string]any)["template"].(map[string]any)["metadata"].(map[string]any)["labels"].(map[string]any)
	return labels[blueGreenRevision].(string)
}

func (w *blueGreenWorld) selected() string {
	return w.service["spec"].(map[string]any)["selector"].(map[string]any)[blueGreenRevision].(string)
}

func replicasOf(set map[string]any) int {
	return int(set["spec"].(map[string]any)["replicas"].(float64))
}

// run does what the ReplicaSet controller does: as many Pods as the spec says, of
// which so many are ready.
func (w *blueGreenWorld) run(name string, ready int) {
	set := w.sets[name]
	if set == nil {
		return
	}
	replicas := replicasOf(set)
	set["status"] = map[string]any{
		"replicas": float64(replicas), "readyReplicas": float64(min(ready, replicas)),
		"observedGeneration": set["metadata"].(map[string]any)["generation"],
	}
}

// serving is the set that the Service leads to; nil if there is none.
func (w *blueGreenWorld) serving() map[string]any {
	for _, set := range w.sets {
		if revisionOf(set) == w.selected() {
			return set
		}
	}
	return nil
}

func newBlueGreenWorld(t *testing.T) (*blueGreenWorld, func(string, string) (int, map[string]any)) {
	return &blueGreenWorld{url: startHook(t, "bluegreen"), version: 1, replicas: 2, sets: map[string]map[string]any{}},
		func(url, request string) (int, map[string]any) { return ask(t, url, request) }
}

func TestBlueGreenHook(t *testing.T) {
	w, hook := newBlueGreenWorld(t)
	w.drain = 3600
	check := func(reason string, blue, green int, active string) {
		t.Helper()
		for name, want := range map[string]int{"web-blue": blue, "web-green": green} {
			switch set := w.sets[name]; {
			case want < 0 && set != nil:
				t.Errorf("%s: %s is there", reason, name)
			case want >= 0 && (set == nil || replicasOf(set) != want):
				t.Errorf("%s: %s is %v, want %d replicas", reason, name, set, want)
			}
		}
		if w.status["active"] != active {
			t.Errorf("%s: active is %v, want %s", reason, w.status["active"], active)
		}
	}
	w.sync(t, hook)
	first := w.selected()
	check("first", 2, -1, "blue")
	w.run("web-blue", 2)
	w.sync(t, hook)
	check("ready", 2, -1, "blue")
	if w.status["released"] != true {
		t.Errorf("status is %v", w.status)
	}

	w.version = 2
	w.sync(t, hook)
	check("a release begins", 2, 2, "blue")
	w.run("web-green", 1)
	w.sync(t, hook)
	check("half of it is ready", 2, 2, "blue")
	if w.selected() != first || w.status["released"] != false {
		t.Errorf("the Service turned too early, or status is wrong: %v", w.status)
	}
	w.run("web-green", 2)
	w.sync(t, hook)
	check("the Service turns", 2, 2, "green")
	if w.selected() == first || w.resync != 3600.1 {
		t.Errorf("the Service has not turned, or the hook does not want to be called again: %v, %v", w.service, w.resync)
	}
	w.sync(t, hook)
	check("the old Pods drain", 2, 2, "green")
	if w.resync < 3500 {
		t.Errorf("the hook wants to be called in %v s", w.resync)
	}

	// The way back is short while the old Pods are there.
	w.version = 1
	w.sync(t, hook)
	check("back again", 2, 2, "blue")
	if w.selected() != first {
		t.Error("the Service has not turned back")
	}

	// A third version waits until the second is gone.
	w.version = 3
	w.sync(t, hook)
	check("green still drains", 2, 2, "blue")
	w.service["metadata"].(map[string]any)["annotations"] = map[string]any{blueGreenTurned: "2020-01-01T00:00:00Z"}
	w.sync(t, hook)
	check("green goes", 2, 0, "blue")
	w.sync(t, hook)
	check("green has Pods still", 2, 0, "blue")
	w.run("web-green", 0)
	w.sync(t, hook)
	check("green comes in the third version", 2, 2, "blue")
	w.replicas = 3
	w.sync(t, hook)
	check("scaled while a release is under way", 3, 3, "blue")
	w.run("web-green", 3)
	w.sync(t, hook)
	check("the Service turns again", 3, 3, "green")

	delete(w.sets, "web-green")
	w.sync(t, hook)
	w.run("web-blue", 0)
	w.sync(t, hook)
	w.sync(t, hook)
	if serving := w.serving(); serving == nil || w.status["revision"] != w.selected() {
		t.Errorf("after the active set was deleted nothing serves: %v", w.status)
	}
}

// However changes, scaling and the Pods' progress are mixed: the Service never
// turns to a set that is not ready as a whole, its set never shrinks below what is
// wanted but by scaling, and a release ends once changes end.
func TestBlueGreenHookHoldsItsPromise(t *testing.T) {
	world, hook := newBlueGreenWorld(t)
	rapid.Check(t, func(t *rapid.T) {
		w := &blueGreenWorld{url: world.url, version: 1, replicas: 2, sets: map[string]map[string]any{}}
		w.sync(t, hook)
		step := func() {
			before, old := w.selected(), w.serving()
			ready := map[string]int{}
			for _, set := range w.sets {
				status, _ := set["status"].(map[string]any)
				count, _ := status["readyReplicas"].(float64)
				ready[revisionOf(set)] = int(count)
			}
			w.sync(t, hook)
			if after := w.selected(); after != before && old != nil && ready[after] < w.replicas {
				t.Fatalf("the Service turned to a set with %d of %d Pods ready", ready[after], w.replicas)
			}
			if serving := w.serving(); serving == nil || replicasOf(serving) != w.replicas {
				t.Fatalf("the Service leads to %v, %d replicas are wanted", serving, w.replicas)
			}
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				w.version = rapid.IntRange(1, 3).Draw(t, "version")
			case 1:
				w.replicas = rapid.IntRange(0, 3).Draw(t, "replicas")
			case 2:
				w.run(rapid.SampledFrom([]string{"web-blue", "web-green"}).Draw(t, "set"), rapid.IntRange(0, 3).Draw(t, "ready"))
			case 3, 4:
			}
			step()
		}
		for range 6 {
			w.run("web-blue", 3)
			w.run("web-green", 3)
			step()
		}
		total := 0
		for _, set := range w.sets {
			total += replicasOf(set)
		}
		if w.status["released"] != true || total != w.replicas {
			t.Fatalf("the release does not end: status %v, %d replicas in all", w.status, total)
		}
	})
}
