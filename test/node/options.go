package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/test/node/link"
	"github.com/metacontroller-solo/solo/test/node/sandbox"
)

// The parts of other packages that a caller of Start needs.
type (
	// Images are the programs by image repository.
	Images = sandbox.Images
	// Program is what an image stands for on the host.
	Program = sandbox.Program
	// BackOff are the pauses before a container that keeps ending is started again.
	BackOff = sandbox.BackOff
	// CutOffMode says how the node's link treats connections while it is cut.
	CutOffMode = link.Mode
)

// The modes of CutOff.
const (
	// Refuse resets connections at once.
	Refuse = link.Refuse
	// BlackHole accepts connections and never answers.
	BlackHole = link.BlackHole
)

// Values of options that are not set.
const (
	DefaultHeartbeat  = 5 * time.Second
	DefaultRefresh    = 2 * time.Second
	DefaultStopLimit  = 10 * time.Second
	DefaultStartLimit = 30 * time.Second
	DefaultLogLimit   = 10 << 20
	DefaultFirst      = time.Second
	DefaultMost       = 30 * time.Second
)

// Options say what a node is. Name, Config, ServingCert, ClientCAs, Address, PodRange and Dir must be set.
type Options struct {
	// Name is the Node's.
	Name string
	// Config reaches the API server with the node's own client certificate (system:node:<Name>, group system:nodes). The node needs no more
	// than what the Node authorizer and the admission plugin NodeRestriction allow.
	Config *rest.Config
	// Address is the loopback address of the node itself: its InternalIP, where the kubelet API listens. ServingCert must be good for it.
	Address netip.Addr
	// KubeletPort is the port of the kubelet API; 0 takes a free one.
	KubeletPort int
	// ServingCert is the kubelet API's certificate, issued by an authority that the API server trusts for kubelets.
	ServingCert tls.Certificate
	// ClientCAs vouch for the clients of the kubelet API. What a client may do is asked from the API server.
	ClientCAs *x509.CertPool
	// PodRange is where Pods get their loopback addresses; it must not overlap with another node's.
	PodRange netip.Prefix
	// Dir holds the Pods' files. Two nodes must not share it.
	Dir string
	// Images are the programs that containers can run.
	Images Images
	// Environ are variables for every container, below those of its own.
	Environ map[string]string
	// Capacity is what the node tells the scheduler; by default the host's processors and memory, and as many Pods as there are addresses.
	Capacity corev1.ResourceList
	// Labels are added to the Node's.
	Labels map[string]string

	// Heartbeat is the pause between two renewals of the Node's Lease and status.
	Heartbeat time.Duration
	// Refresh is the pause between two looks at the Secrets and ConfigMaps in volumes, and between tries to start what cannot start yet.
	Refresh time.Duration
	// BackOff are the pauses before a container that keeps ending is started again.
	BackOff BackOff
	// LogLimit is how much of a container's output is kept, in bytes.
	LogLimit int64
	// StartLimit bounds Start, StopLimit the graceful part of Stop.
	StartLimit, StopLimit time.Duration
	// Log takes the node's messages; the zero value drops them.
	Log logr.Logger
}

func (o *Options) complete() error {
	switch {
	case o.Name == "":
		return errors.New("cannot start node: it has no name")
	case o.Config == nil:
		return fmt.Errorf("cannot start node %q: it has no client configuration", o.Name)
	case !o.Address.IsLoopback():
		return fmt.Errorf("cannot start node %q: its address %s is not a loopback address", o.Name, o.Address)
	case len(o.ServingCert.Certificate) == 0 || o.ClientCAs == nil:
		return fmt.Errorf("cannot start node %q: the kubelet API has no certificate or no authority for its clients", o.Name)
	case o.Dir == "":
		return fmt.Errorf("cannot start node %q: it has no folder", o.Name)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("cannot start node %q: %w", o.Name, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot start node %q: %w", o.Name, err)
	}
	o.Dir = dir
	for field, value := range map[*time.Duration]time.Duration{
		&o.Heartbeat: DefaultHeartbeat, &o.Refresh: DefaultRefresh, &o.StartLimit: DefaultStartLimit, &o.StopLimit: DefaultStopLimit,
		&o.BackOff.First: DefaultFirst, &o.BackOff.Most: DefaultMost,
	} {
		if *field == 0 {
			*field = value
		}
	}
	if o.LogLimit == 0 {
		o.LogLimit = DefaultLogLimit
	}
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	return nil
}
