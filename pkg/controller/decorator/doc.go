// Package decorator is what a DecoratorController is: how its object becomes an
// engine.Definition, and how the objects that it decorates are synced where that
// differs from a CompositeController.
//
//	DecoratorController ─ Builder.Build ─> engine.Controller{Definition, syncer with policy}
//	hook's answer ─ package change (pure) ─> Change ─ policy ─> PUT of the status, PATCH of the rest
//
// Attachments are what elsewhere are children, and the decorated object is their
// parent. They are never adopted nor released: an attachment is one by its owner
// and by the mark of its DecoratorController.
package decorator
