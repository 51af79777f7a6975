package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/test/kit"
)

// fault is something that clusters do.
type fault struct {
	name string
	// rounds at a scale; nil is one.
	rounds func(scale) int
	// load is how long the operations of a round take at least; nil is briefly.
	load func(scale) time.Duration
	// rests is a kind that gets no operations meanwhile.
	rests string
	// inject does it, beside the operations, and undoes it before it returns.
	inject func(*world) error
	// breaks is what cannot be broken in two ways at once.
	breaks string
	// alone faults are not mixed with others.
	alone bool
	// long faults are part of the long form only.
	long bool
}

// briefly is how long the operations of a short round take.
const briefly = 800 * time.Millisecond

func outage(s scale) time.Duration { return s.outage }

func faults() []fault {
	return []fault{
		{name: "kill", breaks: "controller", rounds: func(s scale) int { return s.kills }, inject: (*world).kill},
		{name: "api-server-kill", breaks: "api-server", load: outage, inject: (*world).killAPIServer},
		{name: "parents-replaced-unseen", rests: "rollers", inject: (*world).replaceUnseen, alone: true, long: true},
		{name: "api-server-restart", breaks: "api-server", load: outage, inject: (*world).restartAPIServer, long: true},
		{name: "etcd-paused", breaks: "etcd", load: outage, inject: (*world).pauseEtcd},
		{name: "etcd-killed", breaks: "etcd", load: outage, inject: (*world).killEtcd},
		{name: "lagging-api-server", breaks: "way", load: func(s scale) time.Duration { return min(2*s.outage, 20*time.Second) }, inject: (*world).lag},
		{name: "watches-cut", breaks: "cut", load: func(s scale) time.Duration { return min(s.outage, 10*time.Second) }, inject: (*world).cut},
		{name: "watches-expired", breaks: "answers", inject: (*world).expire},
		{name: "compaction", inject: (*world).compact, alone: true},
		{name: "throttled-by-proxy", breaks: "answers", load: func(s scale) time.Duration { return min(s.outage, 15*time.Second) }, inject: (*world).throttle},
		{name: "throttled-by-server", load: func(s scale) time.Duration { return min(s.outage, 15*time.Second) }, inject: (*world).throttleByServer, alone: true},
		{name: "hooks-down", breaks: "hooks", load: func(s scale) time.Duration { return s.hookOutage }, inject: (*world).hooksDown},
		{name: "parent-crd-recreated", rests: "inplaces", inject: (*world).recreateParents, alone: true},
		{name: "child-crd-recreated", inject: (*world).recreateParts, alone: true},
		{name: "lease-stolen-in-a-sync", inject: (*world).stealLease, alone: true},
		{name: "lease-deleted", load: func(scale) time.Duration { return 3 * time.Second }, inject: (*world).deleteLease, alone: true},
		{name: "holder-frozen-past-expiry", load: func(scale) time.Duration { return singleton.Duration + 6*time.Second }, inject: (*world).freeze, alone: true, long: true},
		{name: "network-gone", load: func(scale) time.Duration { return singleton.Duration }, inject: (*world).partition, alone: true, long: true},
	}
}

// TestFaults lets the faults happen, one after the other and some at once, while
// users work. After each, all must be as if nothing had happened.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	w.mint(10)
	w.updating.start()
	w.applying.start()
	w.run("start", 1, func() error {
		return w.round(func() error { return nil }, 2*briefly, w.scale.parents*2)
	})
	for _, one := range faults() {
		if w.scale.only != "" && one.name != w.scale.only || one.long && !w.scale.long && w.scale.only == "" {
			continue
		}
		rounds, load := 1, briefly
		if one.rounds != nil {
			rounds = one.rounds(w.scale)
		}
		if one.load != nil {
			load = one.load(w.scale)
		}
		w.run(one.name, rounds, func() error {
			w.model.resting[one.rests] = true
			defer delete(w.model.resting, one.rests)
			return w.round(func() error { return one.inject(w) }, load, w.scale.operations)
		})
	}
	if w.scale.only == "" || w.scale.only == mixed {
		w.mix()
	}
	w.waitQuiet()
	w.must(w.waitHolding())
	for _, k := range []*keeper{w.updating, w.applying} {
		now := k.now()
		k.stop()
		if status, ended := now.proc.Status(); !ended || status.Code != 0 {
			t.Errorf("%s ended with %s", k.pod, status)
		}
	}
	w.checkWrites()
}

// mixed is the name of several faults at once; mixedFaults is how many.
const (
	mixed       = "mixed"
	mixedFaults = 3
)

