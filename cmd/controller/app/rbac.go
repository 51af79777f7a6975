package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/cluster"
	resources "github.com/metacontroller-solo/solo/pkg/controller/discovery"
	"github.com/metacontroller-solo/solo/pkg/controller/rbac"
	"github.com/metacontroller-solo/solo/pkg/manifest"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// rbacVerb is the one verb of the program; without it, it runs.
const rbacVerb = "rbac"

// Flags of the verb rbac that others do not have.
const (
	flagFilename        = "filename"
	flagInstalled       = "installed"
	flagRelated         = "related"
	flagDecoratorStatus = "decorator-status"
	flagEscalate        = "escalate"
	flagRoleName        = "name"
	flagServiceAccount  = "service-account"
)

const rbacUsage = `Usage: controller rbac [-f FILE|FOLDER|-]... [--installed] [flags]

Print the least that the controller must be allowed for CompositeControllers and
DecoratorControllers, beside what config/rbac gives it in any case: a ClusterRole
that is added to the controller's own by its label, and, for each Secret and
ConfigMap that a hook refers to, a Role that gives that one alone.

CustomResourceDefinitions among the files tell which parents have a status.

  controller rbac -f controller.yaml | kubectl apply -f -
  kustomize build . | controller rbac -f - --related secrets --related namespaces
  controller rbac --installed --name metacontroller-installed

`

// rbacOptions are the flags of the verb rbac.
type rbacOptions struct {
	files           []string
	installed       bool
	kubeconfig      string
	related         []string
	applyStrategy   string
	decoratorStatus bool
	escalate        bool
	name            string
	serviceAccount  string
}

func (o *rbacOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&o.files, flagFilename, "f", nil, "File, folder or, as -, standard input with CompositeControllers and DecoratorControllers; what else is in it is passed over.")
	flags.BoolVar(&o.installed, flagInstalled, false, "Take those that are in the cluster.")
	flags.StringVar(&o.kubeconfig, flagKubeconfig, "", "Path of a kubeconfig, for --"+flagInstalled+"; empty means $KUBECONFIG, the Pod's service account, or ~/.kube/config.")
	flags.StringSliceVar(&o.related, flagRelated, nil, "Kinds that customize hooks ask for, such as configmaps or deployments.apps. No manifest says them.")
	flags.StringVar(&o.applyStrategy, flagApplyStrategy, applyDynamic, "That of the controller: "+applyDynamic+" or "+applyServerSide+".")
	flags.BoolVar(&o.decoratorStatus, flagDecoratorStatus, true, "Let DecoratorControllers write the status of what they decorate; false if no hook returns one.")
	flags.BoolVar(&o.escalate, flagEscalate, false, "Let children that are roles or bindings give rights that the controller has not got. Whoever may write a hook then may do anything.")
	flags.StringVar(&o.name, flagRoleName, "", "Name of the roles; empty means metacontroller-NAME, or metacontroller-controllers for several.")
	flags.StringVar(&o.serviceAccount, flagServiceAccount, defaultNamespace+"/"+defaultServiceAccount, "The controller's service account, as namespace/name, for the Roles about Secrets and ConfigMaps.")
}

// defaultServiceAccount is the one of the shipped manifests.
const defaultServiceAccount = "metacontroller"

// printRBAC runs the verb rbac and returns the exit code.
func printRBAC(ctx context.Context, arguments []string, streams Streams) int {
	var options rbacOptions
	flags := pflag.NewFlagSet(rbacVerb, pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	options.addFlags(flags)
	err := flags.Parse(arguments)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(streams.Out, rbacUsage+flags.FlagUsages())
		return exitOK
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unknown argument %q; name files with -f", flags.Arg(0))
	}
	if err == nil {
		err = options.check()
	}
	if err != nil {
		say(streams.Err, fmt.Errorf("%w (see controller %s --help)", err, rbacVerb))
		return exitUsage
	}
	output, err := options.print(ctx, arguments, streams.In)
	if err != nil {
		say(streams.Err, err)
		return exitError
	}
	if _, err := streams.Out.Write(output); err != nil {
		say(streams.Err, err)
		return exitError
	}
	return exitOK
}

