package apply

import (
	"context"

	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Result is what became of a plan.
type Result struct {
	// Done are the steps that were carried out, in the plan's order.
	Done []Done
	// Failed are the steps that a user should hear of, in the plan's order.
	Failed []Failed
	// Retry says that a step met a newer state than the plan knew (gone,
	// conflict, already there): no error, but the parent should be looked at
	// again soon. An event of the newer state usually does it.
	Retry bool
}

// Done is a step that was carried out.
type Done struct {
	plan.Step
	// Written is the object as the server has it after Create or Update; nil
	// after Delete.
	Written *object.Object
}

// Failed is a step that failed.
type Failed struct {
	plan.Step
	// Err says what is wrong, where.
	Err error
}

// Err joins the errors of all that failed, or is nil.
func (r Result) Err() error { return nil }

// Run carries out a plan. Kinds follow one another; independent children of one
// kind are written by up to parallel goroutines at once (1 if it is less). A
// failure does not stop the rest; a done context does.
func Run(ctx context.Context, w Writer, p plan.Plan, parallel int) Result {
	return Result{}
}
