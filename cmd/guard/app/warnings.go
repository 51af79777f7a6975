package app

import (
	"context"
	"slices"
	"sync"
)

// warnings keeps what the API server warns of.
type warnings struct {
	mutex sync.Mutex // guards texts
	texts []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	if code != 299 || text == "" {
		return
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.texts = append(w.texts, text)
}

// take returns the warnings since the last call.
func (w *warnings) take() []string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	taken := slices.Clone(w.texts)
	w.texts = nil
	return taken
}
