package kit

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Verbs of calls, as RBAC names them; Apply is a patch there.
const (
	VerbGet              = "get"
	VerbList             = "list"
	VerbWatch            = "watch"
	VerbCreate           = "create"
	VerbUpdate           = "update"
	VerbPatch            = "patch"
	VerbDelete           = "delete"
	VerbDeleteCollection = "deletecollection"
)

// Call is a call of a client. As a pattern, for Faults, its empty fields match all
// but Subresource, which matches exactly.
type Call struct {
	Verb string
	// Kind is the object's kind; for lists that of the list ("PodList").
	Kind        string
	Namespace   string
	Name        string
	Subresource string
}

func (c Call) matches(pattern Call) bool {
	match := func(have, want string) bool { return want == "" || want == have }
	return match(c.Verb, pattern.Verb) && match(c.Kind, pattern.Kind) && match(c.Namespace, pattern.Namespace) &&
		match(c.Name, pattern.Name) && c.Subresource == pattern.Subresource
}

// Always is a number of times without end.
const Always = -1

// Faults is a client that fails on demand, at the place and time a test chooses,
// and records its calls. Its methods can be called from several goroutines.
type Faults struct {
	client client.WithWatch

	mu    sync.Mutex // guards rules and calls
	rules []*rule
	calls []Call
}

// rule is what happens to calls that match a pattern.
type rule struct {
	pattern Call
	left    int // times, or Always
	before  func(context.Context) error
	after   func(context.Context) error
}

// NewFaults wraps a client.
func NewFaults(c client.WithWatch) *Faults {
	f := &Faults{}
	f.client = interceptor.NewClient(c, f.funcs(c.Scheme()))
	return f
}

// Client is the client that fails.
func (f *Faults) Client() client.WithWatch { return f.client }

// Fail makes the next calls that match fail with err before they reach the server,
// as many times as said.
func (f *Faults) Fail(pattern Call, times int, err error) {
	f.add(&rule{pattern: pattern, left: times, before: func(context.Context) error { return err }})
}

// Lose makes the next calls that match take effect on the server and fail with
// err all the same, like an answer that was lost.
func (f *Faults) Lose(pattern Call, times int, err error) {
	f.add(&rule{pattern: pattern, left: times, after: func(context.Context) error { return err }})
}

// Before calls do before the next calls that match, such as another client's write
// in the window of a race. If it fails the call does, without reaching the server.
func (f *Faults) Before(pattern Call, times int, do func(context.Context) error) {
	f.add(&rule{pattern: pattern, left: times, before: do})
}

// Mend removes all faults.
func (f *Faults) Mend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// Calls returns the calls so far that match, oldest first.
func (f *Faults) Calls(pattern Call) []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.calls), func(c Call) bool { return !c.matches(pattern) })
}

func (f *Faults) add(r *rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, r)
}

// take records a call and returns the first rule for it, if there is one.
func (f *Faults) take(c Call) *rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, c)
	for _, r := range f.rules {
		if r.left == 0 || !c.matches(r.pattern) {
			continue
		}
		if r.left > 0 {
			r.left--
		}
		return r
	}
	return nil
}

// run does a call under its rule. No lock is held meanwhile: what a rule calls may
// use this client.
func (f *Faults) run(ctx context.Context, c Call, do func() error) error {
	r := f.take(c)
	if r != nil && r.before != nil {
		if err := r.before(ctx); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if r != nil && r.after != nil {
		return r.after(ctx)
	}
	return nil
}

// funcs are the client's methods, each under the rules.
func (f *Faults) funcs(scheme *runtime.Scheme) interceptor.Funcs {
	describe := describer{scheme}
	return interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			call := Call{Verb: VerbGet, Kind: describe.kind(obj), Namespace: key.Namespace, Name: key.Name}
			return f.run(ctx, call, func() error { return c.Get(ctx, key, obj, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			call := Call{Verb: VerbList, Kind: describe.kind(list), Namespace: listNamespace(opts)}
			return f.run(ctx, call, func() error { return c.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return f.run(ctx, describe.call(VerbCreate, obj, ""), func() error { return c.Create(ctx, obj, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return f.run(ctx, describe.call(VerbUpdate, obj, ""), func() error { return c.Update(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return f.run(ctx, describe.call(VerbPatch, obj, ""), func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return f.run(ctx, describe.applied(obj, ""), func() error { return c.Apply(ctx, obj, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return f.run(ctx, describe.call(VerbDelete, obj, ""), func() error { return c.Delete(ctx, obj, opts...) })
		},
		DeleteAllOf: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteAllOfOption) error {
			return f.run(ctx, describe.call(VerbDeleteCollection, obj, ""), func() error { return c.DeleteAllOf(ctx, obj, opts...) })
		},
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			var w watch.Interface
			call := Call{Verb: VerbWatch, Kind: describe.kind(list), Namespace: listNamespace(opts)}
			err := f.run(ctx, call, func() (err error) { w, err = c.Watch(ctx, list, opts...); return err })
			if err != nil && w != nil {
				w.Stop()
				w = nil
			}
			return w, err
		},
		SubResourceGet: func(ctx context.Context, c client.Client, sub string, obj, into client.Object, opts ...client.SubResourceGetOption) error {
			return f.run(ctx, describe.call(VerbGet, obj, sub), func() error { return c.SubResource(sub).Get(ctx, obj, into, opts...) })
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, sub string, obj, body client.Object, opts ...client.SubResourceCreateOption) error {
			return f.run(ctx, describe.call(VerbCreate, obj, sub), func() error { return c.SubResource(sub).Create(ctx, obj, body, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			return f.run(ctx, describe.call(VerbUpdate, obj, sub), func() error { return c.SubResource(sub).Update(ctx, obj, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return f.run(ctx, describe.call(VerbPatch, obj, sub), func() error { return c.SubResource(sub).Patch(ctx, obj, patch, opts...) })
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			return f.run(ctx, describe.applied(obj, sub), func() error { return c.SubResource(sub).Apply(ctx, obj, opts...) })
		},
	}
}

// describer tells what a call is about.
type describer struct{ scheme *runtime.Scheme }

func (d describer) kind(obj runtime.Object) string {
	if kind := obj.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	kinds, _, err := d.scheme.ObjectKinds(obj)
	if err != nil || len(kinds) == 0 {
		return ""
	}
	return kinds[0].Kind
}

func (d describer) call(verb string, obj client.Object, subresource string) Call {
	return Call{Verb: verb, Kind: d.kind(obj), Namespace: obj.GetNamespace(), Name: obj.GetName(), Subresource: subresource}
}

// applied describes an apply configuration: an object that is wrapped, or a
// generated one, of which only getters of pointers are known.
func (d describer) applied(obj runtime.ApplyConfiguration, subresource string) Call {
	call := Call{Verb: VerbPatch, Subresource: subresource}
	if object, ok := obj.(interface {
		GetObjectKind() schema.ObjectKind
	}); ok {
		call.Kind = object.GetObjectKind().GroupVersionKind().Kind
	}
	if accessor, err := meta.Accessor(obj); err == nil {
		call.Namespace, call.Name = accessor.GetNamespace(), accessor.GetName()
		return call
	}
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	if generated, ok := obj.(interface {
		GetKind() *string
		GetNamespace() *string
		GetName() *string
	}); ok {
		call.Kind, call.Namespace, call.Name = text(generated.GetKind()), text(generated.GetNamespace()), text(generated.GetName())
	}
	return call
}

func listNamespace(opts []client.ListOption) string {
	var options client.ListOptions
	options.ApplyOptions(opts)
	return options.Namespace
}
