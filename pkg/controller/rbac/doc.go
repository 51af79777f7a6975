// Package rbac says which rights the controller needs for what
// CompositeControllers and DecoratorControllers declare, beside those of
// config/rbac that it always needs:
//
//	CompositeControllers, DecoratorControllers, options ─ Minimal ─> Role ─ Objects ─> ClusterRole, Roles, RoleBindings
//	error of the API server ─ Lacking ─> the right that is missing
//
// The rules follow what the controller does, verb by verb; a test with the API
// server's audit log holds them to it, both ways. The package is pure.
package rbac
