package call

import (
	"context"
	"errors"
	"fmt"
)

// Kinds of objects that credentials are in.
const (
	KindSecret    = "Secret"
	KindConfigMap = "ConfigMap"
)

// Reference names the object that credentials are in.
type Reference struct {
	// Kind is KindSecret or KindConfigMap.
	Kind            string
	Namespace, Name string
}

// String names it for errors.
func (r Reference) String() string { return fmt.Sprintf("%s %q", r.Kind, r.Namespace+"/"+r.Name) }

// Sources are where Secrets and ConfigMaps are read.
type Sources interface {
	// Open begins to follow an object. It does not wait.
	Open(reference Reference) Source
}

// Source follows one object.
type Source interface {
	// Read returns what is in the object now, and the same pointer as long as that
	// is the same. It waits until that is known, or ctx ends. The error is ErrAbsent
	// if there is no such object, ctx's own, or says why nothing is known.
	Read(ctx context.Context) (*Content, error)
	// Close ends it.
	Close()
}

// Content is what is in a Secret or a ConfigMap. It must not be changed.
type Content struct{ Data map[string][]byte }

// ErrAbsent is the error of a Source whose object is not there.
var ErrAbsent = errors.New("does not exist")

// CredentialError is a hook that could not be called because of what is, or is
// not, in a Secret or a ConfigMap. The next call after it has changed works.
type CredentialError struct {
	// Field of the spec that needs it, such as webhook.authorization.
	Field     string
	Reference Reference
	// Key in the object; empty if the trouble is with the object as a whole.
	Key string
	// Problem continues the sentence. It has nothing of the content in it.
	Problem string
}

func (e *CredentialError) Error() string {
	at := ""
	if e.Key != "" {
		at = fmt.Sprintf("key %q of ", e.Key)
	}
	return fmt.Sprintf("cannot be called: %s: %s%s %s", e.Field, at, e.Reference, e.Problem)
}
