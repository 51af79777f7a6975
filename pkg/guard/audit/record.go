package audit

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// SchemaVersion is of the records that this package writes. It rises when a
// field is added; none is ever renamed or removed. See Schema.
const SchemaVersion = 1

// Caps of a record's fields, in characters and elements.
const (
	maxText     = 512
	maxMessage  = 1024
	maxElements = 32
	// recordOverhead is what a record takes beside its longest texts, in bytes.
	recordOverhead = 1024
)

// Entry is a decision and what led to it.
type Entry struct {
	// ID is the decision's own; it is also in the API server's audit log.
	ID       string
	Time     time.Time
	Latency  time.Duration
	Attempt  attempt.Attempt
	Policy   decide.Policy
	Decision decide.Decision
}

// Record is one line of the log. Schema says what each field means; a test holds
// the two together.
type Record struct {
	SchemaVersion int `json:"schemaVersion"`
	// Time is when the decision was made, RFC 3339 in UTC; for a line that counts
	// repeats, the last of them.
	Time time.Time `json:"time"`
	// DecisionID joins the line to the API server's own audit log. Decisions that
	// are counted as repeats have the id of the first.
	DecisionID   string    `json:"decisionID"`
	AdmissionUID types.UID `json:"admissionUID"`
	// Count is how many decisions the line stands for, at least 1.
	Count int64 `json:"count"`
	// Repeated says that the line counts repeats of an earlier line with the same
	// DecisionID.
	Repeated bool `json:"repeated,omitempty"`
	// FirstTime is, where Repeated is set, when the first of those that the line
	// counts was made.
	FirstTime *time.Time `json:"firstTime,omitempty"`
	// Severity is Info, Warning or Critical.
	Severity string `json:"severity"`
	Policy   string `json:"policy"`
	// PolicyGeneration is 0 when the policy could not be read or does not exist.
	PolicyGeneration int64 `json:"policyGeneration"`
	// Rule is empty when no rule is broken.
	Rule string `json:"rule"`
	// Decision is Allow, Warn or Deny.
	Decision string `json:"decision"`
	// Enforced is false where the request goes on, or would have left nothing
	// behind anyway: Warn, Audit, dry run.
	Enforced    bool   `json:"enforced"`
	Operation   string `json:"operation"`
	Subresource string `json:"subresource,omitempty"`
	DryRun      bool   `json:"dryRun"`
	Object      Object `json:"object"`
	// Owners is the object's controller owner reference, as the request has it,
	// then the owners of that one as far as they could be looked up.
	Owners []Owner `json:"owners,omitempty"`
	Images []Image `json:"images"`
	User   User    `json:"user"`
	Holder *Holder `json:"holder,omitempty"`
	// Exception is what let the request through, though a rule may be broken.
	Exception *Exception `json:"exception,omitempty"`
	Message   string     `json:"message,omitempty"`
	// LatencySeconds is from the request's arrival to the decision.
	LatencySeconds float64 `json:"latencySeconds"`
	// Replica is the guard that decided.
	Replica string `json:"replica"`
}

// Object is what the request is about.
type Object struct {
	Group        string    `json:"group"`
	Version      string    `json:"version"`
	Kind         string    `json:"kind"`
	Resource     string    `json:"resource"`
	Namespace    string    `json:"namespace,omitempty"`
	Name         string    `json:"name,omitempty"`
	GenerateName string    `json:"generateName,omitempty"`
	UID          types.UID `json:"uid,omitempty"`
}

// Owner is a controller owner reference.
type Owner struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
}

// Image is what an instance container runs.
type Image struct {
	Container string `json:"container"`
	// Image is the reference as the object has it.
	Image string `json:"image"`
	// Digest is the one in the reference, empty if it has none.
	Digest string `json:"digest,omitempty"`
}

// User is who sent the request.
type User struct {
	Name         string   `json:"name"`
	UID          string   `json:"uid,omitempty"`
	Groups       []string `json:"groups,omitempty"`
	PodName      string   `json:"podName,omitempty"`
	PodUID       string   `json:"podUID,omitempty"`
	NodeName     string   `json:"nodeName,omitempty"`
	NodeUID      string   `json:"nodeUID,omitempty"`
	CredentialID string   `json:"credentialID,omitempty"`
}

// Holder is who had the slot at that moment.
type Holder struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Epoch     int64  `json:"epoch"`
}

// Exception is what let a request through in spite of the rules (break-glass).
type Exception struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Reason and Expires are those of the policy's spec.
	Reason  string    `json:"reason"`
	Expires time.Time `json:"expires"`
}

// Keys of a user's extras, as the API server's authenticators set them:
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/
const (
	extraPodName      = "authentication.kubernetes.io/pod-name"
	extraPodUID       = "authentication.kubernetes.io/pod-uid"
	extraNodeName     = "authentication.kubernetes.io/node-name"
	extraNodeUID      = "authentication.kubernetes.io/node-uid"
	extraCredentialID = "authentication.kubernetes.io/credential-id"
)

// Words of Record.Decision.
const (
	DecisionAllow = "Allow"
	DecisionWarn  = "Warn"
	DecisionDeny  = "Deny"
)

// Words of Record.Operation, beside DELETE and CONNECT.
const (
	OperationCreate = string(attempt.Create)
	OperationUpdate = string(attempt.Update)
)

// Words of Record.Severity.
const (
	SeverityInfo     = "Info"
	SeverityWarning  = "Warning"
	SeverityCritical = "Critical"
)

