package call

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/metacontroller-solo/solo/pkg/metrics"
)

// Names and labels of the metrics of a hook. Dashboards for the public
// Metacontroller look for them.
const (
	metricRequests = "requests_total"
	metricDuration = "request_duration_histogram_seconds"
	metricDNS      = "dns_duration_histogram_seconds"
	metricTLS      = "tls_duration_histogram_seconds"
	metricInFlight = "in_flight_requests"

	labelCode           = "code"
	labelMethod         = "method"
	labelEvent          = "event"
	labelURL            = "url"
	labelControllerName = "controller_name"
	labelControllerType = "controller_type"

	eventDNSStart = "dns_start"
	eventDNSDone  = "dns_done"
	eventTLSStart = "tls_handshake_start"
	eventTLSDone  = "tls_handshake_done"
)

type hookMetrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	dns      *prometheus.HistogramVec
	tls      *prometheus.HistogramVec
	inFlight prometheus.Gauge
}

func newHookMetrics(key metricsKey) *hookMetrics {
	labels := prometheus.Labels{
		labelURL:            key.url,
		labelControllerName: key.ControllerName,
		labelControllerType: key.ControllerKind,
	}
	subsystem := key.Hook
	histogram := func(name, help string, buckets []float64, variable ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metrics.ControllerPrefix, Subsystem: subsystem, Name: name, Help: help, ConstLabels: labels, Buckets: buckets,
		}, variable)
	}
	return &hookMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metrics.ControllerPrefix, Subsystem: subsystem, Name: metricRequests, ConstLabels: labels,
			Help: "Calls of the hook that got an answer.",
		}, []string{labelCode, labelMethod}),
		duration: histogram(metricDuration, "How long calls of the hook took.", prometheus.DefBuckets, labelMethod),
		dns:      histogram(metricDNS, "When the look-up of the hook's name began and ended, from the start of the call.", []float64{.005, .01, .025, .05}, labelEvent),
		tls:      histogram(metricTLS, "When the TLS handshake with the hook began and ended, from the start of the call.", []float64{.05, .1, .25, .5}, labelEvent),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: metrics.ControllerPrefix, Subsystem: subsystem, Name: metricInFlight, ConstLabels: labels,
			Help: "Calls of the hook that wait for an answer.",
		}),
	}
}

func (m *hookMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.duration, m.dns, m.tls, m.inFlight}
}

// register adds all of the metrics, or none.
func (m *hookMetrics) register(registry prometheus.Registerer) error {
	for i, collector := range m.all() {
		if err := registry.Register(collector); err != nil {
			for _, earlier := range m.all()[:i] {
				registry.Unregister(earlier)
			}
			return err
		}
	}
	return nil
}

func (m *hookMetrics) unregister(registry prometheus.Registerer) {
	for _, collector := range m.all() {
		registry.Unregister(collector)
	}
}

func (m *hookMetrics) instrument(transport http.RoundTripper) http.RoundTripper {
	observe := func(vector *prometheus.HistogramVec, event string) func(float64) {
		return func(seconds float64) { vector.WithLabelValues(event).Observe(seconds) }
	}
	trace := &promhttp.InstrumentTrace{
		DNSStart:          observe(m.dns, eventDNSStart),
		DNSDone:           observe(m.dns, eventDNSDone),
		TLSHandshakeStart: observe(m.tls, eventTLSStart),
		TLSHandshakeDone:  observe(m.tls, eventTLSDone),
	}
	return promhttp.InstrumentRoundTripperInFlight(m.inFlight,
		promhttp.InstrumentRoundTripperCounter(m.requests,
			promhttp.InstrumentRoundTripperTrace(trace,
				promhttp.InstrumentRoundTripperDuration(m.duration, transport))))
}