// mix lets several faults happen at once.
func (w *world) mix() {
	var mixable []fault
	for _, one := range faults() {
		if !one.alone && !one.long {
			mixable = append(mixable, one)
		}
	}
	w.scale.outage, w.scale.hookOutage = min(w.scale.outage, 5*time.Second), min(w.scale.hookOutage, 5*time.Second)
	for range w.scale.mixed {
		var names []string
		var chosen []fault
		breaks := map[string]bool{}
		for _, i := range w.chance.Perm(len(mixable)) {
			one := mixable[i]
			if len(chosen) < mixedFaults && !breaks[one.breaks] {
				names, chosen, breaks[one.breaks] = append(names, one.name), append(chosen, one), true
			}
		}
		w.run(mixed+":"+strings.Join(names, "+"), 1, func() error {
			return w.round(func() error {
				failures := make(chan error, len(chosen))
				for _, one := range chosen {
					go func() { failures <- one.inject(w) }()
				}
				var all error
				for range chosen {
					all = errors.Join(all, <-failures)
				}
				return all
			}, w.scale.outage, w.scale.operations)
		})
	}
}

// run makes rounds of a fault, and says how it went.
func (w *world) run(name string, rounds int, round func() error) {
	done := w.t.Run(name, func(t *testing.T) {
		outer := w.t
		w.t = t
		defer func() { w.t = outer }()
		var (
			slowest, total     time.Duration
			runs               = w.updating.runs() + w.applying.runs() + w.standby.runs()
			statuses, expiries = w.proxy.Answered()
			writes             = len(w.audit.records)
			collectors         = w.collectors
		)
		begun := time.Now()
		for range rounds {
			w.mint(20)
			if err := round(); err != nil {
				t.Fatalf("seed %d: %v", w.seed, err)
			}
			took := w.converge()
			slowest, total = max(slowest, took), total+took
		}
		now, expired := w.proxy.Answered()
		t.Logf("seed=%d fault=%s rounds=%d took=%s converged: mean=%s slowest=%s parents=%d children=%d starts=%d writes=%d 409=%d 410=%d 429=%d collectors=%d",
			w.seed, name, rounds, time.Since(begun).Round(time.Millisecond), (total / time.Duration(rounds)).Round(time.Millisecond), slowest.Round(time.Millisecond),
			len(w.model.parents), len(w.model.children()), w.updating.runs()+w.applying.runs()+w.standby.runs()-runs, len(w.audit.records)-writes,
			now[http.StatusConflict]-statuses[http.StatusConflict], now[http.StatusGone]-statuses[http.StatusGone]+expired-expiries,
			now[http.StatusTooManyRequests]-statuses[http.StatusTooManyRequests], w.collectors-collectors)
	})
	if !done {
		w.t.FailNow()
	}
}

// round lets users work while something happens.
func (w *world) round(happens func() error, load time.Duration, operations int) error {
	todo := w.operations(operations)
	worked := make(chan error, 1)
	go func() { worked <- w.work(todo, load) }()
	return errors.Join(happens(), <-worked)
}

// someTime is a random time up to the given one.
func (w *world) someTime(most time.Duration) time.Duration {
	return time.Duration(w.chance.Float64() * float64(most))
}

// waitHolding waits until both controllers work.
func (w *world) waitHolding() error {
	return errors.Join(w.updating.waitHolding(), w.applying.waitHolding())
}

// kill ends one of the controllers, or both, at any moment of their work.
func (w *world) kill() error {
	which := w.chance.IntN(3)
	pause := w.someTime(briefly)
	waits := w.scale.long && w.chance.IntN(8) == 0
	if err := w.waitHolding(); err != nil {
		return err
	}
	time.Sleep(pause)
	for i, k := range []*keeper{w.updating, w.applying} {
		k.setWaits(waits)
		if which != 1-i {
			k.kill()
		}
	}
	err := w.waitHolding()
	w.updating.setWaits(false)
	w.applying.setWaits(false)
	return err
}

func (w *world) killAPIServer() error {
	target := w.proxy.Target()
	time.Sleep(w.someTime(briefly / 2))
	w.cp.KillAPIServer(target)
	time.Sleep(w.scale.outage / 3)
	return w.cp.RestartAPIServer(w.t.Context(), target)
}

