package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/metacontroller-solo/solo/test/node/environ"
	"github.com/metacontroller-solo/solo/test/node/podstatus"
	"github.com/metacontroller-solo/solo/test/node/process"
)

const (
	// hookLimit bounds a hook's HTTP request beside the grace period.
	hookLimit = 30 * time.Second
	// outputLimit is how much of a probe's answer or output is read, in bytes.
	outputLimit = 10 << 10
	// userAgent is what servers see of a probe.
	userAgent = "kube-probe/1.37"
)

// watch runs the postStart hook and the probes of a run until ctx ends.
func (p *Pod) watch(ctx context.Context, run *execution) {
	spec, c := run.spec, run.container
	if spec.Lifecycle != nil && spec.Lifecycle.PostStart != nil {
		if err := p.handle(ctx, run, spec.Lifecycle.PostStart); err != nil && ctx.Err() == nil {
			p.event(c, corev1.EventTypeWarning, eventPostStartFailed, "PostStartHook failed: %s", err)
			c.request(killRequest{message: fmt.Sprintf("Container %s failed its postStart hook", c.name)})
			return
		}
	}
	if spec.StartupProbe != nil && !p.probe(ctx, run, spec.StartupProbe, "Startup", func(ok bool) bool { return ok }) {
		return
	}
	if ctx.Err() != nil {
		return
	}
	p.change(c, func(r *podstatus.Container) {
		r.Started = true
		r.Ready = spec.ReadinessProbe == nil
	})
	c.startedOnce()
	var probes sync.WaitGroup
	if spec.LivenessProbe != nil {
		probes.Go(func() { p.probe(ctx, run, spec.LivenessProbe, "Liveness", func(bool) bool { return false }) })
	}
	if spec.ReadinessProbe != nil {
		probes.Go(func() {
			p.probe(ctx, run, spec.ReadinessProbe, "Readiness", func(ok bool) bool {
				if p.record(c).Ready != ok {
					p.change(c, func(r *podstatus.Container) { r.Ready = ok })
				}
				return false
			})
		})
	}
	probes.Wait()
}

// startedOnce tells those who wait for a sidecar.
func (c *container) startedOnce() {
	if !isClosed(c.started) {
		close(c.started)
	}
}

// probe looks at the container by the probe's times and calls seen when as many results as the probe's thresholds ask for were alike. It ends when
// seen is true, which it returns, at the end of ctx, or after it asked for the end of a container that is not alive.
func (p *Pod) probe(ctx context.Context, run *execution, probe *corev1.Probe, name string, seen func(ok bool) bool) bool {
	c := run.container
	period := time.Duration(max(probe.PeriodSeconds, 1)) * time.Second
	timeout := time.Duration(max(probe.TimeoutSeconds, 1)) * time.Second
	if !p.pause(ctx, time.Duration(probe.InitialDelaySeconds)*time.Second) {
		return false
	}
	row, last := int32(0), false
	for {
		limited, cancel := context.WithTimeout(ctx, timeout)
		err := p.check(limited, run, &probe.ProbeHandler)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		ok := err == nil
		if ok != last {
			row = 0
		}
		row, last = row+1, ok
		if !ok {
			p.event(c, corev1.EventTypeWarning, eventUnhealthy, "%s probe failed: %s", name, err)
		}
		if ok && row >= max(probe.SuccessThreshold, 1) || !ok && row >= max(probe.FailureThreshold, 1) {
			if seen(ok) {
				return true
			}
			if !ok && name != "Readiness" {
				c.request(killRequest{grace: probe.TerminationGracePeriodSeconds, message: fmt.Sprintf("Container %s failed %s probe, will be restarted", c.name, strings.ToLower(name))})
				return false
			}
		}
		if !p.pause(ctx, period) {
			return false
		}
	}
}

func (p *Pod) check(ctx context.Context, run *execution, probe *corev1.ProbeHandler) error {
	switch {
	case probe.HTTPGet != nil:
		return p.get(ctx, run, probe.HTTPGet)
	case probe.TCPSocket != nil:
		address, err := p.address(run, probe.TCPSocket.Host, probe.TCPSocket.Port)
		if err != nil {
			return err
		}
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	case probe.Exec != nil:
		return p.exec(ctx, run, probe.Exec.Command)
	}
	return errors.New("the probe says nothing to do")
}

