package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/node"
	"github.com/metacontroller-solo/solo/test/node/service"
)

// mostNodes is how many nodes a cluster can have; each has a range of addresses.
const mostNodes = 8

// startNode joins a node to the cluster. Its own address and its Pods' are
// loopback addresses that go by the cluster's place and by its own among the nodes.
func (c *Cluster) startNode(ctx context.Context, place int, images node.Images) error {
	name := nodes[place]
	config, err := c.plane.NodeConfig(name)
	if err != nil {
		return err
	}
	address := netip.AddrFrom4([4]byte{127, 90, c.options.Place.number, byte(place + 1)})
	pair, err := c.plane.CA().IssueServer(name, address.String())
	if err != nil {
		return err
	}
	serving, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return fmt.Errorf("cannot read the certificate of node %q: %w", name, err)
	}
	started, err := node.Start(ctx, node.Options{
		Name:        name,
		Config:      config,
		Address:     address,
		ServingCert: serving,
		ClientCAs:   c.plane.CA().Pool(),
		PodRange:    netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 91, c.options.Place.number*mostNodes + byte(place), 0}), 24),
		Dir:         c.dir("nodes", name),
		Images:      images,
	})
	if err != nil {
		return err
	}
	c.stops = append(c.stops, started.Stop)
	return nil
}

// startServices makes the cluster IPs of Services reachable.
func (c *Cluster) startServices(ctx context.Context) error {
	proxy, err := service.Start(ctx, service.Options{
		Config: c.plane.AdminConfig(0),
		Range:  netip.MustParsePrefix(kit.ServiceCIDR),
	})
	if err != nil {
		return err
	}
	c.stops = append(c.stops, proxy.Stop)
	return nil
}
