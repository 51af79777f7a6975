package call

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

// What an absent field of a ConnectionConfig means.
const (
	DefaultCAKey             = "ca.crt"
	DefaultCertKey           = "tls.crt"
	DefaultPrivateKeyKey     = "tls.key"
	DefaultUsernameKey       = "username"
	DefaultPasswordKey       = "password"
	DefaultAuthorizationType = "Bearer"
)

// schemeBasic is the scheme of basicAuth.
const schemeBasic = "Basic"

// Where a ConnectionConfig may stand in a controller's spec.
const (
	pathWebhook   = "webhook"
	pathEndpoints = "spec.endpointConfigs"
)

// connection is how to authenticate at a hook and whom to trust: a
// ConnectionConfig that was checked, with its defaults filled in.
type connection struct {
	// path is where it stands in the spec, for errors.
	path string
	v1alpha1.ConnectionConfig
}

// connectionOf finds the ConnectionConfig of a hook at an address: the webhook's
// own, or the one of the first endpoint of that host. A webhook that has any
// connection field of its own takes nothing from the endpoints. What is wrong in
// any endpoint is an error, for it may be meant for this hook.
func connectionOf(webhook *v1alpha1.Webhook, address *url.URL, endpoints []v1alpha1.EndpointConfig) (connection, error) {
	own, err := checkConnection(pathWebhook, webhook.ConnectionConfig)
	if err != nil {
		return connection{}, err
	}
	target, chosen := hostOf(address), connection{}
	for i, endpoint := range endpoints {
		path := fmt.Sprintf("%s[%d]", pathEndpoints, i)
		host, err := parseHost(endpoint.Host)
		if err != nil {
			return connection{}, fmt.Errorf("cannot use %s.host %q: %w", path, endpoint.Host, err)
		}
		checked, err := checkConnection(path, endpoint.ConnectionConfig)
		if err != nil {
			return connection{}, err
		}
		if chosen.path == "" && host.covers(target) {
			chosen = checked
		}
	}
	if !own.empty() || chosen.path == "" {
		return own, nil
	}
	return chosen, nil
}

func (c *connection) empty() bool {
	return c.CABundle == nil && c.ClientTLS == nil && c.Authorization == nil && c.BasicAuth == nil
}

// checkConnection fills in the defaults, and refuses what no Secret and no
// ConfigMap could mend.
func checkConnection(path string, declared v1alpha1.ConnectionConfig) (connection, error) {
	c := connection{path: path, ConnectionConfig: *declared.DeepCopy()}
	if c.Authorization != nil && c.BasicAuth != nil {
		return c, fmt.Errorf("cannot use both %s.authorization and %s.basicAuth: they exclude each other, remove one", path, path)
	}
	for _, check := range []struct {
		field string
		check func() error
	}{
		{"caBundle", c.checkCABundle},
		{"clientTLS", c.checkClientTLS},
		{"authorization", c.checkAuthorization},
		{"basicAuth", c.checkBasicAuth},
	} {
		if err := check.check(); err != nil {
			return c, fmt.Errorf("cannot use %s.%s: %w", path, check.field, err)
		}
	}
	return c, nil
}

func (c *connection) checkCABundle() error {
	bundle := c.CABundle
	if bundle == nil {
		return nil
	}
	given := 0
	for _, is := range []bool{bundle.Inline != nil, bundle.SecretRef != nil, bundle.ConfigMapRef != nil} {
		if is {
			given++
		}
	}
	if given != 1 {
		return fmt.Errorf("it must have exactly one of inline, secretRef and configMapRef, and has %d of them", given)
	}
	if bundle.Inline != nil {
		if !x509.NewCertPool().AppendCertsFromPEM([]byte(*bundle.Inline)) {
			return fmt.Errorf("inline has no PEM certificate in it")
		}
		return nil
	}
	ref, field := bundle.SecretRef, "secretRef"
	if ref == nil {
		ref, field = bundle.ConfigMapRef, "configMapRef"
	}
	setDefault(&ref.Key, DefaultCAKey)
	return checkReference(field, ref.Namespace, ref.Name, ref.Key)
}

func (c *connection) checkClientTLS() error {
	if c.ClientTLS == nil {
		return nil
	}
	setDefault(&c.ClientTLS.CertKey, DefaultCertKey)
	setDefault(&c.ClientTLS.PrivateKeyKey, DefaultPrivateKeyKey)
	ref := c.ClientTLS.SecretRef
	return checkReference("secretRef", ref.Namespace, ref.Name, c.ClientTLS.CertKey, c.ClientTLS.PrivateKeyKey)
}

