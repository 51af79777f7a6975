package syncer

import (
	"context"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// relate finds the related objects that the hook is to be shown. It reports
// whether the pass goes on.
func (p *Pass) relate(context.Context) bool {
	p.Related = object.NewSet(nil)
	return true
}
