package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// ID is the stable id of a kind of finding. It is a metric's label and a rule of
// the report, so there are few of them and no object is named in one.
type ID string

// The kinds of findings; docs/scan.md explains each.
const (
	// InstanceNotPinned is a Pod that runs an instance and is not the pinned one.
	InstanceNotPinned ID = "instance-not-pinned"
	// StaticPod is an instance that a node runs by itself, which no admission can refuse.
	StaticPod ID = "static-pod"
	// WorkloadNotHolder is a workload, other than the holder, that would run instances.
	WorkloadNotHolder ID = "workload-not-holder"
	// NoClearHolder are several StatefulSets of which none holds the slot.
	NoClearHolder ID = "no-clear-holder"
	// ScaledAboveOne is a holder that asks for more Pods than may run.
	ScaledAboveOne ID = "scaled-above-one"
	// TwoInOnePod is the pinned Pod with more than one instance.
	TwoInOnePod ID = "two-in-one-pod"
	// SuspectedInstance is a Pod that may run an instance, by its flags.
	SuspectedInstance ID = "suspected-instance"
	// SharedAccount is a Pod that runs no known instance, with an instance's service account.
	SharedAccount ID = "shared-service-account"
	// UnknownWriter is a live Lease of Metacontroller that the active Pod does not hold.
	UnknownWriter ID = "unknown-writer"
	// PodBlocked is the holder's Pod that cannot end, so that no other starts.
	PodBlocked ID = "pod-blocked"
	// NodeNotProvenDead is a node that is tainted out-of-service and reports that it is ready.
	NodeNotProvenDead ID = "node-not-proven-dead"
	// HolderGone is a claim whose uid no StatefulSet has.
	HolderGone ID = "holder-gone"
	// ExceptionExpired is an exception that has ended and is still written.
	ExceptionExpired ID = "exception-expired"
	// PolicyMissing means that the policy does not exist.
	PolicyMissing ID = "policy-missing"
	// PolicyInvalid means that the policy cannot be judged by.
	PolicyInvalid ID = "policy-invalid"
	// PolicyConflict is another policy beside the one that is judged by.
	PolicyConflict ID = "policy-conflict"
	// AdmissionMissing is an admission object that is not installed.
	AdmissionMissing ID = "admission-missing"
	// AdmissionDrift is a field of an admission object that differs.
	AdmissionDrift ID = "admission-drift"
	// CRDDrift is a field of the SingletonPolicy's CRD that differs.
	CRDDrift ID = "crd-drift"
	// GuardSilent means that no guard leads.
	GuardSilent ID = "guard-silent"
	// Unreadable is what the scan may not, or cannot, read.
	Unreadable ID = "unreadable"
)

// IDs are all of them.
func IDs() []ID {
	return []ID{
		InstanceNotPinned, StaticPod, WorkloadNotHolder, NoClearHolder, ScaledAboveOne, TwoInOnePod, SuspectedInstance,
		SharedAccount, UnknownWriter, PodBlocked, NodeNotProvenDead, HolderGone, ExceptionExpired, PolicyMissing,
		PolicyInvalid, PolicyConflict, AdmissionMissing, AdmissionDrift, CRDDrift, GuardSilent, Unreadable,
	}
}

// violations are the findings by which a policy is not complied with: more than
// one instance runs, or would.
var violations = []ID{InstanceNotPinned, StaticPod, WorkloadNotHolder, NoClearHolder, ScaledAboveOne, TwoInOnePod, UnknownWriter}

// Violation says whether a finding means that the policy is not complied with.
func (id ID) Violation() bool { return slices.Contains(violations, id) }

// drifts are the findings about the guard's own objects.
var drifts = []ID{AdmissionMissing, AdmissionDrift, CRDDrift}

// Drift says whether a finding is about the guard's own objects in the API server.
func (id ID) Drift() bool { return slices.Contains(drifts, id) }

