package pin

import (
	"bytes"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// File is a rendered manifest.
type File struct {
	// Name is its base name.
	Name string
	Data []byte
}

// kustomization is the file that names the others.
const kustomization = "kustomization.yaml"

// header says where the files come from.
const header = "# Rendered by package pkg/guard/pin, as \"guard render\" prints it. Do not edit: change the package.\n"

// check refuses a match that cannot be written into expressions.
func check(o Options) error {
	if _, err := identify.Compile(o.withDefaults().Match); err != nil {
		return fmt.Errorf("cannot render the admission objects: %w", err)
	}
	return nil
}

// Files returns the manifests, one for each name of a policy or webhook
// configuration, and the kustomization that lists them in order.
func Files(o Options) ([]File, error) {
	if err := check(o); err != nil {
		return nil, err
	}
	var files []File
	index := map[string]int{}
	for _, object := range Objects(o) {
		data, err := document(object)
		if err != nil {
			return nil, err
		}
		name := fileName(object)
		if i, ok := index[name]; ok {
			files[i].Data = append(append(files[i].Data, "---\n"...), data...)
			continue
		}
		index[name] = len(files)
		files = append(files, File{Name: name, Data: append([]byte(header), data...)})
	}
	var b strings.Builder
	b.WriteString(header + "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n")
	for _, f := range files {
		b.WriteString("- " + f.Name + "\n")
	}
	return append(files, File{Name: kustomization, Data: []byte(b.String())}), nil
}

// YAML returns all objects as one stream of documents.
func YAML(o Options) ([]byte, error) {
	if err := check(o); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for i, object := range Objects(o) {
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

func fileName(object client.Object) string {
	if object.GetObjectKind().GroupVersionKind().Kind == "ValidatingWebhookConfiguration" {
		return "webhook.yaml"
	}
	return strings.TrimPrefix(object.GetName(), "metacontroller-guard-") + "-policy.yaml"
}

func document(object client.Object) ([]byte, error) {
	all, err := yaml.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("cannot render %T %q: %w", object, object.GetName(), err)
	}
	// A policy's status is the API server's to write.
	var fields map[string]any
	if err := yaml.Unmarshal(all, &fields); err != nil {
		return nil, fmt.Errorf("cannot render %T %q: %w", object, object.GetName(), err)
	}
	delete(fields, "status")
	return yaml.Marshal(fields)
}
