// Package composite is what a CompositeController is: how its object becomes an
// engine.Definition, and how its parents are synced where that differs from a
// DecoratorController.
//
//	CompositeController ─ Builder.Build ─> engine.Controller{Definition, syncer with policy}
//	                                              └─ rolling.go: one question per revision ─ package revision ─> ControllerRevisions, condition
package composite
