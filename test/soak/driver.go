package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/metacontroller-solo/solo/test/kit"
)

const (
	// drivers is how many make changes at once, each to parents of its own. They are
	// few: an API server that is slow is to slow them down, not to be flooded.
	drivers = 4
	// everyDecorated, everyRolling and everyGuest are which slots have tanks that
	// are decorated too, that roll, and that wait for guests.
	everyDecorated = 5
	everyRolling   = 10
	everyGuest     = 20
	// guests is how many controllers come and go in a run.
	guests = 120
	// settleLimit is how long what was changed may take to become right after the
	// last change: a hook that failed is called again within a minute.
	settleLimit = 3 * time.Minute
	settlePoll  = 2 * time.Second
)

var (
	tanks      = schema.GroupVersionResource{Group: soakGroup, Version: "v1", Resource: "tanks"}
	puddles    = schema.GroupVersionResource{Group: soakGroup, Version: "v1", Resource: "puddles"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// driver makes the changes.
type driver struct {
	options
	stage  *stage
	client dynamic.Interface
	// slots are where one parent at a time lives. Each is one driver's.
	slots []*slot
	// made counts changes, missed those whose object was not there.
	made, missed atomic.Int64
	guests       int
	failures     failures
}

// slot is a place for a parent, which has several lives.
type slot struct {
	number, life int
}

func (s slot) tank() string   { return fmt.Sprintf("t%d-%d", s.number, s.life) }
func (s slot) puddle() string { return fmt.Sprintf("t%d", s.number) }

func (s slot) labels() map[string]string {
	labels := map[string]string{roleLabel: roleComposite}
	switch {
	case s.number%everyGuest == everyGuest-1:
		labels[roleLabel] = roleGuest
	case s.number%everyRolling == everyRolling-1:
		labels[roleLabel] = roleRolling
	}
	if s.number%everyDecorated == 0 {
		labels[decoratedLabel] = "yes"
	}
	return labels
}

// failures keeps the first of the errors that say something.
type failures struct {
	mu    sync.Mutex
	count int   // guarded by mu
	first error // guarded by mu
}

func (f *failures) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if f.first == nil {
		f.first = err
	}
}

func newDriver(s *stage, o options) *driver { return &driver{options: o, stage: s} }

// prepare makes the parents, and waits until the controller has made the children.
func (d *driver) prepare(ctx context.Context) error {
	var err error
	if d.client, err = dynamic.NewForConfig(d.stage.config); err != nil {
		return fmt.Errorf("cannot make a client: %w", err)
	}
	d.stage.hooks.mended.Store(true)
	for i := range d.parents {
		s := &slot{number: i}
		d.slots = append(d.slots, s)
		puddle := &unstructured.Unstructured{Object: object{"apiVersion": soakAPI, "kind": "Puddle", "spec": object{keyValue: "0"}}}
		puddle.SetName(s.puddle())
		if _, err := d.client.Resource(puddles).Namespace(namespace).Create(ctx, puddle, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("cannot create puddle %q: %w", s.puddle(), err)
		}
		if err := d.create(ctx, *s); err != nil {
			return err
		}
	}
	if err := d.converge(ctx); err != nil {
		return err
	}
	d.stage.hooks.mended.Store(false)
	return nil
}

func (d *driver) create(ctx context.Context, s slot) error {
	tank := &unstructured.Unstructured{Object: object{"apiVersion": soakAPI, "kind": "Tank", "spec": object{keyValue: "new"}}}
	tank.SetName(s.tank())
	tank.SetLabels(s.labels())
	if _, err := d.client.Resource(tanks).Namespace(namespace).Create(ctx, tank, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("cannot create tank %q: %w", s.tank(), err)
	}
	return nil
}

// run makes changes, evenly in time, until ctx ends.
func (d *driver) run(ctx context.Context) {
	distance := d.duration * drivers / time.Duration(d.changes)
	var all sync.WaitGroup
	for i := range drivers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(d.seed, uint64(i)))
			var mine []*slot
			for j := i; j < len(d.slots); j += drivers {
				mine = append(mine, d.slots[j])
			}
			d.drive(ctx, random, mine, distance)
		})
	}
	all.Go(func() { d.visit(ctx) })
	all.Wait()
}

// drive makes changes at this distance. What was late is caught up.
func (d *driver) drive(ctx context.Context, random *rand.Rand, mine []*slot, distance time.Duration) {
	if len(mine) == 0 {
		return
	}
	next := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := 0; ; n++ {
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		next = next.Add(distance)
		d.note(ctx, d.change(ctx, random, mine[random.IntN(len(mine))], n))
	}
}

