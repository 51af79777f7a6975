package attempt

import (
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	kjson "sigs.k8s.io/json"
)

// Fault says in which way a review is malformed.
type Fault string

const (
	// FaultEmpty is a body without a byte.
	FaultEmpty Fault = "empty body"
	// FaultNotJSON is a body that is not one JSON object of the review's shape.
	FaultNotJSON Fault = "not a JSON AdmissionReview"
	// FaultWrongVersion is a review of another kind or version than
	// admission.k8s.io/v1 AdmissionReview.
	FaultWrongVersion Fault = "wrong kind or version"
	// FaultNoRequest is a review without a request.
	FaultNoRequest Fault = "no request"
	// FaultNoUID is a request without its uid, so that no answer could be matched to it.
	FaultNoUID Fault = "no request uid"
	// FaultOperation is an operation that admission does not know.
	FaultOperation Fault = "unknown operation"
	// FaultNoResource is a request that does not say which resource it is about.
	FaultNoResource Fault = "no resource"
	// FaultNoObject is a request without the object that its operation needs.
	FaultNoObject Fault = "no object"
	// FaultBadObject is an object that does not have the shape of its kind.
	FaultBadObject Fault = "malformed object"
)

// MalformedError is a review that the API server would never send.
type MalformedError struct {
	Fault Fault
	// Err is the decoder's, if there is one. It never holds the body.
	Err error
}

// Error implements error.
func (e *MalformedError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("cannot read admission review: %s", e.Fault)
	}
	return fmt.Sprintf("cannot read admission review: %s: %v", e.Fault, e.Err)
}

// Unwrap gives the decoder's error.
func (e *MalformedError) Unwrap() error { return e.Err }

// IsMalformed says whether err is, or wraps, a *MalformedError.
func IsMalformed(err error) bool {
	malformed := &MalformedError{}
	return errors.As(err, &malformed)
}

func malformed(fault Fault, err error) error { return &MalformedError{Fault: fault, Err: err} }

const (
	reviewAPIVersion = "admission.k8s.io/v1"
	reviewKind       = "AdmissionReview"
)

// Parse reads one AdmissionReview of admission.k8s.io/v1 and returns its
// request. Unknown fields are ignored, for the API server may be newer. Every
// error is a *MalformedError.
func Parse(body []byte) (*admissionv1.AdmissionRequest, error) {
	if len(body) == 0 {
		return nil, malformed(FaultEmpty, nil)
	}
	review := admissionv1.AdmissionReview{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &review); err != nil {
		return nil, malformed(FaultNotJSON, err)
	}
	if review.Kind != reviewKind || review.APIVersion != reviewAPIVersion {
		return nil, malformed(FaultWrongVersion, fmt.Errorf("got %.64q of %.64q, want %q of %q",
			review.Kind, review.APIVersion, reviewKind, reviewAPIVersion))
	}
	request := review.Request
	switch {
	case request == nil:
		return nil, malformed(FaultNoRequest, nil)
	case request.UID == "":
		return nil, malformed(FaultNoUID, nil)
	case request.Resource.Resource == "":
		return nil, malformed(FaultNoResource, nil)
	}
	if err := checkObjects(request); err != nil {
		return nil, err
	}
	return request, nil
}

// checkObjects demands the objects that the API server always sends with an
// operation. A CONNECT carries options of any kind, so nothing is demanded.
func checkObjects(request *admissionv1.AdmissionRequest) error {
	needsNew, needsOld := false, false
	switch request.Operation {
	case admissionv1.Create:
		needsNew = true
	case admissionv1.Update:
		needsNew, needsOld = true, true
	case admissionv1.Delete:
		needsOld = true
	case admissionv1.Connect:
	default:
		return malformed(FaultOperation, fmt.Errorf("%.64q", request.Operation))
	}
	if needsNew && absent(request.Object.Raw) {
		return malformed(FaultNoObject, errors.New("object is absent"))
	}
	if needsOld && absent(request.OldObject.Raw) {
		return malformed(FaultNoObject, errors.New("oldObject is absent"))
	}
	return nil
}

func absent(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }
