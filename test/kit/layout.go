package kit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// Ports are chosen below the range that systems give to outgoing connections
// (from 32768 on Linux, 49152 on macOS) and below Kubernetes' node ports, so that
// one that was free stays free until its program listens on it.
const (
	lowestPort  = 18000
	highestPort = 29999
	portTries   = 200
)

// layout is the folder of one control plane.
//
//	lock  ports.json  pki/  etcd/  logs/  audit/  kubeconfig/
type layout struct{ dir string }

func (l layout) lock() string                  { return filepath.Join(l.dir, "lock") }
func (l layout) ports() string                 { return filepath.Join(l.dir, "ports.json") }
func (l layout) pki() string                   { return filepath.Join(l.dir, "pki") }
func (l layout) etcd() string                  { return filepath.Join(l.dir, "etcd") }
func (l layout) log(name string) string        { return filepath.Join(l.dir, "logs", name+".log") }
func (l layout) audit(name string) string      { return filepath.Join(l.dir, "audit", name+".log") }
func (l layout) kubeconfig(name string) string { return filepath.Join(l.dir, "kubeconfig", name) }
func (l layout) cert(name string) string       { return filepath.Join(l.pki(), name+".crt") }
func (l layout) key(name string) string        { return filepath.Join(l.pki(), name+".key") }

func (l layout) create() error {
	for _, dir := range []string{l.pki(), filepath.Dir(l.log("any")), filepath.Dir(l.audit("any")), filepath.Dir(l.kubeconfig("any"))} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("cannot create the control plane's folder: %w", err)
		}
	}
	return nil
}

// readPorts returns the ports of an earlier run, by listener.
func (l layout) readPorts() (map[string]int, error) {
	ports := map[string]int{}
	content, err := os.ReadFile(l.ports())
	if errors.Is(err, os.ErrNotExist) {
		return ports, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read ports: %w", err)
	}
	if err := json.Unmarshal(content, &ports); err != nil {
		return nil, fmt.Errorf("cannot read ports: %s: %w", l.ports(), err)
	}
	return ports, nil
}

func (l layout) writePorts(ports map[string]int) error {
	content, err := json.MarshalIndent(ports, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write ports: %w", err)
	}
	return writeFile(l.ports(), append(content, '\n'))
}

// FreePort returns a loopback TCP port that nothing listens on now, and that the
// system does not give to outgoing connections.
func FreePort() (int, error) {
	for range portTries {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		if portFree(port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("cannot find a free port between %d and %d", lowestPort, highestPort)
}

func portFree(port int) error {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return err
	}
	return l.Close()
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

func httpsURL(port int) string { return "https://" + address(port) }