// note counts a change. That an object is gone, or new, or not made yet, is the
// order of things here.
func (d *driver) note(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		d.missed.Add(1)
		d.made.Add(1)
	case err != nil:
		d.failures.note(err)
	default:
		d.made.Add(1)
	}
}

// change makes one change to a parent, to what belongs to it, or around it.
func (d *driver) change(ctx context.Context, random *rand.Rand, s *slot, n int) error {
	value := fmt.Sprint(n)
	child := childName(s.tank(), random.IntN(childrenOfEach))
	switch dice := random.IntN(100); {
	case dice < 55:
		return d.patch(ctx, tanks, s.tank(), object{"spec": object{keyValue: value}})
	case dice < 60:
		return d.patch(ctx, tanks, s.tank(), object{"metadata": object{"annotations": object{"note": value}}})
	case dice < 78:
		return d.patch(ctx, configMaps, child, object{"data": object{keyValue: "tampered " + value}})
	case dice < 85:
		return d.delete(ctx, configMaps, child)
	case dice < 90:
		return d.patch(ctx, puddles, s.puddle(), object{"spec": object{keyValue: value}})
	default:
		err := d.delete(ctx, tanks, s.tank())
		s.life++
		d.note(ctx, err)
		return d.create(ctx, *s)
	}
}

func (d *driver) patch(ctx context.Context, resource schema.GroupVersionResource, name string, change object) error {
	body, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("cannot encode change of %q: %w", name, err)
	}
	_, err = d.client.Resource(resource).Namespace(namespace).Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

func (d *driver) delete(ctx context.Context, resource schema.GroupVersionResource, name string) error {
	background := metav1.DeletePropagationBackground
	return d.client.Resource(resource).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background})
}

// visit lets controllers come and go, two at a time at most.
func (d *driver) visit(ctx context.Context) {
	ticker := time.NewTicker(max(d.duration/guests, time.Second))
	defer ticker.Stop()
	leave := func(ctx context.Context, n int) {
		name, resource, _ := guest(n, d.stage.hooks.url)
		kind := schema.GroupVersionResource{Group: "metacontroller.k8s.io", Version: "v1alpha1", Resource: resource}
		d.note(ctx, d.client.Resource(kind).Delete(ctx, name, metav1.DeleteOptions{}))
	}
	defer func() {
		// The last ones go before it is looked whether all is right.
		last := context.WithoutCancel(ctx)
		for n := max(0, d.guests-2); n < d.guests; n++ {
			leave(last, n)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		_, _, manifest := guest(d.guests, d.stage.hooks.url)
		_, err := kit.ApplyYAML(ctx, d.stage.config, []byte(manifest))
		d.note(ctx, err)
		d.guests++
		if old := d.guests - 3; old >= 0 {
			leave(ctx, old)
		}
	}
}

// converge waits until each parent has its children, with the values that they
// should have, and no parent is left of those that were deleted. Of guests' tanks
// it asks nothing: their controllers are gone.
func (d *driver) converge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for {
		err := d.right(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-d.stage.controller.Done():
			return errors.New("the controller has ended")
		case <-time.After(settlePoll):
		}
	}
}

func (d *driver) right(ctx context.Context) error {
	values := map[string]string{}
	for resource, path := range map[schema.GroupVersionResource][]string{configMaps: {"data", keyValue}, tanks: {"spec", keyValue}} {
		list, err := d.client.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("cannot list %s: %w", resource.Resource, err)
		}
		for i := range list.Items {
			value, _, _ := unstructured.NestedString(list.Items[i].Object, path...)
			values[resource.Resource+"/"+list.Items[i].GetName()] = value
		}
		if resource == tanks && len(list.Items) != len(d.slots) {
			return fmt.Errorf("there are %d tanks, not %d", len(list.Items), len(d.slots))
		}
	}
	for _, s := range d.slots {
		want, there := values["tanks/"+s.tank()]
		if !there {
			return fmt.Errorf("tank %q is not there", s.tank())
		}
		if s.labels()[roleLabel] == roleGuest {
			continue
		}
		for i := range childrenOfEach {
			name := childName(s.tank(), i)
			if got, there := values["configmaps/"+name]; !there || got != want {
				return fmt.Errorf("ConfigMap %q has the value %q, not %q", name, got, want)
			}
		}
		if s.labels()[decoratedLabel] != "" {
			name := decorationName(s.tank(), decorator)
			if got, there := values["configmaps/"+name]; !there || got != want {
				return fmt.Errorf("ConfigMap %q has the value %q, not %q", name, got, want)
			}
		}
	}
	return nil
}
