package call_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/call"
)

// cluster is Secrets and ConfigMaps that a test writes and Callers follow.
type cluster struct {
	mu       sync.Mutex // guards all below
	contents map[call.Reference]*call.Content
	failure  error
	// open is how many follow an object, and opened how many ever did.
	open, opened int
}

func (c *cluster) put(kind, name string, data map[string]string) {
	content := &call.Content{Data: map[string][]byte{}}
	for key, value := range data {
		content.Data[key] = []byte(value)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.contents == nil {
		c.contents = map[call.Reference]*call.Content{}
	}
	c.contents[call.Reference{Kind: kind, Namespace: "ns", Name: name}] = content
}

func (c *cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = err
}

func (c *cluster) counts() (open, opened int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.opened
}

func (c *cluster) Open(reference call.Reference) call.Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	c.opened++
	return &follower{cluster: c, reference: reference}
}

type follower struct {
	cluster   *cluster
	reference call.Reference
}

func (f *follower) Read(context.Context) (*call.Content, error) {
	f.cluster.mu.Lock()
	defer f.cluster.mu.Unlock()
	if f.cluster.failure != nil {
		return nil, f.cluster.failure
	}
	content := f.cluster.contents[f.reference]
	if content == nil {
		return nil, call.ErrAbsent
	}
	return content, nil
}

func (f *follower) Close() {
	f.cluster.mu.Lock()
	defer f.cluster.mu.Unlock()
	f.cluster.open--
}

var syncHook = call.Identity{Hook: "sync", ControllerKind: "CompositeController", ControllerName: "things"}

func newPool(sources call.Sources) *call.Pool {
	return call.NewPool(prometheus.NewRegistry(), sources, clock.RealClock{})
}

// connected is a Caller of an address with a connection.
func connected(t *testing.T, pool *call.Pool, address string, connection v1alpha1.ConnectionConfig) *call.Caller {
	t.Helper()
	caller, err := pool.Caller(syncHook, &v1alpha1.Webhook{URL: &address, ConnectionConfig: connection}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(caller.Close)
	return caller
}

func bearer() v1alpha1.ConnectionConfig {
	return v1alpha1.ConnectionConfig{Authorization: &v1alpha1.Authorization{
		SecretRef: v1alpha1.SecretKeyReference{Name: "auth", Namespace: "ns", Key: "token"},
	}}
}

func basic() v1alpha1.ConnectionConfig {
	return v1alpha1.ConnectionConfig{BasicAuth: &v1alpha1.BasicAuth{SecretRef: v1alpha1.SecretReference{Name: "auth", Namespace: "ns"}}}
}

func credentialError(t *testing.T, err error) *call.CredentialError {
	t.Helper()
	var found *call.CredentialError
	if !errors.As(err, &found) {
		t.Fatalf("error is %T %v", err, err)
	}
	return found
}
