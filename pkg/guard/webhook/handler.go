package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

const (
	// Path is where the webhook is served; the webhook configuration names it.
	Path = "/validate"
	// MaxBody is the largest review that is read, in bytes: etcd holds objects
	// of 1.5 MiB, a review has two of them, and JSON is wider than protobuf.
	MaxBody = 7 << 20
	// DefaultTimeout bounds a decision where the API server does not say how
	// long it waits. It is the webhook timeout that Kubernetes defaults to.
	DefaultTimeout = 10 * time.Second
	// margin is kept of the API server's deadline for the way back.
	margin = 500 * time.Millisecond
	// timeoutParameter is how the API server says how long it waits.
	timeoutParameter = "timeout"
	contentTypeJSON  = "application/json"
)

// Slot reads and takes the slot.
type Slot interface {
	// Read reads the policy live; nil means that there is none.
	Read(ctx context.Context) (*guardv1alpha1.SingletonPolicy, error)
	// Take tries to make want the holder; claim.ErrConflict asks to read again.
	Take(ctx context.Context, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature, want claim.Want) (decide.Claim, error)
}

// Targets reads the object that a scale request is about.
type Targets interface {
	// Target returns the object as JSON, read live; nil means that there is none.
	Target(ctx context.Context, a attempt.Attempt) ([]byte, error)
}

// Nodes says what is known of nodes.
type Nodes interface {
	// NodeState reads the node live.
	NodeState(ctx context.Context, name string) (attempt.NodeState, error)
}

// Outcome is a decision and what led to it, for the audit log.
type Outcome struct {
	// ID is the decision's own; it goes back to the API server's audit log.
	ID       string
	Time     time.Time
	Latency  time.Duration
	Attempt  attempt.Attempt
	Policy   decide.Policy
	Decision decide.Decision
}

// Deps is what a Handler needs.
type Deps struct {
	// Policy is the name of the SingletonPolicy to judge by.
	Policy  string
	Slot    Slot
	Targets Targets
	Nodes   Nodes
	// Record is told every decision about a matching request, and returns the id
	// under which it is in the audit log: the outcome's own, or that of an earlier
	// decision that it repeats. It must not wait.
	Record func(Outcome) string
	Clock  clock.PassiveClock
	// MaxAge is for how long a policy that was read is decided by while its
	// holder is bound; zero reads it for every request. It must be shorter than
	// the time for which a holder's pin is cleared before its slot is free.
	MaxAge time.Duration
}

// Handler is the http.Handler of the webhook.
type Handler struct {
	deps       Deps
	signatures signatures
	recent     recent
}

// New makes a handler.
func New(deps Deps) *Handler {
	return &Handler{deps: deps, recent: recent{clock: deps.Clock, maxAge: deps.MaxAge}}
}

// Changed tells the handler that the policy has changed, or may have: it is read
// for the next request. Never calling it makes changes count MaxAge later.
func (h *Handler) Changed() { h.recent.forget() }

// ServeHTTP answers one review.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := h.deps.Clock.Now()
	body, status, err := read(w, r)
	if err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	request, err := attempt.Parse(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeoutOf(r))
	defer cancel()

	outcome, err := h.judge(ctx, request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	outcome.ID = string(uuid.NewUUID())
	outcome.Time = h.deps.Clock.Now()
	outcome.Latency = outcome.Time.Sub(start)
	if outcome.Decision.Matching {
		outcome.ID = h.deps.Record(outcome)
	}
	if err := respond(w, request.UID, outcome); err != nil {
		log.FromContext(ctx).Error(err, "Cannot send an admission response")
	}
}

// read reads the body of a review and says which HTTP status an error is.
func read(w http.ResponseWriter, r *http.Request) ([]byte, int, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, http.StatusMethodNotAllowed, fmt.Errorf("cannot take method %.16q, send POST", r.Method)
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != contentTypeJSON {
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("cannot take content type %.64q, send %q", r.Header.Get("Content-Type"), contentTypeJSON)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("cannot take more than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("cannot read body: %w", err)
	}
	return body, http.StatusOK, nil
}

// timeoutOf is for how long a decision may take: what the API server waits,
// less the way back.
func timeoutOf(r *http.Request) time.Duration {
	timeout, err := time.ParseDuration(r.URL.Query().Get(timeoutParameter))
	if err != nil || timeout <= 0 {
		timeout = DefaultTimeout
	}
	return max(timeout-margin, timeout/2)
}

// respond writes the AdmissionReview that answers.
func respond(w http.ResponseWriter, uid types.UID, outcome Outcome) error {
	review := admissionv1.AdmissionReview{Response: responseOf(uid, outcome)}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	body, err := json.Marshal(review)
	if err != nil {
		http.Error(w, "cannot encode response", http.StatusInternalServerError)
		return fmt.Errorf("cannot encode admission response: %w", err)
	}
	w.Header().Set("Content-Type", contentTypeJSON)
	if _, err := w.Write(body); err != nil {
		return fmt.Errorf("cannot write admission response: %w", err)
	}
	return nil
}
