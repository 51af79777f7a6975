package guard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// What "make bench-guard" measures. Nothing here is part of "make test".
const (
	// envBench names a file for the results as JSON.
	envBench = "GUARD_BENCH_JSON"

	benchRate     = 500 // requests a second
	benchDuration = 10 * time.Second

	// benchBlocks is how often the guard is installed, and taken away again.
	benchBlocks = 6
	// benchWarm and benchBlock are how many Pods are made, and how often a Deployment
	// is scaled, in each of the two states of a block: unmeasured, while API servers
	// compile what was installed a moment ago and guards look at it, and then measured.
	benchWarm  = 200
	benchBlock = 200
)

// Targets of the contract.
const (
	targetAllow   = time.Millisecond
	targetDeny    = 2 * time.Millisecond
	targetPercent = 5.0
)

// measured is one line of the results.
type measured struct {
	Name    string  `json:"name"`
	Samples int     `json:"samples"`
	P50     float64 `json:"p50Milliseconds"`
	P99     float64 `json:"p99Milliseconds"`
	// Value is what is held against the target: milliseconds, or percent.
	Value  float64 `json:"value"`
	Target float64 `json:"target"`
	Unit   string  `json:"unit"`
	Met    bool    `json:"met"`
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile of sorted or unsorted samples; it sorts them.
func quantile(samples []time.Duration, q float64) time.Duration {
	slices.Sort(samples)
	return samples[min(len(samples)-1, int(q*float64(len(samples))))]
}

// BenchmarkGuard measures the time of a decision inside the guard under load, and
// what the guard costs those that it has nothing to do with. Run it by
// "make bench-guard", on a machine that does nothing else.
func BenchmarkGuard(b *testing.B) {
	var results []measured
	b.Run("decision", func(b *testing.B) { results = append(results, benchDecisions(b)...) })
	b.Run("unrelated", func(b *testing.B) { results = append(results, benchUnrelated(b)...) })
	b.ReportMetric(0, "ns/op") // It says nothing here.

	table := &strings.Builder{}
	w := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tSAMPLES\tP50\tP99\tVALUE\tTARGET\tMET")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%d\t%.3f ms\t%.3f ms\t%.3f %s\t< %g %s\t%t\n", r.Name, r.Samples, r.P50, r.P99, r.Value, r.Unit, r.Target, r.Unit, r.Met)
	}
	_ = w.Flush()
	load, _ := os.ReadFile("/proc/loadavg") // Linux only; empty elsewhere.
	encoded, err := json.MarshalIndent(struct {
		Results []measured `json:"results"`
		CPUs    int        `json:"cpus"`
		Load    string     `json:"loadAverage"`
	}{results, runtime.NumCPU(), strings.TrimSpace(string(load))}, "", "  ")
	if err != nil {
		b.Fatal(err)
	}
	fmt.Printf("\n%s\n%d CPUs, load average %s\n%s\n", table, runtime.NumCPU(), strings.TrimSpace(string(load)), encoded)
	if path := os.Getenv(envBench); path != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(path, append(encoded, '\n'), 0o600); err != nil {
			b.Fatal(err)
		}
	}
}

// benchDecisions sends reviews over TLS at a steady rate, whatever the answers
// take, and reads from the guard's records how long each decision took.
func benchDecisions(b *testing.B) []measured {
	s := prepare(b)
	// A line for each refusal, so that each has its latency there.
	s.start(guardConfig{args: []string{"--policy-max-age=500ms", "--audit-repeat-interval=0"}})
	s.point()
	s.admission(allLayers)
	namespace := s.namespace("bench")
	held := statefulSet(namespace, "mc")
	if err := s.admin().Create(s.ctx(), held); err != nil {
		b.Fatal(err)
	}
	s.phase(guardv1alpha1.HolderBound)
	live := typed(held)
	if err := s.admin().Get(s.ctx(), client.ObjectKeyFromObject(held), live); err != nil {
		b.Fatal(err)
	}
	changed := live.DeepCopy()
	changed.Spec.Template.Spec.Containers[0].Image = "ghcr.io/metacontroller/metacontroller:v5"
	second := typed(live.DeepCopy())
	second.Name, second.UID = "second", "11111111-2222-3333-4444-555555555555"

	var results []measured
	for _, load := range []struct {
		name   string
		body   func(uid types.UID) []byte
		target time.Duration
	}{
		{"allow", reviewer(b, admissionv1.Update, changed, live), targetAllow},
		{"deny", reviewer(b, admissionv1.Create, second, nil), targetDeny},
	} {
		total := s.send(s.guards[0], load.name, load.body)
		var samples []time.Duration
		s.eventually(func() error {
			samples = samples[:0]
			for _, record := range s.records() {
				if strings.HasPrefix(string(record.AdmissionUID), load.name+"-") {
					samples = append(samples, time.Duration(record.LatencySeconds*float64(time.Second)))
				}
			}
			if len(samples) != total {
				return fmt.Errorf("%d of %d decisions are recorded", len(samples), total)
			}
			return nil
		})
		p99 := quantile(samples, 0.99)
		results = append(results, measured{
			Name: fmt.Sprintf("decision, %s, %d/s", load.name, benchRate), Samples: total,
			P50: milliseconds(quantile(samples, 0.5)), P99: milliseconds(p99),
			Value: milliseconds(p99), Target: milliseconds(load.target), Unit: "ms", Met: p99 < load.target,
		})
	}
	return results
}

