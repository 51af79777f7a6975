package main

import (
	"fmt"
	"strings"
)

const (
	soakGroup = "soak.example.com"
	soakAPI   = soakGroup + "/v1"
	namespace = "soak"
	// roleLabel says what becomes of a tank.
	roleLabel = "role"
	// decoratedLabel is on tanks that are decorated too.
	decoratedLabel = "decorated"
	keyValue       = "value"
	// decorator is the DecoratorController that stays.
	decorator = "soak-decorator"
)

// Roles of tanks.
const (
	roleComposite = "composite"
	roleRolling   = "rolling"
	roleGuest     = "guest"
)

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.soak.example.com}
spec:
  group: soak.example.com
  scope: Namespaced
  names: {plural: PLURAL, singular: SINGULAR, kind: KIND}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
`

const rights = `
apiVersion: v1
kind: Namespace
metadata: {name: soak}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: metacontroller-soak
  labels: {rbac.metacontroller.io/aggregate-to-metacontroller: "true"}
rules:
- apiGroups: [soak.example.com]
  resources: [tanks]
  verbs: [get, list, watch, patch]
- apiGroups: [soak.example.com]
  resources: [tanks/status, tanks/finalizers]
  verbs: [update]
- apiGroups: [soak.example.com]
  resources: [puddles]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch, create, update, delete]
---
`

// compositeManifest is a CompositeController of the tanks of a role.
func compositeManifest(name, role, method, hooks, url string) string {
	hooks = strings.ReplaceAll(hooks, "URL", url)
	return strings.NewReplacer("NAME", name, "ROLE", role, "METHOD", method, "HOOKS", hooks).Replace(`
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: NAME}
spec:
  generateSelector: true
  parentResource: {apiVersion: soak.example.com/v1, resource: tanks, labelSelector: {matchLabels: {role: ROLE}}}
  childResources:
  - {apiVersion: v1, resource: configmaps, updateStrategy: {method: METHOD}}
  hooks: {HOOKS}
---
`)
}

// decoratorManifest is a DecoratorController of the tanks with a label.
func decoratorManifest(name, label, url string) string {
	return strings.NewReplacer("NAME", name, "LABEL", label, "URL", url).Replace(`
apiVersion: metacontroller.k8s.io/v1alpha1
kind: DecoratorController
metadata: {name: NAME}
spec:
  resources:
  - {apiVersion: soak.example.com/v1, resource: tanks, labelSelector: {matchLabels: {LABEL}}}
  attachments:
  - {apiVersion: v1, resource: configmaps, updateStrategy: {method: InPlace}}
  hooks: {sync: {webhook: {url: "URL/decorate", etag: {enabled: true}}}, finalize: {webhook: {url: "URL/decorate"}}}
---
`)
}

const (
	hooksSync      = `sync: {webhook: {url: "URL/sync"}}`
	hooksFinalize  = hooksSync + `, finalize: {webhook: {url: "URL/sync"}}`
	hooksCustomize = hooksFinalize + `, customize: {webhook: {url: "URL/customize"}}`
	// hooksNone cannot be called.
	hooksNone = `sync: {webhook: {path: "/sync"}}`
)

// manifests are the kinds, the rights and the controllers that stay.
func manifests(url string) string {
	kind := func(plural, singular, kind string) string {
		return strings.NewReplacer("PLURAL", plural, "SINGULAR", singular, "KIND", kind).Replace(definition)
	}
	return kind("tanks", "tank", "Tank") + kind("puddles", "puddle", "Puddle") + rights +
		compositeManifest("soak-composite", roleComposite, "InPlace", hooksCustomize, url) +
		compositeManifest("soak-rolling", roleRolling, "RollingInPlace", hooksSync, url) +
		decoratorManifest(decorator, decoratedLabel+`: "yes"`, url)
}

// guest is a controller that comes and goes, as a manifest, with its resource.
func guest(n int, url string) (name, resource, manifest string) {
	name = fmt.Sprintf("guest-%d", n)
	switch n % 4 {
	case 0:
		return name, "compositecontrollers", compositeManifest(name, roleGuest, "InPlace", hooksCustomize, url)
	case 1:
		return name, "decoratorcontrollers", decoratorManifest(name, roleLabel+": "+roleGuest, url)
	case 2:
		return name, "compositecontrollers", compositeManifest(name, roleGuest, "RollingInPlace", hooksFinalize, url)
	default:
		return name, "compositecontrollers", compositeManifest(name, roleGuest, "InPlace", hooksNone, url)
	}
}

// decorationName is the name of what a DecoratorController attaches to a tank.
func decorationName(tank, controller string) string { return tank + "-by-" + controller }

// childName is the name of a tank's child.
func childName(tank string, i int) string { return fmt.Sprintf("%s-%d", tank, i) }
