package scan

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/logging"
)

// template is the holder's Pod template at one time.
type template struct {
	uid        types.UID
	generation int64
	fields     map[string]any
}

// maxChanges is how many changed fields one line names.
const maxChanges = 20

// watchTemplate logs a change of the holder's Pod template. Who may change it is
// a matter of RBAC, and who did is in the API server's audit log; that it runs
// something else now is worth a line here.
func (s *Scanner) watchTemplate(ctx context.Context, subject subject) {
	if subject.holder == nil {
		return
	}
	before := s.template
	if before.uid == subject.holder.UID && before.generation == subject.holder.Generation {
		return
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&subject.holder.Spec.Template.Spec)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot compare the holder's template")
		return
	}
	s.template = template{uid: subject.holder.UID, generation: subject.holder.Generation, fields: fields}
	if before.uid != subject.holder.UID {
		return
	}
	changes := summary(inspect.Changes(before.fields, fields))
	if changes == "" {
		return
	}
	log.FromContext(ctx).Info("The holder's Pod template changed", logging.KeyHolder, subject.policy.Status.Holder.Display,
		logging.KeyUID, subject.holder.UID, logging.KeyChanges, changes)
	s.event(subject.policy, subject.holder, corev1.EventTypeNormal, reasonTemplateChanged, actionTemplate,
		fmt.Sprintf("the Pod template of %s changed: %s", subject.policy.Status.Holder.Display, changes))
}

// summary is changed fields in one line.
func summary(changes []inspect.Difference) string {
	var all []string
	for _, c := range changes[:min(len(changes), maxChanges)] {
		if c.Want == "" {
			all = append(all, c.Path)
			continue
		}
		all = append(all, c.Path+": "+c.Want+" -> "+c.Got)
	}
	if len(changes) > maxChanges {
		all = append(all, "and more")
	}
	return strings.Join(all, "; ")
}
