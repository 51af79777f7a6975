// Package metrics is the one place for the prefixes of metric names.
package metrics

const (
	// ControllerPrefix begins the metrics of the controller; the public
	// Metacontroller's dashboards look for it.
	ControllerPrefix = "metacontroller"
	// GuardPrefix begins the metrics of the guard.
	GuardPrefix = "metacontroller_guard"
)
