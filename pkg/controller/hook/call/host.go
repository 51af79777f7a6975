package call

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// host is a host and a port in the one way in which they are compared.
type host struct {
	name string
	// port is 0 where none is written.
	port uint16
	// scheme is empty for the host of an endpointConfigs entry, which is for any.
	scheme string
}

// defaultPorts are the ports that equal no port.
var defaultPorts = map[string]uint16{"http": 80, "https": 443}

// hostOf is the host of an address.
func hostOf(address *url.URL) host {
	// A port that is no number was refused by the parser of the address.
	port, _ := strconv.ParseUint(address.Port(), 10, 16)
	return host{name: hostName(address.Hostname()), port: uint16(port), scheme: strings.ToLower(address.Scheme)}
}

// parseHost reads host or host:port; an IPv6 address may go without brackets if
// it has no port.
func parseHost(text string) (host, error) {
	if text == "" {
		return host{}, errors.New("it is empty")
	}
	if address, err := netip.ParseAddr(text); err == nil {
		return host{name: address.String()}, nil
	}
	parsed, err := url.Parse("//" + text)
	if err != nil || parsed.Host != text || parsed.Hostname() == "" || strings.ContainsAny(text, " \t") {
		return host{}, errors.New("it must be host or host:port, without a scheme and a path")
	}
	found := host{name: hostName(parsed.Hostname())}
	if written := parsed.Port(); written != "" {
		port, err := strconv.ParseUint(written, 10, 16)
		if err != nil || port == 0 {
			return host{}, errors.New("its port must be a number from 1 to 65535")
		}
		found.port = uint16(port)
	}
	return found, nil
}

func hostName(text string) string {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.String()
	}
	return strings.ToLower(text)
}

// covers says whether h, of an endpointConfigs entry, means the host of an
// address.
func (h host) covers(of host) bool {
	usual := defaultPorts[of.scheme]
	return h.name == of.name && portOr(h.port, usual) == portOr(of.port, usual)
}

func portOr(port, usual uint16) uint16 {
	if port == 0 {
		return usual
	}
	return port
}

// trusts says whether what is meant for the host h may be told to another: to the
// same port of the same host, or to the same host by HTTPS instead of HTTP where
// both have their usual ports.
func (h host) trusts(other host) bool {
	if h.name != other.name {
		return false
	}
	from, to := portOr(h.port, defaultPorts[h.scheme]), portOr(other.port, defaultPorts[other.scheme])
	if h.scheme == other.scheme {
		return from == to
	}
	return other.scheme == "https" && (from == to || from == defaultPorts["http"] && to == defaultPorts["https"])
}