// reviewer makes reviews about the same objects, each with its own uid.
func reviewer(b *testing.B, operation admissionv1.Operation, now, before *appsv1.StatefulSet) func(types.UID) []byte {
	b.Helper()
	encode := func(object *appsv1.StatefulSet) k8sruntime.RawExtension {
		if object == nil {
			return k8sruntime.RawExtension{}
		}
		raw, err := json.Marshal(object)
		if err != nil {
			b.Fatal(err)
		}
		return k8sruntime.RawExtension{Raw: raw}
	}
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "UID", Operation: operation, Namespace: now.Namespace, Name: now.Name,
			Kind:     metav1.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"},
			Resource: metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"},
			Object:   encode(now), OldObject: encode(before),
		},
	}
	body, err := json.Marshal(review)
	if err != nil {
		b.Fatal(err)
	}
	return func(uid types.UID) []byte {
		return bytes.Replace(body, []byte(`"UID"`), []byte(`"`+string(uid)+`"`), 1)
	}
}

// send sends at the rate, and returns how many it has sent.
func (s *suite) send(g *guard, name string, body func(types.UID) []byte) int {
	s.t.Helper()
	sender := s.httpClient()
	var group sync.WaitGroup
	var mutex sync.Mutex // guards failure
	var failure error
	total := int(benchDuration.Seconds() * benchRate)
	start := time.Now()
	for i := range total {
		time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / benchRate)))
		content := body(types.UID(fmt.Sprintf("%s-%d", name, i)))
		group.Go(func() {
			response, err := sender.Post("https://"+g.webhook+"/validate?timeout=5s", "application/json", bytes.NewReader(content))
			if err == nil {
				_, err = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if response.StatusCode != http.StatusOK {
					err = fmt.Errorf("the guard answers %s", response.Status)
				}
			}
			if err != nil {
				mutex.Lock()
				defer mutex.Unlock()
				failure = err
			}
		})
	}
	group.Wait()
	if failure != nil {
		s.t.Fatal(failure)
	}
	return total
}

// benchUnrelated creates Pods and scales a Deployment that the guard has nothing
// to do with, in blocks with and without the guard's admission objects.
func benchUnrelated(b *testing.B) []measured {
	s := prepare(b)
	for i := range 2 {
		s.start(guardConfig{server: i % s.cp.APIServers()})
	}
	s.point()
	namespace := s.namespace("bench")
	s.eventually(func() error {
		return s.admin().Get(s.ctx(), client.ObjectKey{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{})
	})
	// Nobody else works meanwhile.
	s.cp.StopControllers()
	b.Cleanup(func() {
		if err := s.cp.StartControllers(context.Background()); err != nil {
			b.Error(err)
		}
	})
	scaled := deployment(namespace, "scaled")
	scaled.Spec.Template = template(strangerImage)
	scaled.Spec.Replicas = ptr.To[int32](1)
	if err := s.admin().Create(s.ctx(), scaled); err != nil {
		b.Fatal(err)
	}
	times := map[string][]time.Duration{}
	for block := range 2 * benchBlocks {
		// with, without, without, with, … so that what drifts falls on both.
		installed := block%4 == 0 || block%4 == 3
		state := "without"
		if installed {
			state = "with"
		}
		func() {
			if installed {
				objects := s.installed()
				defer s.remove(objects)
			}
			for i := range benchWarm + benchBlock {
				created := pod(namespace, fmt.Sprintf("p%d-%d", block, i), strangerImage)
				created.Spec.SchedulerName = "none"
				pods := s.timed(func() error { return s.admin().Create(s.ctx(), created) })
				// To and fro between 2 and 3: every second one is a raise.
				scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: int32(2 + i%2)}}
				scales := s.timed(func() error {
					return s.admin().SubResource("scale").Update(s.ctx(), scaled.DeepCopy(), client.WithSubResourceBody(scale))
				})
				if i >= benchWarm {
					times["pods "+state] = append(times["pods "+state], pods)
					key := "raise "
					if i%2 == 0 {
						key = "lower "
					}
					times[key+state] = append(times[key+state], scales)
				}
			}
			if err := s.admin().DeleteAllOf(s.ctx(), &corev1.Pod{}, client.InNamespace(namespace), client.GracePeriodSeconds(0)); err != nil {
				b.Fatal(err)
			}
		}()
	}
	var results []measured
	for _, what := range []struct{ key, name string }{
		{"pods", "create an unrelated Pod"}, {"raise", "scale an unrelated Deployment up"}, {"lower", "scale an unrelated Deployment down"},
	} {
		without, with := times[what.key+" without"], times[what.key+" with"]
		base, median := quantile(without, 0.5), quantile(with, 0.5)
		percent := 100 * (float64(median)/float64(base) - 1)
		results = append(results,
			measured{Name: what.name + ", without", Samples: len(without), P50: milliseconds(base), P99: milliseconds(quantile(without, 0.99)), Target: targetPercent, Unit: "%", Met: true},
			measured{Name: what.name + ", with", Samples: len(with), P50: milliseconds(median), P99: milliseconds(quantile(with, 0.99)), Value: percent, Target: targetPercent, Unit: "%", Met: percent < targetPercent})
	}
	return results
}

func (s *suite) timed(do func() error) time.Duration {
	s.t.Helper()
	start := time.Now()
	if err := do(); err != nil {
		s.t.Fatal(err)
	}
	return time.Since(start)
}
