// Package call makes one HTTP POST to a hook and returns the body of a good
// answer. What the bodies mean is not known here.
//
//	v1alpha1.Webhook ── Resolve ──> Endpoint ── Pool.Caller ──> Caller ── Call(body) ──> answer, or a typed error
//
// A Pool has one transport for each host, so that the hooks of one host share
// kept-alive connections and a slow host cannot use up those of another, and one
// set of metrics for each hook.
package call
