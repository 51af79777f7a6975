package app

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
)

// Labels of controller-runtime's metrics that hold the name of a queue.
const (
	labelQueueName       = "name"
	labelQueueController = "controller"
)

// currentSeries leaves out the series of controllers that no longer run.
// controller-runtime keeps them for the life of the process.
type currentSeries struct {
	prometheus.Gatherer

	mu sync.Mutex
	// hosts run the controllers; none before the lease is held. Guarded by mu.
	hosts []*engine.Host
}

func (c *currentSeries) follow(hosts []*engine.Host) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts = hosts
}

// Gather gathers what belongs to a controller that runs, or to none.
func (c *currentSeries) Gather() ([]*dto.MetricFamily, error) {
	families, err := c.Gatherer.Gather()
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
