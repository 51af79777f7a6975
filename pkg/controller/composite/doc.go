// Package composite is what a CompositeController is: how its object becomes an
// engine.Definition, and how its parents are synced where that differs from a
// DecoratorController.
//
//	CompositeController ─ Builder.Build ─> engine.Controller{Definition, syncer with policy}
package composite
