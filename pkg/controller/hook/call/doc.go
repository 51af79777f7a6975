// Package call makes one HTTP POST to a hook and returns the body of a good
// answer. What the bodies mean is not known here.
//
//	v1alpha1.Webhook ── Resolve ──> Endpoint ── Pool.Caller ──> Caller ── Call(body) ──> answer, or a typed error
//	  its caBundle, clientTLS, authorization, basicAuth, or an endpointConfigs entry's ──┘ │        │
//	Sources: Secrets and ConfigMaps as they are now ── credentials ── line <── connect ────┘        │
//	answers with an ETag that were accepted <── If-None-Match, 304 or 412 ──────────────────────────┘
//
// A Pool has one transport for each host and set of credentials, so that the
// hooks of one host share kept-alive connections, a slow host cannot use up those
// of another, and no connection outlives the credentials that it was made with.
// It has one set of metrics for each hook.
//
// Whether a spec is right is decided when a Caller is made; whether a Secret or a
// ConfigMap is, by each call. No credential gets into an error, a log or a label.
package call
