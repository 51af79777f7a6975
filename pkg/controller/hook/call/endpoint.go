package call

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

// What an absent field of a Webhook means.
const (
	DefaultTimeout  = 10 * time.Second
	DefaultPort     = 80
	DefaultProtocol = "http"
)

// Endpoint is where a hook is and how long one call may take.
type Endpoint struct {
	// URL is the whole address, credentials in it included.
	URL string
	// Timeout is for the whole call, the reading of the answer included.
	Timeout time.Duration
}

// Resolve reads the endpoint of a webhook. It fails if the webhook does not say
// where it is.
func Resolve(webhook *v1alpha1.Webhook) (Endpoint, error) {
	if webhook == nil {
		return Endpoint{}, errors.New("has no webhook: set webhook.url, or webhook.service and webhook.path")
	}
	endpoint := Endpoint{Timeout: DefaultTimeout}
	if webhook.Timeout != nil && webhook.Timeout.Duration > 0 {
		endpoint.Timeout = webhook.Timeout.Duration
	}
	switch {
	case webhook.URL != nil && *webhook.URL != "":
		endpoint.URL = *webhook.URL
	case webhook.Service != nil:
		if webhook.Service.Name == "" || webhook.Service.Namespace == "" {
			return Endpoint{}, errors.New("webhook.service needs both a name and a namespace")
		}
		if webhook.Path == nil {
			return Endpoint{}, errors.New("webhook.service needs webhook.path beside it")
		}
		endpoint.URL = serviceURL(webhook.Service, *webhook.Path)
	default:
		return Endpoint{}, errors.New("says neither webhook.url nor webhook.service, so there is nothing to call")
	}
	parsed, err := url.Parse(endpoint.URL)
	if err != nil {
		// The text of err repeats the address, which may have a password in it.
		return Endpoint{}, errors.New("webhook.url is not a valid address")
	}
	if parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
		return Endpoint{}, fmt.Errorf("address %q must begin with http:// or https:// and a host", Redact(endpoint.URL))
	}
	return endpoint, nil
}

// serviceURL is protocol://name.namespace:port/path, without ".svc": the search
// domains of a Pod complete it.
func serviceURL(service *v1alpha1.ServiceReference, path string) string {
	protocol, port := DefaultProtocol, DefaultPort
	if service.Protocol != nil && *service.Protocol != "" {
		protocol = *service.Protocol
	}
	if service.Port != nil && *service.Port != 0 {
		port = int(*service.Port)
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return protocol + "://" + net.JoinHostPort(service.Name+"."+service.Namespace, strconv.Itoa(port)) + path
}

// Redact returns an address without user, password and query, which may hold a
// secret: fit for a log, an event or a metric.
func Redact(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return "(invalid address)"
	}
	parsed.User, parsed.RawQuery, parsed.Fragment = nil, "", ""
	return parsed.String()
}
