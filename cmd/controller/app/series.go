package app

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
)

// Labels of controller-runtime's metrics that hold the name of a queue.
const (
	labelQueueName       = "name"
	labelQueueController = "controller"
)

// currentSeries shows the series of controllers that run, and deletes those of
// controllers that do not any more. controller-runtime keeps them for the life of
// the process, and has the vectors that hold them to itself.
type currentSeries struct {
	registry ctrlmetrics.RegistererGatherer

	mu sync.Mutex
	// hosts run the controllers; none before the lease is held. Guarded by mu.
	hosts []*engine.Host
	// vectors hold series of queues, by the name of the metric. Guarded by mu.
	vectors map[string]vector
}

// vector is what holds the series of one metric.
type vector struct {
	// label of the queue's name.
	label string
	partialDeleter
}

// partialDeleter is a prometheus.MetricVec.
type partialDeleter interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

func newCurrentSeries(registry ctrlmetrics.RegistererGatherer) *currentSeries {
	return &currentSeries{registry: registry, vectors: map[string]vector{}}
}

func (c *currentSeries) follow(hosts []*engine.Host) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts = hosts
}

// Gather gathers what belongs to a controller that runs, or to none.
func (c *currentSeries) Gather() ([]*dto.MetricFamily, error) {
	families, err := c.registry.Gather()
	c.mu.Lock()
	hosts := c.hosts
	c.mu.Unlock()
	running := map[string]bool{}
	for _, host := range hosts {
		for _, queue := range host.Queues() {
			running[queue] = true
		}
	}
	return withoutStale(families, running), err
}

// retire deletes the series of a queue that has ended. A goroutine of the queue that
// ends after its last worker may, if it is unlucky, make the one of its depth again;
// that is not shown, and the next queue of the name goes on with it.
func (c *currentSeries) retire(queue string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.vectors) == 0 {
		// Now this queue, and that of its host, have series in each of them.
		c.findVectors()
	}
	for _, one := range c.vectors {
		one.DeletePartialMatch(prometheus.Labels{one.label: queue})
	}
}

// findVectors finds the vectors that hold series of queues. The caller holds mu.
func (c *currentSeries) findVectors() {
	// An error is about single series, such as one that a collector gave twice.
	families, _ := c.registry.Gather()
	for _, family := range families {
		if len(family.GetMetric()) == 0 {
			continue
		}
		for _, label := range family.GetMetric()[0].GetLabel() {
			if name := label.GetName(); name != labelQueueName && name != labelQueueController {
				continue
			}
			if found := c.collectorOf(family); found != nil {
				c.vectors[family.GetName()] = vector{label: label.GetName(), partialDeleter: found}
			}
			break
		}
	}
}

// collectorOf is the vector of a family, nil if its series are held in another
// way. A registry tells who collects a metric to those who want to do so too.
func (c *currentSeries) collectorOf(family *dto.MetricFamily) partialDeleter {
	var names []string
	for _, label := range family.GetMetric()[0].GetLabel() {
		names = append(names, label.GetName())
	}
	same := described{prometheus.NewDesc(family.GetName(), family.GetHelp(), names, nil)}
	var known prometheus.AlreadyRegisteredError
	if err := c.registry.Register(same); !errors.As(err, &known) {
		if err == nil {
			c.registry.Unregister(same)
		}
		return nil
	}
	found, _ := known.ExistingCollector.(partialDeleter)
	return found
}

// described is a collector of one metric that has no series.
type described struct{ *prometheus.Desc }

func (d described) Describe(to chan<- *prometheus.Desc) { to <- d.Desc }

func (described) Collect(chan<- prometheus.Metric) {}

// withoutStale removes series of queues that are named after a controller and not
// running.
func withoutStale(families []*dto.MetricFamily, running map[string]bool) []*dto.MetricFamily {
	for _, family := range families {
		family.Metric = slices.DeleteFunc(family.Metric, func(metric *dto.Metric) bool {
			return slices.ContainsFunc(metric.GetLabel(), func(label *dto.LabelPair) bool {
				if name := label.GetName(); name != labelQueueName && name != labelQueueController {
					return false
				}
				return ofController(label.GetValue()) && !running[label.GetValue()]
			})
		})
	}
	return slices.DeleteFunc(families, func(family *dto.MetricFamily) bool { return len(family.Metric) == 0 })
}

func ofController(queue string) bool {
	return strings.HasPrefix(queue, v1alpha1.CompositeControllerKind+"-") || strings.HasPrefix(queue, v1alpha1.DecoratorControllerKind+"-")
}