// replaceUnseen deletes parents and makes them anew while the API server that the
// garbage collector watches is gone: it sees the new ones only.
func (w *world) replaceUnseen() error {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	const plural = "rollers"
	again := map[parentKey]types.UID{}
	for i := range 2 {
		key, p := parentKey{plural, fmt.Sprintf("again-%d%d", w.model.next, i)}, parent{count: 2, value: "first"}
		w.model.parents[key] = p
		if err := w.createParent(ctx, key, p, ""); err != nil {
			return err
		}
		kit.Eventually(w.t, patience, func() error {
			_, err := w.get(ctx, configMaps, childName(key, 1))
			return err
		})
		live, err := w.get(ctx, resourceOf(plural), key.name)
		if err != nil {
			return err
		}
		again[key] = live.GetUID()
	}
	w.cp.KillAPIServer(0)
	for key, uid := range again {
		p := w.model.parents[key]
		p.value = "second"
		w.model.parents[key] = p
		if err := w.delete(ctx, resourceOf(plural), key.name); err != nil {
			return err
		}
		if err := w.createParent(ctx, key, p, uid); err != nil {
			return err
		}
	}
	return w.cp.RestartAPIServer(w.t.Context(), 0)
}

func (w *world) restartAPIServer() error {
	target := w.proxy.Target()
	time.Sleep(w.someTime(briefly / 2))
	w.cp.StopAPIServer(target)
	return w.cp.RestartAPIServer(w.t.Context(), target)
}

func (w *world) pauseEtcd() error {
	time.Sleep(w.someTime(briefly / 2))
	if err := w.cp.PauseEtcd(); err != nil {
		return err
	}
	time.Sleep(w.scale.outage)
	return w.cp.ResumeEtcd()
}

func (w *world) killEtcd() error {
	time.Sleep(w.someTime(briefly / 2))
	w.cp.StopEtcd()
	time.Sleep(w.scale.outage)
	return w.cp.StartEtcd(w.t.Context())
}

// lag makes one API server late in all that it knows, and has the controller go
// from one to the other and back.
func (w *world) lag() error {
	slowLink.Delay(w.someTime(w.scale.outage/10) + 300*time.Millisecond)
	defer slowLink.Delay(0)
	defer w.proxy.To(0)
	for i := range 2 * w.scale.cuts {
		w.proxy.To((i + 1) % 2)
		w.proxy.Cut()
		time.Sleep(w.scale.outage/8 + w.someTime(w.scale.outage/8))
	}
	return nil
}

func (w *world) cut() error {
	// client-go waits longer after each cut, up to half a minute.
	for range w.scale.cuts {
		time.Sleep(50*time.Millisecond + w.someTime(400*time.Millisecond))
		if w.chance.IntN(2) == 0 {
			w.proxy.Cut()
		} else {
			w.proxy.CutWatches()
		}
	}
	return nil
}

// expire ends watches with 410, and refuses some new ones with it.
func (w *world) expire() error {
	var asked atomic.Int64
	w.proxy.Intercept(func(rw http.ResponseWriter, r *http.Request) bool {
		query := r.URL.Query()
		if query.Get("watch") == "" || query.Get("resourceVersion") == "" || asked.Add(1)%3 != 0 {
			return false
		}
		kit.Gone(rw)
		return true
	})
	defer w.proxy.Intercept(nil)
	for range w.scale.cuts {
		w.proxy.ExpireWatches()
		time.Sleep(w.someTime(300 * time.Millisecond))
		w.proxy.CutWatches()
		time.Sleep(w.someTime(300 * time.Millisecond))
	}
	return nil
}

// compact keeps the controller off while things change, makes etcd forget how,
// and leads it to an API server that has just started: it cannot know either.
func (w *world) compact() error {
	w.proxy.Block()
	defer w.proxy.Unblock()
	w.proxy.Cut()
	time.Sleep(briefly)
	if err := w.cp.CompactEtcd(w.t.Context()); err != nil {
		return err
	}
	w.cp.KillAPIServer(1)
	if err := w.cp.RestartAPIServer(w.t.Context(), 1); err != nil {
		return err
	}
	w.proxy.To(1)
	w.proxy.Cut()
	w.proxy.Unblock()
	time.Sleep(briefly)
	w.proxy.To(0)
	w.proxy.Cut()
	return nil
}

// throttle answers every second request with 429.
func (w *world) throttle() error {
	var asked atomic.Int64
	w.proxy.Intercept(func(rw http.ResponseWriter, _ *http.Request) bool {
		if asked.Add(1)%2 == 0 {
			return false
		}
		kit.TooManyRequests(rw, 1)
		return true
	})
	time.Sleep(min(w.scale.outage, 15*time.Second))
	w.proxy.Intercept(nil)
	return nil
}

