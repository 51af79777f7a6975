package discovery

import (
	"github.com/metacontroller-solo/solo/pkg/object"
)

// StatusField says whether the API server keeps a field called status in objects
// of a version of a custom resource, going by the schema in its
// CustomResourceDefinition. See "Field pruning" in the documentation of those.
func StatusField(definition *object.Object, version string) bool {
	spec, _ := definition.Field("spec").(map[string]any)
	if spec["preserveUnknownFields"] == true {
		return true
	}
	versions, _ := spec["versions"].([]any)
	for _, one := range versions {
		fields, _ := one.(map[string]any)
		if fields["name"] != version {
			continue
		}
		schema, _ := fields["schema"].(map[string]any)
		root, _ := schema["openAPIV3Schema"].(map[string]any)
		properties, _ := root["properties"].(map[string]any)
		_, declared := properties["status"]
		return declared || root["x-kubernetes-preserve-unknown-fields"] == true
	}
	return false
}