// Severity says how bad a finding is, in the words of OpenReports.
type Severity string

// The severities, the worst first.
const (
	Critical Severity = "critical"
	High     Severity = "high"
	Medium   Severity = "medium"
	Low      Severity = "low"
)

var severities = []Severity{Critical, High, Medium, Low}

// Object is what a finding is about. Namespace is empty for what has none, UID
// for what does not exist or was not read.
type Object struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"`
}

// String is for messages: Kind namespace/name.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Finding is one thing that is not as it should be.
type Finding struct {
	ID       ID       `json:"id"`
	Severity Severity `json:"severity"`
	Object   Object   `json:"object"`
	// Path is the field that a drift is about, empty for the object itself.
	Path string `json:"path,omitempty"`
	// Message says what is wrong, in one line.
	Message string `json:"message"`
	// Fix says what to do, in one line.
	Fix string `json:"fix"`
}

// Key is the same for the same finding in two scans, whatever its message says.
func (f Finding) Key() string {
	return strings.Join([]string{string(f.ID), f.Object.Kind, f.Object.Namespace, f.Object.Name, string(f.Object.UID), f.Path}, "|")
}

// maxText caps each text of a finding, in characters, as in the CRD.
const maxText = 512

// sorted puts the worst first, in an order that does not depend on how the facts came.
func sorted(findings []Finding) []Finding {
	for i := range findings {
		findings[i].Message, findings[i].Fix = clip(findings[i].Message, maxText), clip(findings[i].Fix, maxText)
		findings[i].Path = clip(findings[i].Path, maxText)
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(
			slices.Index(severities, a.Severity)-slices.Index(severities, b.Severity),
			strings.Compare(string(a.ID), string(b.ID)),
			strings.Compare(a.Object.String(), b.Object.String()),
			strings.Compare(a.Path, b.Path),
			strings.Compare(a.Message, b.Message),
		)
	})
	return slices.CompactFunc(findings, func(a, b Finding) bool { return a.Key() == b.Key() })
}

// clip cuts a text, and leaves nothing in it that is no text for a terminal.
func clip(text string, size int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	if runes := []rune(text); len(runes) > size {
		return string(runes[:size-1]) + "…"
	}
	return text
}

// MaxStatus is how many findings a status has room for, as in the CRD.
const MaxStatus = 50

// Status are the findings for a policy's status, the worst first and capped. One
// that was in the status before keeps its time.
func Status(findings []Finding, before []guardv1alpha1.Finding, now time.Time) []guardv1alpha1.Finding {
	since := map[string]metav1.Time{}
	for _, old := range before {
		since[FromStatus(old).Key()] = old.Since
	}
	var written []guardv1alpha1.Finding
	for _, f := range findings[:min(len(findings), MaxStatus)] {
		began, ok := since[f.Key()]
		if !ok {
			began = metav1.NewTime(now.Truncate(time.Second))
		}
		written = append(written, guardv1alpha1.Finding{
			ID: string(f.ID), Severity: string(f.Severity), Path: f.Path, Message: f.Message, Fix: f.Fix, Since: began,
			Object: guardv1alpha1.ObjectReference(f.Object),
		})
	}
	return written
}

// FromStatus reads a finding from a policy's status.
func FromStatus(f guardv1alpha1.Finding) Finding {
	return Finding{
		ID: ID(f.ID), Severity: Severity(f.Severity), Path: f.Path, Message: f.Message, Fix: f.Fix,
		Object: Object(f.Object),
	}
}

// Count counts findings by id; an id that was not found counts 0.
func Count(findings []Finding) map[ID]int {
	count := map[ID]int{}
	for _, id := range IDs() {
		count[id] = 0
	}
	for _, f := range findings {
		count[f.ID]++
	}
	return count
}

// names lists some texts, and how many more there are.
func names(all []string) string {
	const shown = 3
	if len(all) <= shown {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:shown], ", "), len(all)-shown)
}