// RecordOf makes the line of an entry.
func RecordOf(e Entry, replica string) Record {
	a, d := e.Attempt, e.Decision
	decision, enforced := verdictOf(d.Verdict)
	if d.Rule == decide.RuleSuspectedInstance {
		// The one rule that never refuses.
		decision = DecisionWarn
	}
	record := Record{
		SchemaVersion:    SchemaVersion,
		Time:             e.Time.UTC(),
		DecisionID:       e.ID,
		AdmissionUID:     types.UID(clip(string(a.AdmissionUID), maxText)),
		Count:            1,
		Policy:           clip(e.Policy.Name, maxText),
		PolicyGeneration: e.Policy.Generation,
		Rule:             string(d.Rule),
		Decision:         decision,
		Enforced:         enforced && !a.DryRun,
		Operation:        clip(string(a.Operation), maxText),
		Subresource:      clip(a.Subresource, maxText),
		DryRun:           a.DryRun,
		Object: Object{
			Group:        clip(a.Kind.Group, maxText),
			Version:      clip(a.Kind.Version, maxText),
			Kind:         clip(a.Kind.Kind, maxText),
			Resource:     clip(a.Resource.Resource, maxText),
			Namespace:    clip(a.Namespace, maxText),
			Name:         clip(a.Name, maxText),
			GenerateName: clip(a.GenerateName, maxText),
			UID:          types.UID(clip(string(a.ObjectUID), maxText)),
		},
		Images:         imagesOf(a),
		User:           userOf(a.User),
		Message:        clip(d.Message, maxMessage),
		LatencySeconds: e.Latency.Seconds(),
		Replica:        clip(replica, maxText),
	}
	if a.Owner != nil {
		record.Owners = []Owner{{
			APIVersion: clip(a.Owner.APIVersion, maxText),
			Kind:       clip(a.Owner.Kind, maxText),
			Name:       clip(a.Owner.Name, maxText),
			UID:        types.UID(clip(string(a.Owner.UID), maxText)),
		}}
	}
	if d.Exception != nil {
		record.Exception = &Exception{
			Namespace: clip(d.Exception.Namespace, maxText),
			Name:      clip(d.Exception.Name, maxText),
			Reason:    clip(d.Exception.Reason, maxMessage),
			Expires:   d.Exception.Expires.UTC(),
		}
	}
	if d.Holder.Held() {
		record.Holder = &Holder{
			Namespace: d.Holder.Identity.Namespace,
			Name:      d.Holder.Identity.Name,
			UID:       d.Holder.UID,
			Epoch:     d.Holder.Epoch,
		}
	}
	record.Severity = severityOf(record)
	return record
}

// severityOf ranks a record for whoever is to be woken up by it: nobody by what
// breaks no rule, and somebody in any case by break-glass.
func severityOf(record Record) string {
	switch {
	case record.Exception != nil:
		return SeverityCritical
	case record.Decision != DecisionAllow:
		return SeverityWarning
	default:
		return SeverityInfo
	}
}

// size is about how many bytes of memory the texts of a record take.
func (r Record) size() int {
	size := recordOverhead + len(r.Message) + len(r.User.Name) + len(r.Object.Namespace) + len(r.Object.Name)
	for _, group := range r.User.Groups {
		size += len(group)
	}
	for _, image := range r.Images {
		size += len(image.Container) + len(image.Image) + len(image.Digest)
	}
	return size
}

// verdictOf maps a verdict to the three words of the log, and says whether it
// changed what became of the request. In Audit the log says what Deny would
// have done.
func verdictOf(v decide.Verdict) (decision string, enforced bool) {
	switch v {
	case decide.VerdictAllow:
		return DecisionAllow, true
	case decide.VerdictWarn:
		return DecisionWarn, false
	case decide.VerdictAudit:
		return DecisionDeny, false
	default:
		return DecisionDeny, true
	}
}

// imagesOf are the images of the instances; where there is none, of those that
// were there before, or of the suspects.
func imagesOf(a attempt.Attempt) []Image {
	containers := a.New.Containers
	if len(containers) == 0 {
		containers = a.Old.Containers
	}
	if len(containers) == 0 {
		containers = a.New.Suspects
	}
	images := make([]Image, 0, min(len(containers), maxElements))
	for _, container := range containers[:min(len(containers), maxElements)] {
		_, digest, _ := strings.Cut(container.Image, "@")
		images = append(images, Image{
			Container: clip(container.Name, maxText),
			Image:     clip(container.Image, maxText),
			Digest:    clip(digest, maxText),
		})
	}
	return images
}

func userOf(u attempt.User) User {
	user := User{
		Name:         clip(u.Name, maxText),
		UID:          clip(u.UID, maxText),
		PodName:      extra(u, extraPodName),
		PodUID:       extra(u, extraPodUID),
		NodeName:     extra(u, extraNodeName),
		NodeUID:      extra(u, extraNodeUID),
		CredentialID: extra(u, extraCredentialID),
	}
	for _, group := range u.Groups[:min(len(u.Groups), maxElements)] {
		user.Groups = append(user.Groups, clip(group, maxText))
	}
	return user
}

func extra(u attempt.User, key string) string {
	if values := u.Extra[key]; len(values) > 0 {
		return clip(values[0], maxText)
	}
	return ""
}

// clip cuts a text to size characters, at the cost of what is left of it.
func clip(text string, size int) string {
	if len(text) <= size {
		return text
	}
	count, cut := 0, 0
	for i := range text {
		switch count {
		case size - 1:
			cut = i
		case size:
			return text[:cut] + "…"
		}
		count++
	}
	return text
}
