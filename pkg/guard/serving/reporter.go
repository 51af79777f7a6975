package serving

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/metrics"
)

// ReportInterval is how often the certificate is judged without an event.
const ReportInterval = 10 * time.Second

// Kinds of certificate, as the label of a metric has them.
const (
	kindServing   = "serving"
	kindAuthority = "authority"
)

// Reporter judges the serving certificate again and again. Every guard keeps its
// own metrics; the one that leads publishes what it finds.
type Reporter struct {
	// Source is what is judged, with the installed Webhooks.
	Source   Source
	Webhooks Webhooks
	// WarnBefore is as in certificate.Facts.
	WarnBefore time.Duration
	Clock      clock.WithTicker
	// Leading is closed once this guard leads.
	Leading <-chan struct{}
	// Publish makes a judgement known; nil leaves that out. It must be idempotent.
	Publish func(ctx context.Context, judgement certificate.Judgement) error
	// Changed tells that what is served or installed may have changed.
	Changed <-chan struct{}

	expiry *prometheus.GaugeVec
	state  *prometheus.GaugeVec
	// faulty says that the last look found a fault: a pair that is just being
	// written is none.
	faulty bool
	last   certificate.Judgement
}

// Register registers the metrics.
func (r *Reporter) Register(registry prometheus.Registerer) error {
	r.expiry = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: metrics.GuardPrefix,
		Name:      "certificate_expiration_timestamp_seconds",
		Help:      "When the serving certificate, and the authority in the caBundle that vouches for it, expire.",
	}, []string{"certificate"})
	r.state = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: metrics.GuardPrefix,
		Name:      "certificate_state",
		Help:      "1 for the state that the serving certificate is in, 0 for the others. All but Current need a person.",
	}, []string{"state"})
	for _, collector := range []prometheus.Collector{r.expiry, r.state} {
		if err := registry.Register(collector); err != nil {
			return err
		}
	}
	return nil
}

// NeedLeaderElection is false: every guard has a certificate.
func (r *Reporter) NeedLeaderElection() bool { return false }

// Start judges until ctx ends.
func (r *Reporter) Start(ctx context.Context) error {
	ticker := r.Clock.NewTicker(ReportInterval)
	defer ticker.Stop()
	leading := r.Leading
	for {
		r.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		case <-r.Changed:
		case <-leading:
			leading = nil
		}
	}
}

// look judges once.
func (r *Reporter) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	logger := log.FromContext(ctx)
	webhooks, err := r.Webhooks(ctx)
	if err != nil {
		logger.Error(err, "Cannot judge the serving certificate; trying again")
		return
	}
	facts := certificate.Facts{
		Chain:      chainOf(r.Source),
		Webhooks:   webhooks,
		WarnBefore: r.WarnBefore,
		Remedy:     r.Source.Remedy(),
	}
	fault := r.Source.Fault()
	if fault != nil && r.faulty {
		facts.Fault = fault
	}
	r.faulty = fault != nil
	judgement := certificate.Judge(facts, r.Clock.Now())
	r.measure(judgement)
	if judgement.Verdict != r.last.Verdict || judgement.Message != r.last.Message {
		logger.Info("Judged the serving certificate", logging.KeyVerdict, judgement.Verdict.String(), logging.KeyReason, judgement.Message)
	}
	r.last = judgement
	if r.Publish == nil || !r.leads() {
		return
	}
	if err := r.Publish(ctx, judgement); err != nil && ctx.Err() == nil {
		logger.Error(err, "Cannot publish what the serving certificate is like; trying again")
	}
}

func (r *Reporter) leads() bool {
	select {
	case <-r.Leading:
		return true
	default:
		return false
	}
}

func (r *Reporter) measure(judgement certificate.Judgement) {
	for kind, at := range map[string]time.Time{kindServing: judgement.Serving, kindAuthority: judgement.Authority} {
		if at.IsZero() {
			r.expiry.DeleteLabelValues(kind)
			continue
		}
		r.expiry.WithLabelValues(kind).Set(float64(at.Unix()))
	}
	for _, verdict := range certificate.Verdicts {
		value := 0.0
		if verdict == judgement.Verdict {
			value = 1
		}
		r.state.WithLabelValues(verdict.String()).Set(value)
	}
}
