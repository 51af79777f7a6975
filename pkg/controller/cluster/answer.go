package cluster

import (
	"cmp"
	"encoding/json"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Answer is the body of a result, or the error in the words of the API server.
// client-go makes another of it: rest.Result.Raw knows nothing of the Status in
// the body, and rest.Result.Error keeps nothing but the code of a Status without
// a reason, such as that of an apply with a field that the schema does not have.
func Answer(result rest.Result) ([]byte, error) {
	body, err := result.Raw()
	var known apierrors.APIStatus
	if err == nil || !errors.As(err, &known) {
		return body, err
	}
	var status metav1.Status
	if json.Unmarshal(body, &status) != nil || status.Kind != "Status" || status.Message == "" {
		return nil, err
	}
	status.Reason = cmp.Or(status.Reason, known.Status().Reason)
	status.Code = cmp.Or(status.Code, known.Status().Code)
	if status.Details == nil {
		status.Details = known.Status().Details
	}
	return nil, &apierrors.StatusError{ErrStatus: status}
}