// handle runs a hook.
func (p *Pod) handle(ctx context.Context, run *execution, hook *corev1.LifecycleHandler) error {
	switch {
	case hook.Exec != nil:
		return p.exec(ctx, run, hook.Exec.Command)
	case hook.HTTPGet != nil:
		ctx, cancel := context.WithTimeout(ctx, hookLimit)
		defer cancel()
		return p.get(ctx, run, hook.HTTPGet)
	case hook.Sleep != nil:
		if !p.pause(ctx, time.Duration(hook.Sleep.Seconds)*time.Second) {
			return ctx.Err()
		}
		return nil
	}
	return errors.New("the hook says nothing to do")
}

// address resolves a port, which may be a name, on the Pod's address unless a host is given.
func (p *Pod) address(run *execution, host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		p.mu.Lock()
		host = p.ip.String()
		p.mu.Unlock()
	}
	number := port.IntValue()
	if port.Type == intstr.String && number == 0 {
		for _, named := range run.spec.Ports {
			if named.Name == port.StrVal {
				number = int(named.ContainerPort)
			}
		}
	}
	if number <= 0 || number > 65535 {
		return "", fmt.Errorf("cannot find port %q of container %q", port.String(), run.container.name)
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

// get succeeds for any status from 200 to 399.
func (p *Pod) get(ctx context.Context, run *execution, action *corev1.HTTPGetAction) error {
	address, err := p.address(run, action.Host, action.Port)
	if err != nil {
		return err
	}
	target, err := url.Parse(action.Path)
	if err != nil {
		target = &url.URL{Path: action.Path}
	}
	target.Scheme, target.Host = strings.ToLower(string(action.Scheme)), address
	if target.Scheme == "" {
		target.Scheme = "http"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return fmt.Errorf("cannot make request of %q: %w", target, err)
	}
	request.Header.Set("User-Agent", userAgent)
	request.Header.Set("Accept", "*/*")
	for _, header := range action.HTTPHeaders {
		if strings.EqualFold(header.Name, "Host") {
			request.Host = header.Value
			continue
		}
		request.Header.Add(header.Name, header.Value)
	}
	// Unlike the kubelet's, an HTTPS probe checks the certificate, by the host's authorities: the Pod API names none, and nothing here skips
	// the check.
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if next.URL.Hostname() != via[0].URL.Hostname() || len(via) >= 10 {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(response.Body, outputLimit))
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("HTTP probe failed with statuscode: %d: %s", response.StatusCode, firstLine(body))
	}
	return nil
}

// exec runs a command beside the container's process, with its environment and in its folder.
func (p *Pod) exec(ctx context.Context, run *execution, command []string) error {
	if len(command) == 0 {
		return errors.New("the command is empty")
	}
	mounts, err := p.mounts(p.object(), run.spec)
	if err != nil {
		return err
	}
	out := &head{}
	code, err := p.runBeside(ctx, run.command, mounts, command, nil, out, out)
	if err != nil {
		return fmt.Errorf("%w; output: %s", err, firstLine(out.bytes()))
	}
	if code != 0 {
		return fmt.Errorf("command %q exited with %d: %s", command[0], code, firstLine(out.bytes()))
	}
	return nil
}

// runBeside runs a command with what the container's process has and returns its exit code. The end of ctx kills it.
func (p *Pod) runBeside(ctx context.Context, container process.Spec, mounts environ.Mounts, command []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	words := make([]string, len(command))
	for i, word := range command {
		words[i] = mounts.Rewrite(word)
	}
	spec := process.Spec{Path: words[0], Args: words[1:], Env: container.Env, Dir: container.Dir, Stdout: stdout, Stderr: stderr}
	if stdin != nil {
		feed, err := newFeed(stdin)
		if err != nil {
			return 0, err
		}
		defer feed.close()
		spec.Stdin = feed.reader
	}
	group, err := p.config.Keeper.Start(spec)
	if err != nil {
		return 0, err
	}
	select {
	case <-group.Done():
	case <-ctx.Done():
		_ = group.Kill()
		<-group.Done()
		return 0, fmt.Errorf("command %q was ended: %w", command[0], ctx.Err())
	}
	return group.Exit().Code, nil
}

func firstLine(b []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	return string(line)
}

// head keeps the start of what is written to it, and takes the rest without keeping it.
type head struct {
	mu sync.Mutex // guards b
	b  []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b = append(h.b, p[:min(len(p), outputLimit-len(h.b))]...)
	return len(p), nil
}

func (h *head) bytes() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return bytes.Clone(h.b)
}