func (o *rbacOptions) check() error {
	switch {
	case len(o.files) == 0 && !o.installed:
		return fmt.Errorf("name files with -f, or take what is in the cluster with --%s", flagInstalled)
	case o.applyStrategy != applyDynamic && o.applyStrategy != applyServerSide:
		return fmt.Errorf("--%s must be %s or %s, not %q", flagApplyStrategy, applyDynamic, applyServerSide, o.applyStrategy)
	}
	if _, err := o.account(); err != nil {
		return err
	}
	_, err := o.relatedKinds()
	return err
}

func (o *rbacOptions) account() (rbac.ServiceAccount, error) {
	namespace, name, found := strings.Cut(o.serviceAccount, "/")
	if !found || namespace == "" || name == "" {
		return rbac.ServiceAccount{}, fmt.Errorf("--%s must be namespace/name, not %q", flagServiceAccount, o.serviceAccount)
	}
	return rbac.ServiceAccount{Namespace: namespace, Name: name}, nil
}

func (o *rbacOptions) relatedKinds() ([]schema.GroupResource, error) {
	var kinds []schema.GroupResource
	for _, text := range o.related {
		kind, err := rbac.ParseRelated(text)
		if err != nil {
			return nil, fmt.Errorf("--%s %q: %w", flagRelated, text, err)
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// print makes the manifests.
func (o *rbacOptions) print(ctx context.Context, arguments []string, stdin io.Reader) ([]byte, error) {
	related, err := o.relatedKinds()
	if err != nil {
		return nil, err
	}
	account, err := o.account()
	if err != nil {
		return nil, err
	}
	found := declared{statusOf: map[schema.GroupVersionResource]bool{}}
	if len(o.files) > 0 {
		if err := found.read(o.files, stdin); err != nil {
			return nil, err
		}
	}
	if o.installed {
		if err := o.readInstalled(ctx, &found); err != nil {
			return nil, err
		}
	}
	if len(found.composites)+len(found.decorators) == 0 {
		return nil, fmt.Errorf("no %s and no %s is there", v1alpha1.CompositeControllerKind, v1alpha1.DecoratorControllerKind)
	}
	role, err := rbac.Minimal(rbac.Want{
		Composites: found.composites, Decorators: found.decorators, Related: related,
		ServerSideApply: o.applyStrategy == applyServerSide, HasStatus: found.hasStatus,
		NoDecoratorStatus: !o.decoratorStatus, Escalate: o.escalate,
	})
	if err != nil {
		return nil, err
	}
	return rbacYAML(arguments, role, role.Objects(cmp.Or(o.name, found.name()), account))
}

// rbacYAML is the manifests as they are printed, with how to print them again.
func rbacYAML(arguments []string, role rbac.Role, objects []any) ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# What Metacontroller may do for these controllers; the label adds it to its rights.\n# Do not edit; it is what this prints:\n#\n# controller %s %s\n", rbacVerb, strings.Join(arguments, " "))
	for _, note := range role.Notes {
		fmt.Fprintf(&out, "#\n# %s\n", strings.Join(wrap(note), "\n# "))
	}
	for i, one := range objects {
		if i > 0 {
			out.WriteString("---\n")
		}
		text, err := yaml.Marshal(one)
		if err != nil {
			return nil, fmt.Errorf("cannot encode the roles: %w", err)
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}

// commentWidth is how long a line of a comment is, in bytes.
const commentWidth = 100

// wrap breaks a sentence into lines.
func wrap(text string) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > commentWidth {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// declared is what was found.
type declared struct {
	composites []v1alpha1.CompositeController
	decorators []v1alpha1.DecoratorController
	// statusOf says of resources of which it is known whether they have a status
	// subresource.
	statusOf map[schema.GroupVersionResource]bool
}

// hasStatus takes it that a resource of which nothing is known has one.
func (d *declared) hasStatus(resource schema.GroupVersionResource) bool {
	has, known := d.statusOf[resource]
	return has || !known
}

// name is that of the roles.
func (d *declared) name() string {
	switch {
	case len(d.composites) == 1 && len(d.decorators) == 0:
		return "metacontroller-" + d.composites[0].Name
	case len(d.composites) == 0 && len(d.decorators) == 1:
		return "metacontroller-" + d.decorators[0].Name
	default:
		return "metacontroller-controllers"
	}
}

// read reads manifests.
func (d *declared) read(paths []string, stdin io.Reader) (err error) {
	set, err := manifest.Open(paths, stdin, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	for one, err := range set.Objects(nil) {
		if err != nil {
			return err
		}
		if err := d.add(one.APIVersion, one.Kind, one.JSON); err != nil {
			return &manifest.Error{File: one.File, Line: one.Line, Err: err}
		}
	}
	return nil
}

// add takes an object that says something of what is wanted.
func (d *declared) add(apiVersion, kind string, content []byte) error {
	own, custom := v1alpha1.GroupVersion.String(), apiextensionsv1.SchemeGroupVersion.String()
	switch {
	case apiVersion == own && kind == v1alpha1.CompositeControllerKind:
		var one v1alpha1.CompositeController
		if err := decodeStrictly(content, &one); err != nil {
			return err
		}
		d.composites = append(d.composites, one)
	case apiVersion == own && kind == v1alpha1.DecoratorControllerKind:
		var one v1alpha1.DecoratorController
		if err := decodeStrictly(content, &one); err != nil {
			return err
		}
		d.decorators = append(d.decorators, one)
	case apiVersion == custom && kind == kindCRD.GroupVersionKind.Kind:
		var one apiextensionsv1.CustomResourceDefinition
		if err := json.Unmarshal(content, &one); err != nil {
			return fmt.Errorf("cannot read the CustomResourceDefinition: %w", err)
		}
		for i := range one.Spec.Versions {
			version := &one.Spec.Versions[i]
			resource := schema.GroupVersionResource{Group: one.Spec.Group, Version: version.Name, Resource: one.Spec.Names.Plural}
			d.statusOf[resource] = version.Subresources != nil && version.Subresources.Status != nil
		}
	}
	return nil
}

// decodeStrictly refuses fields that nobody knows: a role of what was meant would
// be another one.
func decodeStrictly(content []byte, into runtime.Object) error {
	unknown, err := kjson.UnmarshalStrict(content, into)
	if err != nil {
		return err
	}
	return errors.Join(unknown...)
}

// readInstalled reads what is in the cluster.
func (o *rbacOptions) readInstalled(ctx context.Context, found *declared) error {
	config, err := restConfig(&Options{Kubeconfig: o.kubeconfig})
	if err != nil {
		return err
	}
	client, err := cluster.NewClient(config)
	if err != nil {
		return err
	}
	served, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make a client for %q: %w", config.Host, err)
	}
	table := resources.New(served, clock.RealClock{})
	kinds, err := ownKinds(ctx, table)
	if err != nil {
		return err
	}
	for _, plural := range []string{v1alpha1.CompositeControllerResource, v1alpha1.DecoratorControllerResource} {
		if err := found.list(ctx, client, kinds[plural]); err != nil {
			return err
		}
	}
	return found.lookUp(ctx, table)
}

func (d *declared) list(ctx context.Context, client rest.Interface, kind object.Kind) error {
	body, err := cluster.Answer(client.Get().AbsPath(cluster.Path(kind, "", "")).Do(ctx))
	if err != nil {
		return fmt.Errorf("cannot list %q: %w", kind.Resource, err)
	}
	var all struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(body, &all); err != nil {
		return fmt.Errorf("cannot read the list of %q: %w", kind.Resource, err)
	}
	for _, item := range all.Items {
		if err := d.add(kind.APIVersion(), kind.GroupVersionKind.Kind, item); err != nil {
			return fmt.Errorf("cannot read one of %q: %w", kind.Resource, err)
		}
	}
	return nil
}

// lookUp asks which parents have a status. One that is not served now may have.
func (d *declared) lookUp(ctx context.Context, table *resources.Resources) error {
	var rules []v1alpha1.ResourceRule
	for i := range d.composites {
		rules = append(rules, d.composites[i].Spec.ParentResource.ResourceRule)
	}
	for i := range d.decorators {
		for j := range d.decorators[i].Spec.Resources {
			rules = append(rules, d.decorators[i].Spec.Resources[j].ResourceRule)
		}
	}
	for _, rule := range rules {
		found, err := table.Lookup(ctx, rule.APIVersion, rule.Resource)
		var absent *resources.NotFoundError
		var unavailable *resources.UnavailableError
		switch {
		case errors.As(err, &absent), errors.As(err, &unavailable):
		case err != nil:
			return err
		default:
			d.statusOf[found.GroupVersionResource()] = found.HasStatus
		}
	}
	return nil
}
