package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
	"github.com/metacontroller-solo/solo/test/kit/vitals"
)

const (
	// readyLimit is how long the controller may take to answer at the start.
	readyLimit = time.Minute
	// endLimit is how long the end of a program takes after it answers no more.
	endLimit = 5 * time.Second
)

// stage is what the driver works on: the control plane, the hooks and the
// controller.
type stage struct {
	plane      *kit.ControlPlane
	config     *rest.Config
	hooks      *hooks
	controller *process.Process
	program    vitals.Program
	stops      []func()
}

// build starts everything. An error means that nothing runs.
func build(ctx context.Context, o options) (s *stage, err error) {
	s = &stage{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	bin, err := os.MkdirTemp("", "soak-")
	if err != nil {
		return s, fmt.Errorf("cannot make a folder: %w", err)
	}
	s.stops = append(s.stops, func() { _ = os.RemoveAll(bin) })
	program := filepath.Join(bin, "controller")
	if err := kit.BuildTo(ctx, "./cmd/controller", program); err != nil {
		return s, err
	}
	if s.plane, err = kit.Start(ctx, kit.Options{Log: os.Stdout}); err != nil {
		return s, err
	}
	s.stops = append(s.stops, s.plane.Stop)
	s.config = s.plane.AdminConfig(0)
	if err := kit.InstallController(ctx, s.config); err != nil {
		return s, err
	}
	if s.hooks, err = listen(); err != nil {
		return s, err
	}
	s.stops = append(s.stops, s.hooks.close)
	if _, err := kit.ApplyYAML(ctx, s.config, []byte(manifests(s.hooks.url))); err != nil {
		return s, err
	}
	return s, s.startController(ctx, program, bin, o.out)
}

// startController starts the program under its service account and waits until it
// answers.
func (s *stage) startController(ctx context.Context, program, dir, out string) error {
	config, err := s.plane.TokenConfig(ctx, kit.ControllerNamespace, kit.ControllerAccount)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := kit.WriteKubeconfig(kubeconfig, config); err != nil {
		return err
	}
	for _, into := range []*string{&s.program.Metrics, &s.program.Profiles} {
		port, err := kit.FreePort()
		if err != nil {
			return err
		}
		*into = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	log, err := os.Create(filepath.Join(out, "controller.log"))
	if err != nil {
		return fmt.Errorf("cannot write the controller's log: %w", err)
	}
	s.stops = append(s.stops, func() { _ = log.Close() })
	s.controller, err = process.Start(process.Spec{
		Name: "controller", Path: program, Stdout: log,
		Args: []string{
			"--kubeconfig=" + kubeconfig, "--metrics-address=" + s.program.Metrics, "--pprof-address=" + s.program.Profiles,
			"--health-probe-bind-address=0", "--zap-log-level=error",
		},
	})
	if err != nil {
		return err
	}
	s.stops = append(s.stops, func() { s.controller.Stop() })
	ready, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	return s.controller.Until(ready, func(ctx context.Context) error {
		_, err := s.program.Read(ctx)
		return err
	})
}

// watch samples the controller until ctx ends, beginning at once. It returns an
// error if the controller ends.
func (s *stage) watch(ctx context.Context, every time.Duration, add func(vitals.Sample)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		sample, err := s.program.Read(ctx)
		if err != nil && ctx.Err() == nil {
			// One that has just refused a connection is about to be gone.
			select {
			case <-s.controller.Done():
			case <-time.After(endLimit):
			}
		}
		if _, ended := s.controller.Status(); ended {
			return fmt.Errorf("the controller did not go on: %w", s.controller.ExitError())
		}
		switch {
		case err == nil:
			add(sample)
		case ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.controller.Done():
		case <-ticker.C:
		}
	}
}

// stop ends everything, last started first.
func (s *stage) stop() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
	s.stops = nil
}
