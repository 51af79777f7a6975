package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Hook is one callback.
type Hook struct {
	// Version is the shape of request and response: v1 (default) or v2. Each
	// hook has its own.
	// +optional
	// +kubebuilder:validation:Enum=v1;v2
	// +kubebuilder:default=v1
	Version *HookVersion `json:"version,omitempty"`
	// Webhook is the HTTP endpoint.
	// +optional
	Webhook *Webhook `json:"webhook,omitempty"`
}

// HookVersion is the shape of a hook's request and response.
type HookVersion string

const (
	// HookVersionV1 keys objects by name, and shows a namespaced parent only
	// what is in its own namespace.
	HookVersionV1 HookVersion = "v1"
	// HookVersionV2 keys objects by namespace/name and drops nothing.
	HookVersionV2 HookVersion = "v2"
)

// ResponseUnmarshallMode says what happens with an unknown or duplicate field in
// an answer.
type ResponseUnmarshallMode string

const (
	// ResponseUnmarshallModeLoose logs it. It is the default of v1 hooks.
	ResponseUnmarshallModeLoose ResponseUnmarshallMode = "loose"
	// ResponseUnmarshallModeStrict refuses it. It is the default of v2 hooks.
	ResponseUnmarshallModeStrict ResponseUnmarshallMode = "strict"
)

// Webhook is the HTTP endpoint of a hook. Either URL, or Service with Path, says
// where it is; URL wins.
type Webhook struct {
	// URL is the whole address.
	// +optional
	URL *string `json:"url,omitempty"`
	// Timeout of one call, as a duration such as "10s". Absent, zero or negative
	// means ten seconds.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// Path is the path of the address when Service is used.
	// +optional
	Path *string `json:"path,omitempty"`
	// Service is where the hook runs in the cluster.
	// +optional
	Service *ServiceReference `json:"service,omitempty"`

	// Etag makes answers be reused when the hook says that they still hold.
	// +optional
	Etag *WebhookEtagConfig `json:"etag,omitempty"`
	// ResponseUnMarshallMode is loose or strict; the default is loose for v1 and
	// strict for v2.
	// +optional
	// +kubebuilder:validation:Enum=loose;strict
	ResponseUnmarshallMode *ResponseUnmarshallMode `json:"responseUnMarshallMode,omitempty"`

	ConnectionConfig `json:",inline"`
}

// ConnectionConfig is how to authenticate, and whom to trust, on a connection.
type ConnectionConfig struct {
	// CABundle replaces the system's roots.
	// +optional
	CABundle *CABundle `json:"caBundle,omitempty"`
	// ClientTLS is the client certificate that is shown.
	// +optional
	ClientTLS *ClientTLS `json:"clientTLS,omitempty"`
	// Authorization is sent as the Authorization header. It excludes BasicAuth.
	// +optional
	Authorization *Authorization `json:"authorization,omitempty"`
	// BasicAuth sends a user name and a password. It excludes Authorization.
	// +optional
	BasicAuth *BasicAuth `json:"basicAuth,omitempty"`
}

// EndpointConfig is the ConnectionConfig for every hook of a host that has no
// connection field of its own.
type EndpointConfig struct {
	// Host is host or host:port, compared without regard to case. The default
	// ports 80 and 443 equal no port.
	Host string `json:"host"`

	ConnectionConfig `json:",inline"`
}

// CABundle is where the trusted certificates are: exactly one of its fields.
type CABundle struct {
	// Inline holds PEM.
	// +optional
	Inline *string `json:"inline,omitempty"`
	// SecretRef names a Secret; its key defaults to ca.crt.
	// +optional
	SecretRef *CABundleKeyReference `json:"secretRef,omitempty"`
	// ConfigMapRef names a ConfigMap; its key defaults to ca.crt.
	// +optional
	ConfigMapRef *CABundleKeyReference `json:"configMapRef,omitempty"`
}

// CABundleKeyReference names one key of a Secret or a ConfigMap.
type CABundleKeyReference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	// +optional
	// +kubebuilder:default=ca.crt
	Key string `json:"key,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// SecretKeyReference names one key of a Secret.
type SecretKeyReference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Key       string `json:"key"`
}

// ClientTLS is where the client certificate is.
type ClientTLS struct {
	SecretRef SecretReference `json:"secretRef"`
	// +optional
	// +kubebuilder:default=tls.crt
	CertKey string `json:"certKey,omitempty"`
	// +optional
	// +kubebuilder:default=tls.key
	PrivateKeyKey string `json:"privateKeyKey,omitempty"`
}

// Authorization is an Authorization header whose credentials are in a Secret.
type Authorization struct {
	// Type is the scheme; Basic is refused, for BasicAuth is there for it.
	// +optional
	// +kubebuilder:default=Bearer
	Type      string             `json:"type,omitempty"`
	SecretRef SecretKeyReference `json:"secretRef"`
}

// BasicAuth is a user name and a password in a Secret.
type BasicAuth struct {
	SecretRef SecretReference `json:"secretRef"`
	// +optional
	// +kubebuilder:default=username
	UsernameKey string `json:"usernameKey,omitempty"`
	// +optional
	// +kubebuilder:default=password
	PasswordKey string `json:"passwordKey,omitempty"`
}

// WebhookEtagConfig says whether and how long answers are kept for reuse.
type WebhookEtagConfig struct {
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// CacheTimeoutSeconds is how long an answer may be reused.
	// +optional
	CacheTimeoutSeconds *int32 `json:"cacheTimeoutSeconds,omitempty"`
	// CacheCleanupSeconds is how often answers past their time are dropped.
	// +optional
	CacheCleanupSeconds *int32 `json:"cacheCleanupSeconds,omitempty"`
}

// ServiceReference is a Service of the cluster. The address becomes
// protocol://name.namespace:port.
type ServiceReference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	// Port defaults to 80.
	// +optional
	Port *int32 `json:"port,omitempty"`
	// Protocol defaults to http.
	// +optional
	Protocol *string `json:"protocol,omitempty"`
}

// RelatedResourceRule is one rule in the answer of a customize hook: which
// objects the other hooks are shown as related. It is no object of the API
// server.
type RelatedResourceRule struct {
	ResourceRule `json:",inline"`
	// LabelSelector selects objects by their labels. It excludes Names.
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// NamespaceSelector selects namespaces by their labels. It excludes Names
	// and Namespace.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// Namespace is the one namespace to look in.
	Namespace string `json:"namespace,omitempty"`
	// Names are the objects wanted.
	Names []string `json:"names,omitempty"`
}
