package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	// profilePiece is the length of one CPU profile: how long a phase takes is not
	// known before. "go tool pprof" adds several files up.
	profilePiece = 5 * time.Second
	// profileRetry is the time between two tries to reach a controller that starts.
	profileRetry = 50 * time.Millisecond
)

// profilePhase takes profiles of the controller until the function that it returns
// is called: of the CPU in pieces, and of allocations and the heap at the end.
// Allocations are since the start of the process; those of one phase are what its
// profile has beyond the one before: go tool pprof -diff_base.
func (r *run) profilePhase(ctx context.Context, phase string) (stop func() error) {
	if r.Profile == "" || r.controller == nil {
		return func() error { return nil }
	}
	file := func(what string) string {
		return filepath.Join(r.Profile, fmt.Sprintf("%s-%d-%s-%s.pprof", r.plan.Mode, r.plan.Parents, phase, what))
	}
	over := make(chan struct{})
	pieces := make(chan error, 1)
	go func() {
		for n := 1; ; n++ {
			err := r.profile(ctx, fmt.Sprintf("profile?seconds=%d", int(profilePiece.Seconds())), file(fmt.Sprintf("cpu-%d", n)))
			select {
			case <-over:
				pieces <- err
				return
			case <-ctx.Done():
				pieces <- ctx.Err()
				return
			default:
			}
			if err == nil {
				continue
			}
			n-- // it is being restarted
			select {
			case <-over:
			case <-time.After(profileRetry):
			}
		}
	}()
	return func() error {
		close(over)
		return errors.Join(
			<-pieces,
			r.profile(ctx, "heap?gc=1", file("heap")),
			r.profile(ctx, "allocs", file("allocs")),
		)
	}
}

// profile writes one profile into a file.
func (r *run) profile(ctx context.Context, which, file string) error {
	profile, err := fetch(ctx, http.MethodGet, "http://"+r.controller.profile+"/debug/pprof/"+which)
	if err != nil {
		return fmt.Errorf("cannot take a profile: %w", err)
	}
	if err := os.WriteFile(file, profile, 0o644); err != nil {
		return fmt.Errorf("cannot keep a profile: %w", err)
	}
	return nil
}
