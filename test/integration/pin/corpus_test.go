package pin_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/test/corpus"
)

// sample takes every nth of the generated cases, beside all handwritten ones.
const sample = 12

// judgeCorpus puts manifests of the corpus to the API server, as dry runs: the
// policies refuse the instances and nothing else. A suspect is let through,
// for only the guard knows those.
func (c *cluster) judgeCorpus() {
	c.Helper()
	cases, err := corpus.Handwritten()
	c.must(err)
	for i, generated := range corpus.Generated() {
		if i%sample == 0 {
			cases = append(cases, generated)
		}
	}
	config := rest.CopyConfig(c.config)
	// The API server's own fairness is enough.
	config.QPS = -1
	unlimited, err := client.New(config, client.Options{Scheme: c.Scheme()})
	c.must(err)
	began := time.Now()
	work := make(chan corpus.Case)
	var workers sync.WaitGroup
	// mutex guards problems.
	var mutex sync.Mutex
	var problems []string
	for range 8 {
		workers.Go(func() {
			for one := range work {
				if problem := judge(unlimited, c.namespace, one); problem != "" {
					mutex.Lock()
					problems = append(problems, fmt.Sprintf("%s: %s: want %s: %s", one.Name, one.Why, one.Want, problem))
					mutex.Unlock()
				}
			}
		})
	}
	for _, one := range cases {
		work <- one
	}
	close(work)
	workers.Wait()
	for _, problem := range problems {
		c.Error(problem)
	}
	c.Logf("%d manifests in %s", len(cases), time.Since(began))
}

// judge says what is wrong with the API server's answer, or "".
func judge(c client.Client, namespace string, one corpus.Case) string {
	object := one.Object.DeepCopyObject().(client.Object)
	object.SetNamespace(namespace)
	err := c.Create(context.Background(), object, client.DryRunAll)
	switch {
	case one.Invalid && apierrors.IsInvalid(err):
		err = nil
	case one.Invalid:
		return fmt.Sprintf("it was not found invalid: %v", err)
	case !one.Want.Instance():
	case one.Resource.Resource == "pods":
		err = refusedBy(err, string(decide.RulePodNotPinned))
	default:
		err = refusedBy(err, string(decide.RuleSecondWorkload))
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
