package pin

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// StaticSuffix ends the names of objects that an API server reads from its own
// disk, and of no others.
const StaticSuffix = ".static.k8s.io"

// sameOwner is how the policies tell that a Pod is of the holder's StatefulSet.
// Files know no uid, so the static ones compare names: there is at most one
// object of a name.
const (
	sameOwner       = "o.uid == h.uid"
	sameOwnerByName = "o.name == h.name"
)

// staticParams is the variable that takes the place of params.
const staticParams = "params"

// Static returns the policies, and their bindings, for an API server that reads
// them from files at its start (ManifestBasedAdmissionControlConfig). Nobody can
// change or delete them through the API. Such policies have no params, so the
// match, and the one holder, are written in: they judge as the others do while
// that holder is bound. Exceptions and the webhook's answers count for nothing
// here.
func Static(o Options, holder v1alpha1.HolderReference) ([]client.Object, error) {
	if holder.Namespace == "" || holder.Name == "" {
		return nil, errors.New("cannot render static policies without a holder: name its namespace and name")
	}
	if err := check(o); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	objects := policy(o, PolicyName, podRules(), podVariables())
	objects = append(objects, policy(o, WorkloadPolicyName, workloadRules(), workloadVariables())...)
	params := admissionregistrationv1.Variable{Name: staticParams, Expression: written(o, holder)}
	for _, object := range objects {
		object.SetName(object.GetName() + StaticSuffix)
		switch object := object.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			object.Spec.ParamKind = nil
			object.Spec.MatchConditions = nil
			for i := range object.Spec.Variables {
				object.Spec.Variables[i].Expression = withoutParams(object.Spec.Variables[i].Expression)
			}
			object.Spec.Variables = append([]admissionregistrationv1.Variable{params}, object.Spec.Variables...)
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			object.Spec.ParamRef = nil
			object.Spec.PolicyName += StaticSuffix
		}
	}
	return objects, nil
}

// withoutParams reads the variable where an expression reads the params.
func withoutParams(expression string) string {
	return strings.NewReplacer("params.", "variables."+staticParams+".", sameOwner, sameOwnerByName).Replace(expression)
}

// written is a policy with its holder as a CEL expression. Each value is of type
// dyn, as those of params are.
func written(o Options, holder v1alpha1.HolderReference) string {
	list := func(texts []string) string {
		quoted := make([]string, len(texts))
		for i, text := range texts {
			quoted[i] = strconv.Quote(text)
		}
		return "dyn([" + strings.Join(quoted, ", ") + "])"
	}
	text := func(text string) string { return "dyn(" + strconv.Quote(text) + ")" }
	return fmt.Sprintf("{'metadata': dyn({'name': %s}),\n"+
		"'spec': dyn({'mode': %s, 'match': dyn({'images': %s, 'commands': %s, 'excludeImages': %s})}),\n"+
		"'status': dyn({'holder': dyn({'namespace': %s, 'name': %s, 'uid': dyn('')})})}",
		text(o.SingletonPolicy), text(string(v1alpha1.ModeStrict)),
		list(o.Match.Images), list(o.Match.Commands), list(o.Match.ExcludeImages),
		text(holder.Namespace), text(holder.Name))
}

// staticHeader says what to do with the file.
const staticHeader = `# Static admission policies: at most one instance, in the Pod %[1]s/%[2]s-0.
# They hold from the first request of an API server on, and nobody can delete
# them through the API.
#
# 1. Put this file, alone or beside other policies, into a folder on every
#    control plane node, such as /etc/kubernetes/admission/policies.
# 2. Start kube-apiserver (1.37, or 1.36 with the feature gate
#    ManifestBasedAdmissionControlConfig) with --admission-control-config-file
#    and this in that file:
#
#      apiVersion: apiserver.config.k8s.io/v1
#      kind: AdmissionConfiguration
#      plugins:
#      - name: ValidatingAdmissionPolicy
#        configuration:
#          apiVersion: apiserver.config.k8s.io/v1
#          kind: ValidatingAdmissionPolicyConfiguration
#          staticManifestsDir: /etc/kubernetes/admission/policies
#
# Set spec.holder of the SingletonPolicy to the same StatefulSet. To move the
# instance, render again, and put the new file on every node first.
`

// StaticYAML is Static as one stream of documents.
func StaticYAML(o Options, holder v1alpha1.HolderReference) ([]byte, error) {
	objects, err := Static(o, holder)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, staticHeader, holder.Namespace, holder.Name)
	for i, object := range objects {
		data, err := document(object)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		b.Write(data)
	}
	return b.Bytes(), nil
}