func (c *connection) checkAuthorization() error {
	if c.Authorization == nil {
		return nil
	}
	c.Authorization.Type = strings.TrimSpace(c.Authorization.Type)
	setDefault(&c.Authorization.Type, DefaultAuthorizationType)
	switch scheme := c.Authorization.Type; {
	case strings.EqualFold(scheme, schemeBasic):
		return fmt.Errorf("type %q is not for this field; set basicAuth instead, which takes a user name and a password", scheme)
	case !isToken(scheme):
		return fmt.Errorf("type %q is no authentication scheme: it must be one word, such as %s", scheme, DefaultAuthorizationType)
	}
	ref := c.Authorization.SecretRef
	return checkReference("secretRef", ref.Namespace, ref.Name, ref.Key)
}

func (c *connection) checkBasicAuth() error {
	if c.BasicAuth == nil {
		return nil
	}
	setDefault(&c.BasicAuth.UsernameKey, DefaultUsernameKey)
	setDefault(&c.BasicAuth.PasswordKey, DefaultPasswordKey)
	ref := c.BasicAuth.SecretRef
	return checkReference("secretRef", ref.Namespace, ref.Name, c.BasicAuth.UsernameKey, c.BasicAuth.PasswordKey)
}

func setDefault(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

// checkReference refuses names that no object can have. It also keeps what is
// written in a spec from becoming another path of the API server.
func checkReference(field, namespace, name string, keys ...string) error {
	if name == "" || namespace == "" {
		return fmt.Errorf("%s needs both a name and a namespace", field)
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("%s.name %q cannot be the name of an object: %s", field, name, problems[0])
	}
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return fmt.Errorf("%s.namespace %q cannot be the name of a namespace: %s", field, namespace, problems[0])
	}
	for _, key := range keys {
		if key == "" {
			return fmt.Errorf("%s.key is empty", field)
		}
		if problems := validation.IsConfigMapKey(key); len(problems) > 0 {
			return fmt.Errorf("%q cannot be a key of %s: %s", key, field, problems[0])
		}
	}
	return nil
}

// isToken is about the token of RFC 9110, section 5.6.2, which the name of an
// authentication scheme is.
func isToken(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// references are the objects that the connection is made from, each once.
func (c *connection) references() []Reference {
	var found []Reference
	add := func(kind, namespace, name string) {
		ref := Reference{Kind: kind, Namespace: namespace, Name: name}
		if !slices.Contains(found, ref) {
			found = append(found, ref)
		}
	}
	if c.CABundle != nil && c.CABundle.SecretRef != nil {
		add(KindSecret, c.CABundle.SecretRef.Namespace, c.CABundle.SecretRef.Name)
	}
	if c.CABundle != nil && c.CABundle.ConfigMapRef != nil {
		add(KindConfigMap, c.CABundle.ConfigMapRef.Namespace, c.CABundle.ConfigMapRef.Name)
	}
	if c.ClientTLS != nil {
		add(KindSecret, c.ClientTLS.SecretRef.Namespace, c.ClientTLS.SecretRef.Name)
	}
	if c.Authorization != nil {
		add(KindSecret, c.Authorization.SecretRef.Namespace, c.Authorization.SecretRef.Name)
	}
	if c.BasicAuth != nil {
		add(KindSecret, c.BasicAuth.SecretRef.Namespace, c.BasicAuth.SecretRef.Name)
	}
	return found
}

// fieldOf is the field that refers to an object.
func (c *connection) fieldOf(reference Reference) string {
	for _, field := range []struct {
		name string
		only v1alpha1.ConnectionConfig
	}{
		{"caBundle", v1alpha1.ConnectionConfig{CABundle: c.CABundle}},
		{"clientTLS", v1alpha1.ConnectionConfig{ClientTLS: c.ClientTLS}},
		{"authorization", v1alpha1.ConnectionConfig{Authorization: c.Authorization}},
		{"basicAuth", v1alpha1.ConnectionConfig{BasicAuth: c.BasicAuth}},
	} {
		one := connection{ConnectionConfig: field.only}
		if slices.Contains(one.references(), reference) {
			return c.path + "." + field.name
		}
	}
	return c.path
}
