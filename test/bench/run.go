package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/bench/progress"
	"github.com/metacontroller-solo/solo/test/bench/report"
	"github.com/metacontroller-solo/solo/test/bench/tally"
	"github.com/metacontroller-solo/solo/test/bench/workload"
	"github.com/metacontroller-solo/solo/test/kit/process"
)

// settings are what the runs have in common.
type settings struct {
	// Controller is the program; ControllerArgs are added to its arguments.
	Controller     string
	ControllerArgs []string
	Workers        int
	// Phases are the names of those to measure; the first is always.
	Phases []string
	// Samples is how many single changes are timed.
	Samples int
	// Idle is how long nothing happens.
	Idle time.Duration
	// Quiet is how long nothing must happen until a phase is over.
	Quiet time.Duration
	// Profile is the folder for profiles; empty means that none are taken.
	Profile string
	// Raw measures the raw writer too.
	Raw bool
	// Log receives a line about each thing worth knowing.
	Log io.Writer
}

func (s settings) say(format string, args ...any) { _, _ = fmt.Fprintf(s.Log, format+"\n", args...) }

// run is one subject that is measured at one size.
type run struct {
	settings
	plan    workload.Plan
	lab     *lab
	corner  *corner
	tracker *progress.Tracker
	driver  *driver
	subject subject
	// controller is the subject, nil if that is the raw writer; hook then is, too.
	controller *controllerSubject
	hook       *hookProcess
	proc       *process.Process

	// fail ends the run.
	fail context.CancelCauseFunc
	// expectEnd says that proc is about to end.
	expectEnd func()
	// counted are the subject's requests in this phase, sinceStart those of proc.
	counted    tally.Tally
	sinceStart tally.Counts
}

// measure runs all phases with one subject, and returns what was measured until
// then, if there is an error.
func measure(ctx context.Context, s settings, l *lab, plan workload.Plan, raw bool) (phases []report.Phase, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	r := &run{settings: s, plan: plan, lab: l, fail: fail, sinceStart: tally.Counts{}}
	if r.corner, err = l.openCorner(ctx, plan); err != nil {
		return nil, err
	}
	defer r.corner.close()
	r.tracker = progress.New(progress.Goal{Children: plan.Children, Annotated: plan.Mode == workload.Decorator})
	if raw {
		r.subject = newRaw(s, r.corner)
	} else {
		r.controller = newController(s, r.corner, plan)
		r.subject = r.controller
		if r.hook, err = startHook(ctx); err != nil {
			return nil, err
		}
		defer r.hook.proc.Stop()
		defer r.watchOver(r.hook.proc)()
	}
	r.driver = newDriver(l, plan, r.tracker, r.subject.tell)

	var following sync.WaitGroup
	defer following.Wait()
	followCtx, unfollow := context.WithCancel(ctx)
	defer unfollow()
	following.Go(func() {
		if err := r.driver.follow(followCtx); err != nil {
			fail(err)
		}
	})
	go func() {
		select {
		case err := <-l.plane.Failed():
			fail(fmt.Errorf("the control plane failed: %w", err))
		case <-followCtx.Done():
		}
	}()

	defer func() { _ = r.abandon(ctx) }() // there is an error already if it still runs
	if err := r.prepare(ctx); err != nil {
		return nil, because(ctx, err)
	}
	for _, phase := range allPhases {
		if !phase.wanted(r) {
			continue
		}
		done, err := r.measure(ctx, phase)
		if err != nil {
			return phases, fmt.Errorf("phase %q: %w", phase.name, because(ctx, err))
		}
		phases = append(phases, done)
	}
	return phases, r.end(ctx)
}

// because is the reason why ctx was ended, if it was, or else the error.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// watchOver ends the run when a process ends before the function that it returns
// was called.
func (r *run) watchOver(proc *process.Process) (expectEnd func()) {
	expected := make(chan struct{})
	go func() {
		select {
		case <-expected:
			return
		case <-proc.Done():
		}
		select {
		case <-expected: // and it was faster than this goroutine
		default:
			r.fail(proc.ExitError())
		}
	}()
	return sync.OnceFunc(func() { close(expected) })
}

// prepare makes everything ready for the first phase.
func (r *run) prepare(ctx context.Context) error {
	if r.plan.Mode == workload.Customize {
		r.say("  making %d related objects", r.plan.Related)
		if err := r.driver.each(ctx, r.driver.relate); err != nil {
			return err
		}
	}
	if r.controller != nil {
		if err := r.declare(ctx); err != nil {
			return err
		}
	}
	if err := r.startSubject(ctx); err != nil {
		return err
	}
	if r.controller == nil {
		return nil
	}
	return r.untilStarted(ctx)
}

func (r *run) startSubject(ctx context.Context) error {
	proc, err := r.subject.start(ctx)
	if err != nil {
		return err
	}
	r.proc = proc
	r.expectEnd = r.watchOver(r.proc)
	return nil
}

