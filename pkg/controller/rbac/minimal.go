package rbac

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

// Verbs of the rules.
const (
	get      = "get"
	list     = "list"
	watch    = "watch"
	create   = "create"
	update   = "update"
	patch    = "patch"
	remove   = "delete"
	escalate = "escalate"
	bind     = "bind"
)

// verbOrder is how the verbs of a rule are ordered.
var verbOrder = []string{get, list, watch, create, update, patch, remove, escalate, bind}

// Subresources of parents.
const (
	subresourceStatus     = "status"
	subresourceFinalizers = "finalizers"
)

// groupRBAC is the group whose objects the API server guards twice.
const groupRBAC = "rbac.authorization.k8s.io"

// Want is what rights are wanted for.
type Want struct {
	Composites []v1alpha1.CompositeController
	Decorators []v1alpha1.DecoratorController
	// Related are the kinds that customize hooks ask for. No manifest says them.
	Related []schema.GroupResource
	// ServerSideApply says that children are written by that
	// (--apply-strategy=server-side-apply).
	ServerSideApply bool
	// HasStatus says whether a resource has a status subresource; nil takes it that
	// all have. A right to a subresource that is not there is none.
	HasStatus func(schema.GroupVersionResource) bool
	// NoDecoratorStatus says that the hooks of DecoratorControllers return no status.
	NoDecoratorStatus bool
	// Escalate lets children that are roles and bindings hand out rights that the
	// controller has not got itself.
	Escalate bool
}

// Role is what is needed.
type Role struct {
	// Rights to objects of any namespace.
	Rights Rights
	// Sources are the Secrets and ConfigMaps that hooks are called with, each of
	// which is to be read alone.
	Sources []Source
	// Notes tell what the manifests do not say and whoever applies the role should
	// know, each a sentence or more.
	Notes []string
}

// Source is a Secret or a ConfigMap.
type Source struct {
	Namespace, Name string
	// Resource is secrets or configmaps.
	Resource string
}

// Minimal is the least that is needed. The error names the object and the field
// that is no good.
func Minimal(want Want) (Role, error) {
	m := &minimal{want: want}
	for i := range want.Composites {
		if err := m.composite(&want.Composites[i]); err != nil {
			return Role{}, fmt.Errorf("%s %q: %w", v1alpha1.CompositeControllerKind, want.Composites[i].Name, err)
		}
	}
	for i := range want.Decorators {
		if err := m.decorator(&want.Decorators[i]); err != nil {
			return Role{}, fmt.Errorf("%s %q: %w", v1alpha1.DecoratorControllerKind, want.Decorators[i].Name, err)
		}
	}
	for _, one := range want.Related {
		m.rights.add(one, "", list, watch)
	}
	m.notes()
	slices.SortFunc(m.sources, compareSources)
	return Role{Rights: m.rights, Sources: slices.Compact(m.sources), Notes: m.said}, nil
}

// minimal holds a role in the making.
type minimal struct {
	want    Want
	rights  Rights
	sources []Source
	said    []string
	// customizes, unfinalized and grants are whom a note is about.
	customizes, unfinalized, grants []string
}

// parent is what both kinds of controllers need for a kind of parents beside
// their own.
type parent struct {
	rule     v1alpha1.ResourceRule
	finalize bool
	children bool
	// reads says that single objects are read past the caches.
	reads bool
	// patches says that the object itself is changed.
	patches bool
	// status says that it is written, if there is a subresource for it.
	status bool
}

func (m *minimal) composite(c *v1alpha1.CompositeController) error {
	spec := &c.Spec
	hooks := v1alpha1.CompositeControllerHooks{}
	if spec.Hooks != nil {
		hooks = *spec.Hooks
	}
	finalize := hooks.Finalize != nil
	err := m.parent("spec.parentResource", parent{
		rule: spec.ParentResource.ResourceRule, finalize: finalize, children: len(spec.ChildResources) > 0,
		// A parent is looked at again before it adopts an orphan.
		reads: len(spec.ChildResources) > 0 || finalize,
		// The finalizer; nothing else of the parent is changed but its status.
		patches: finalize, status: true,
	})
	if err != nil {
		return err
	}
	for i, child := range spec.ChildResources {
		method := v1alpha1.ChildUpdateOnDelete
		if child.UpdateStrategy != nil {
			method = child.UpdateStrategy.Method
		}
		// Orphans are adopted, and let go, by an update, whatever the strategy.
		if err := m.child(fmt.Sprintf("spec.childResources[%d]", i), child.ResourceRule, method, true, c.Name); err != nil {
			return err
		}
	}
	m.hooks(c.Name, spec.EndpointConfigs, hooks.Sync, hooks.Finalize, hooks.Customize)
	return nil
}

func (m *minimal) decorator(d *v1alpha1.DecoratorController) error {
	spec := &d.Spec
	hooks := v1alpha1.DecoratorControllerHooks{}
	if spec.Hooks != nil {
		hooks = *spec.Hooks
	}
	for i, one := range spec.Resources {
		err := m.parent(fmt.Sprintf("spec.resources[%d]", i), parent{
			rule: one.ResourceRule, finalize: hooks.Finalize != nil, children: len(spec.Attachments) > 0,
			// A finalizer that is left is taken off, whoever else writes the object.
			reads: hooks.Finalize != nil,
			// Labels, annotations, and a status that is a field like any other.
			patches: true, status: !m.want.NoDecoratorStatus,
		})
		if err != nil {
			return err
		}
	}
	for i, attachment := range spec.Attachments {
		method := v1alpha1.ChildUpdateOnDelete
		if attachment.UpdateStrategy != nil {
			method = attachment.UpdateStrategy.Method
		}
		if err := m.child(fmt.Sprintf("spec.attachments[%d]", i), attachment.ResourceRule, method, false, d.Name); err != nil {
			return err
		}
	}
	m.hooks(d.Name, spec.EndpointConfigs, hooks.Sync, hooks.Finalize, hooks.Customize)
	return nil
}