// throttleByServer gives the controller's writes no share of what an API server
// can do, and then a small one.
func (w *world) throttleByServer() error {
	before, _ := w.proxy.Answered()
	w.applyTemplate("throttle.yaml", "SHARES", "0")
	kit.Eventually(w.t, patience, func() error {
		now, _ := w.proxy.Answered()
		if now[http.StatusTooManyRequests] == before[http.StatusTooManyRequests] {
			// Operations may be over: a parent that is changed has its status written.
			for _, key := range w.model.candidates()[:1] {
				if err := w.patch(w.t.Context(), resourceOf(key.plural), key.name, object{"metadata": object{"annotations": object{"touched": time.Now().String()}}}); err != nil {
					return err
				}
				_ = w.delete(w.t.Context(), configMaps, childName(key, 0))
			}
			return errors.New("nothing was answered 429")
		}
		return nil
	})
	w.applyTemplate("throttle.yaml", "SHARES", "1")
	time.Sleep(min(w.scale.outage, 15*time.Second))
	for _, plural := range []string{"flowschemas", "prioritylevelconfigurations"} {
		at := flowControl
		at.Resource = plural
		err := w.try(w.t.Context(), func(c dynamic.Interface) error {
			return c.Resource(at).Delete(w.t.Context(), "faults", metav1.DeleteOptions{})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hooksDown lets the hooks be out of reach, fail, be busy and be silent.
func (w *world) hooksDown() error {
	w.hooks.Down()
	time.Sleep(w.scale.hookOutage / 2)
	w.hooks.Up()
	for _, answer := range []kit.Hook{kit.Status(http.StatusInternalServerError, "broken"), kit.Truncated(), kit.Status(http.StatusTooManyRequests, "", "Retry-After: 1"), kit.Stalled()} {
		w.moods.set(failing(answer))
		time.Sleep(w.scale.hookOutage / 8)
	}
	w.moods.set(nil)
	return nil
}

// manifestOf is the CustomResourceDefinition of a kind in kinds.yaml.
func manifestOf(plural string) (string, error) {
	content, err := os.ReadFile(filepath.Join("testdata", "kinds.yaml"))
	if err != nil {
		return "", err
	}
	for _, document := range strings.Split(string(content), "\n---\n") {
		if strings.Contains(document, "\n  name: "+plural+"."+group+"\n") {
			return document, nil
		}
	}
	return "", fmt.Errorf("there is no kind %s", plural)
}

// recreateCRD deletes a kind with all of its objects, leaves it gone for a while,
// and makes it again with another schema.
func (w *world) recreateCRD(plural, before, after string) error {
	manifest, err := manifestOf(plural)
	if err != nil {
		return err
	}
	name := plural + "." + group
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	err = w.try(ctx, func(c dynamic.Interface) error { return c.Resource(crds).Delete(ctx, name, metav1.DeleteOptions{}) })
	if err != nil {
		return err
	}
	for {
		err := w.try(ctx, func(c dynamic.Interface) error {
			_, err := c.Resource(crds).Get(ctx, name, metav1.GetOptions{})
			return err
		})
		if apierrors.IsNotFound(err) {
			break
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not go", name)
		case <-time.After(50 * time.Millisecond):
		}
	}
	time.Sleep(w.someTime(2 * time.Second))
	_, err = kit.ApplyYAML(ctx, w.cp.AdminConfig(0), []byte(strings.Replace(manifest, before, after, 1)))
	return err
}

// recreateParents changes parents, takes their kind away at that moment, and
// brings it back.
func (w *world) recreateParents() error {
	const plural = "inplaces"
	changed := 0
	for key, p := range w.model.parents {
		if key.plural != plural || key.name == blocked {
			continue
		}
		if changed++; changed > 10 {
			break
		}
		p.value += "-last"
		if err := w.patch(w.t.Context(), resourceOf(plural), key.name, object{"spec": specOf(p)}); err != nil {
			return err
		}
	}
	w.model.remove(plural)
	wall := parentKey{plural, blocked}
	w.model.mayDelete(childrenOf(wall, w.model.parents[wall])...)
	if err := w.recreateCRD(plural, "source: {type: integer}", "source: {type: integer}\n              extra: {type: string, default: more}"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if err := w.createParent(ctx, wall, w.model.parents[wall], ""); err != nil {
		return err
	}
	for i := range 10 {
		key, p := parentKey{plural, fmt.Sprintf("back-%d-%d", w.model.next, i)}, parent{count: 2, value: "back"}
		w.model.parents[key] = p
		if err := w.createParent(ctx, key, p, ""); err != nil {
			return err
		}
	}
	return nil
}

// recreateParts takes a kind of children away and brings it back with a field that
// has a default.
func (w *world) recreateParts() error {
	time.Sleep(w.someTime(briefly / 2))
	w.model.partDefault = "more"
	return w.recreateCRD(parts.Resource, "value: {type: string}", "value: {type: string}\n              extra: {type: string, default: more}")
}