// end stops the subject, after its count of its requests was compared with the
// API server's.
func (r *run) end(ctx context.Context) error {
	if r.proc == nil {
		return nil
	}
	var err error
	if r.controller != nil && ctx.Err() == nil {
		err = r.crossCheck(ctx)
	}
	err = errors.Join(err, r.abandon(ctx))
	if _, drained := r.drain(); drained != nil {
		err = errors.Join(err, drained)
	}
	r.sinceStart = tally.Counts{}
	return err
}

// abandon stops the subject, if it runs.
func (r *run) abandon(ctx context.Context) error {
	if r.proc == nil {
		return nil
	}
	r.expectEnd()
	r.proc = nil
	return r.subject.stop(ctx)
}

// crossCheck compares the two counts of requests that there are.
func (r *run) crossCheck(ctx context.Context) error {
	if _, err := r.drain(); err != nil {
		return err
	}
	before := r.sinceStart.Methods()
	own, err := r.controller.requests(ctx)
	if err != nil {
		return err
	}
	if _, err := r.drain(); err != nil {
		return err
	}
	if err := tally.Between(before, own, r.sinceStart.Methods()); err != nil {
		return fmt.Errorf("the counts of requests cannot be relied on: %w", err)
	}
	return nil
}

// drain takes in what was added to the audit log and returns how many requests of
// the subject about objects there were in this phase.
func (r *run) drain() (int, error) {
	more, err := r.corner.audit.Next()
	if err != nil {
		return 0, err
	}
	if r.counted.Requests == nil {
		r.counted = tally.Tally{Requests: tally.Counts{}, Failed: tally.Counts{}}
	}
	r.counted.Requests.Add(more.Requests)
	r.counted.Failed.Add(more.Failed)
	r.sinceStart.Add(more.Requests)
	return r.counted.Requests.Work(), nil
}

// declare makes the object that declares the controller.
func (r *run) declare(ctx context.Context) error {
	meta := metav1.ObjectMeta{Name: r.plan.Run, Labels: map[string]string{workload.RunLabel: r.plan.Run}}
	selector := &metav1.LabelSelector{MatchLabels: meta.Labels}
	things := v1alpha1.ResourceRule{APIVersion: workload.APIVersion, Resource: workload.Resource}
	configMaps := v1alpha1.ResourceRule{APIVersion: "v1", Resource: "configmaps"}
	hook := func(path string) *v1alpha1.Hook {
		address := r.hook.url(path)
		return &v1alpha1.Hook{Webhook: &v1alpha1.Webhook{URL: &address}}
	}
	const collection = "/apis/metacontroller.k8s.io/v1alpha1/"
	if r.plan.Mode == workload.Decorator {
		return r.lab.create(ctx, collection+v1alpha1.DecoratorControllerResource, &v1alpha1.DecoratorController{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.DecoratorControllerKind},
			ObjectMeta: meta,
			Spec: v1alpha1.DecoratorControllerSpec{
				Resources: []v1alpha1.DecoratorControllerResourceRule{{ResourceRule: things, LabelSelector: selector}},
				Attachments: []v1alpha1.DecoratorControllerAttachmentRule{{
					ResourceRule:   configMaps,
					UpdateStrategy: &v1alpha1.DecoratorControllerAttachmentUpdateStrategy{Method: v1alpha1.ChildUpdateInPlace},
				}},
				Hooks: &v1alpha1.DecoratorControllerHooks{Sync: hook(decoratorPath)},
			},
		}, nil)
	}
	generate := true
	composite := &v1alpha1.CompositeController{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.CompositeControllerKind},
		ObjectMeta: meta,
		Spec: v1alpha1.CompositeControllerSpec{
			ParentResource: v1alpha1.CompositeControllerParentResourceRule{ResourceRule: things, LabelSelector: selector},
			ChildResources: []v1alpha1.CompositeControllerChildResourceRule{{
				ResourceRule:   configMaps,
				UpdateStrategy: &v1alpha1.CompositeControllerChildUpdateStrategy{Method: v1alpha1.ChildUpdateInPlace},
			}},
			Hooks:            &v1alpha1.CompositeControllerHooks{Sync: hook(compositePath)},
			GenerateSelector: &generate,
		},
	}
	if r.plan.Mode == workload.Customize {
		composite.Spec.Hooks.Customize = hook(customizePath)
	}
	return r.lab.create(ctx, collection+v1alpha1.CompositeControllerResource, composite, nil)
}

// reasonStarted is that of the event about a controller that runs.
const reasonStarted = "Started"

// untilStarted waits until the declared controller runs and asks for nothing more.
func (r *run) untilStarted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err := r.proc.Until(ctx, func(ctx context.Context) error {
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		request := r.lab.client.Get().Param("fieldSelector", "involvedObject.name="+r.plan.Run+",reason="+reasonStarted)
		if err := r.lab.do(ctx, request, "/api/v1/namespaces/default/events", nil, &list); err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return fmt.Errorf("there is no event %q of %q", reasonStarted, r.plan.Run)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.untilQuiet(ctx, nil)
}
