package sandbox

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
)

// mostAddresses bounds the range that a node looks through at its start.
const mostAddresses = 1024

// Addresses gives each Pod a loopback address of its own.
type Addresses struct {
	all []netip.Addr

	mu   sync.Mutex // guards next and used
	next int
	used map[netip.Addr]bool
}

// NewAddresses takes the usable addresses of a range; the first one and, for IPv4, the last are left out, as in a subnet. Each is tried:
// the error says how to make the range usable on systems where loopback is one address only.
func NewAddresses(prefix netip.Prefix) (*Addresses, error) {
	if !prefix.Addr().IsLoopback() {
		return nil, fmt.Errorf("cannot give Pods addresses from %s: it is not a loopback range", prefix)
	}
	a := &Addresses{used: map[netip.Addr]bool{}}
	for addr := prefix.Masked().Addr().Next(); prefix.Contains(addr) && len(a.all) < mostAddresses; addr = addr.Next() {
		a.all = append(a.all, addr)
	}
	if len(a.all) > 1 && !prefix.Contains(a.all[len(a.all)-1].Next()) {
		a.all = a.all[:len(a.all)-1]
	}
	if len(a.all) == 0 {
		return nil, fmt.Errorf("cannot give Pods addresses from %s: it is too small", prefix)
	}
	for _, addr := range a.all {
		if err := Usable(addr); err != nil {
			return nil, fmt.Errorf("cannot give Pods addresses from %s: %w", prefix, err)
		}
	}
	return a, nil
}

// Usable tries whether programs can listen on a loopback address. The error gives the command that makes it usable.
func Usable(addr netip.Addr) error {
	listener, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return fmt.Errorf("address %s is not usable (%w); %s", addr, err, mend(addr))
	}
	return listener.Close()
}

func mend(addr netip.Addr) string {
	if runtime.GOOS == "linux" {
		return fmt.Sprintf("run: sudo ip address add %s/8 dev lo", addr)
	}
	return fmt.Sprintf("for it and each following address run: sudo ifconfig lo0 alias %s up", addr)
}

// take returns a free address. The longest unused one comes first, so that a Pod that is gone is not mistaken for a new one.
func (a *Addresses) take() (netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range a.all {
		addr := a.all[a.next]
		a.next = (a.next + 1) % len(a.all)
		if !a.used[addr] {
			a.used[addr] = true
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("cannot find a free address for the Pod: all %d are in use", len(a.all))
}

func (a *Addresses) give(addr netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.used, addr)
}

// Len is the number of Pods that can have an address.
func (a *Addresses) Len() int { return len(a.all) }
