// Package engine runs controllers: it starts, stops and replaces them as the
// objects that declare them come, go and change, and brings each event to the
// parents that it concerns.
//
//	CompositeController ─> Host ─ Build ─> Controller{Definition, Sync}
//	                         │ start, replace, stop
//	informer event ─> router (pure) ─> queue of keys ─> workers ─> Sync ─> Outcome
//	event of a related object ─> Related, a worker of its own ──┘
//
//	object deleted, or moved away ─> stop ─> leftovers ─ release ─> finalizers off the parents
//	two controllers for one parent ─> contenders ─ elders ─> Syncer.GiveWay: the older one acts
//
// The queue and the workers are controller-runtime's. What a Sync does is not
// known here; how soon it is called again is decided here, by its Outcome.
package engine
