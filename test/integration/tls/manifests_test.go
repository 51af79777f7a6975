package tls_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"testing"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/test/kit"
)

// build builds a folder with kustomize, by kind, namespace and name.
func (s *suite) build(folder string) map[string]*unstructured.Unstructured {
	s.Helper()
	command := exec.Command("go", "tool", "-modfile=test/tools/go.mod", "kustomize", "build", folder)
	command.Dir = s.root
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		s.Fatalf("%s: %v: %s", folder, err, &stderr)
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(output), 4096)
	objects := map[string]*unstructured.Unstructured{}
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			s.Fatalf("%s: %v", folder, err)
		}
		objects[fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())] = object
	}
}

// TestOverlays holds the overlays to what the API server accepts, unknown fields
// included, and to what they are to differ in.
func TestOverlays(t *testing.T) {
	s := newSuite(t)
	crds, err := kit.CertManagerCRDs(s.ctx())
	s.must(err)
	_, err = kit.ApplyYAML(s.ctx(), s.cp.AdminConfig(0), crds)
	s.must(err)
	base := s.build("config/default")
	const ns = "metacontroller-guard"
	for folder, want := range map[string]struct{ added, changed []string }{
		"config/cert-manager": {
			[]string{
				"Certificate " + ns + "/metacontroller-guard-ca", "Certificate " + ns + "/metacontroller-guard-tls",
				"Issuer " + ns + "/metacontroller-guard-ca", "Issuer " + ns + "/metacontroller-guard-selfsigned",
			},
			[]string{"ValidatingWebhookConfiguration /metacontroller-guard"},
		},
		"config/self-managed": {
			[]string{
				"ClusterRole /metacontroller-guard-self-managed", "ClusterRoleBinding /metacontroller-guard-self-managed",
				"Role " + ns + "/metacontroller-guard-self-managed", "RoleBinding " + ns + "/metacontroller-guard-self-managed",
			},
			[]string{"Deployment " + ns + "/metacontroller-guard"},
		},
	} {
		t.Run(folder, func(t *testing.T) {
			sub := *s
			sub.TB = t
			objects := sub.build(folder)
			var added, changed []string
			for _, key := range slices.Sorted(maps.Keys(objects)) {
				object := objects[key]
				switch before := base[key]; {
				case before == nil:
					added = append(added, key)
				case !cmp.Equal(before, object):
					changed = append(changed, key)
				}
				options := []client.ApplyOption{client.ForceOwnership, client.FieldOwner("integration")}
				if object.GetKind() != "Namespace" {
					options = append(options, client.DryRunAll)
				}
				sub.eventually(func() error {
					return sub.admin().Apply(sub.ctx(), client.ApplyConfigurationFromUnstructured(object), options...)
				})
			}
			if diff := cmp.Diff(want.added, added); diff != "" {
				t.Errorf("added:\n%s", diff)
			}
			if diff := cmp.Diff(want.changed, changed); diff != "" {
				t.Errorf("changed:\n%s", diff)
			}
			for key := range base {
				if objects[key] == nil {
					t.Errorf("%s is gone", key)
				}
			}
		})
	}
	configuration := s.build("config/cert-manager")["ValidatingWebhookConfiguration /metacontroller-guard"]
	if got := configuration.GetAnnotations()[cmapi.WantInjectAnnotation]; got != namespace+"/"+caName {
		t.Errorf("the CA injector takes the caBundle from %q", got)
	}
}