func (m *minimal) parent(path string, p parent) error {
	resource, err := resourceOf(path, p.rule)
	if err != nil {
		return err
	}
	gr := resource.GroupResource()
	// When the controller goes, its finalizer is looked for on all objects.
	m.rights.add(gr, "", list, watch)
	if p.reads {
		m.rights.add(gr, "", get)
	}
	if p.patches {
		m.rights.add(gr, "", patch)
	}
	if p.status && (m.want.HasStatus == nil || m.want.HasStatus(resource)) {
		m.rights.add(gr, subresourceStatus, update)
	}
	if p.children {
		// Children block the deletion of their owner; an API server with
		// OwnerReferencesPermissionEnforcement wants this for it.
		m.rights.add(gr, subresourceFinalizers, update)
	}
	if !p.finalize {
		m.unfinalized = append(m.unfinalized, gr.String())
	}
	return nil
}

func (m *minimal) child(path string, rule v1alpha1.ResourceRule, method v1alpha1.ChildUpdateMethod, adopted bool, controller string) error {
	resource, err := resourceOf(path, rule)
	if err != nil {
		return err
	}
	gr := resource.GroupResource()
	m.rights.add(gr, "", list, watch, create, remove)
	inPlace, recreate := false, false
	switch method {
	case v1alpha1.ChildUpdateInPlace, v1alpha1.ChildUpdateRollingInPlace:
		inPlace = true
	case v1alpha1.ChildUpdateRecreate, v1alpha1.ChildUpdateRollingRecreate:
		// A dry run in place shows whether to make it again would change anything.
		recreate = true
	case v1alpha1.ChildUpdateOnDelete, "":
	default:
		return fmt.Errorf("%s.updateStrategy.method %q is none", path, method)
	}
	switch {
	case m.want.ServerSideApply:
		m.rights.add(gr, "", patch)
		if inPlace {
			// What was written without it before is handed over once.
			m.rights.add(gr, "", get)
		}
		if adopted || recreate {
			m.rights.add(gr, "", update)
		}
	case adopted || inPlace || recreate:
		m.rights.add(gr, "", update)
	}
	if gr.Group == groupRBAC {
		m.grant(gr, controller)
	}
	return nil
}

// grant is for children that give rights to others.
func (m *minimal) grant(gr schema.GroupResource, controller string) {
	verb := ""
	switch gr.Resource {
	case "roles", "clusterroles":
		verb = escalate
	case "rolebindings", "clusterrolebindings":
		verb = bind
	default:
		return
	}
	if m.want.Escalate {
		// A binding is to a role: the verb is asked of that.
		if verb == bind {
			for _, role := range []string{"clusterroles", "roles"} {
				m.rights.add(schema.GroupResource{Group: groupRBAC, Resource: role}, "", verb)
			}
			return
		}
		m.rights.add(gr, "", verb)
		return
	}
	m.grants = append(m.grants, controller)
}

// hooks finds what the hooks refer to.
func (m *minimal) hooks(controller string, endpoints []v1alpha1.EndpointConfig, sync, finalize, customize *v1alpha1.Hook) {
	if customize != nil {
		m.customizes = append(m.customizes, controller)
	}
	for _, hook := range []*v1alpha1.Hook{sync, finalize, customize} {
		if hook != nil && hook.Webhook != nil {
			m.connection(&hook.Webhook.ConnectionConfig)
		}
	}
	for i := range endpoints {
		m.connection(&endpoints[i].ConnectionConfig)
	}
}

func (m *minimal) connection(c *v1alpha1.ConnectionConfig) {
	add := func(resource, namespace, name string) {
		m.sources = append(m.sources, Source{Namespace: namespace, Name: name, Resource: resource})
	}
	if ca := c.CABundle; ca != nil {
		if ca.SecretRef != nil {
			add(resourceSecrets, ca.SecretRef.Namespace, ca.SecretRef.Name)
		}
		if ca.ConfigMapRef != nil {
			add(resourceConfigMaps, ca.ConfigMapRef.Namespace, ca.ConfigMapRef.Name)
		}
	}
	if c.ClientTLS != nil {
		add(resourceSecrets, c.ClientTLS.SecretRef.Namespace, c.ClientTLS.SecretRef.Name)
	}
	if c.Authorization != nil {
		add(resourceSecrets, c.Authorization.SecretRef.Namespace, c.Authorization.SecretRef.Name)
	}
	if c.BasicAuth != nil {
		add(resourceSecrets, c.BasicAuth.SecretRef.Namespace, c.BasicAuth.SecretRef.Name)
	}
}

// notes says what no manifest tells.
func (m *minimal) notes() {
	if len(m.customizes) > 0 {
		said := "Which kinds a customize hook asks for is in no manifest (%s). The role has those of --related"
		if len(m.want.Related) == 0 {
			said += ": none. Name them, and namespaces if a rule has a namespaceSelector"
		}
		m.said = append(m.said, fmt.Sprintf(said+".", names(m.customizes)))
	}
	if len(m.unfinalized) > 0 && slices.ContainsFunc(m.unfinalized, func(gr string) bool { return !m.rights.has(schema.ParseGroupResource(gr), "", patch) }) {
		m.said = append(m.said, "A controller that lost its finalize hook still takes its finalizer off: leave it \"patch\" on its parents until none carries it.")
	}
	if len(m.grants) > 0 {
		m.said = append(m.said, fmt.Sprintf("Children of %s hand out rights. The API server lets nobody give more than they have: give the controller the same rights, or --escalate.", names(m.grants)))
	}
}
