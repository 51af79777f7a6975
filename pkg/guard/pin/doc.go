// Package pin renders the admission objects of the guard: what the API server
// itself refuses, with the guard up or down, and what it asks the guard about.
//
//	            ┌─ metacontroller-guard-pin            Pods: only the pinned one runs an instance
//	Match ──────┼─ metacontroller-guard-pin-workloads  templates and scale: only the holder, replicas 1
//	(params)    ├─ metacontroller-guard-pin-scale      scale of what made a Pod that should not be there
//	            ├─ metacontroller-guard-fence*         writes of the service account: only from the active Pod
//	            │
//	            └─ ValidatingWebhookConfiguration      asks the guard, for requests that look like instances
//	(written in)
//	 no params ─── metacontroller-guard-protect        keeps what the first two depend on
//
// The API server asks them in this order: policies first, webhooks then, and
// the first refusal ends it. So the guard's own answer, and its line in the
// audit log, exist only for what the policies let through. The policy for
// workloads therefore stands back while the condition Enforcing says that the
// guard is asked about all of them; then the guard explains, claims and records,
// and if it is down its webhook fails closed. Pods are always judged by the pin
// policy, whose refusals are in the API server's audit log, with the rule's id as
// annotation.
//
// The policies read the SingletonPolicy as their param. Three facts of the API
// server (k8s.io/apiserver v0.37, admission/plugin/policy) shape what is here:
//
//   - Params are collected before match conditions are evaluated, for every
//     request that the resource rules match. An error there is an error for
//     every Pod of the cluster under failurePolicy Fail. A param that is not
//     found is no error (parameterNotFoundAction Allow); a param kind that is
//     not served when a policy is loaded is one. Hence the protect policy.
//   - Match conditions cannot use variables, so recognition, which is long, is
//     in variables, and validations say at once "no instance, no matter".
//   - There is a cost limit for one expression (1,000,000) and for all of one
//     policy (10,000,000). An object so large that its recognition exceeds them
//     is refused by failurePolicy Fail; only that object is.
//
//go:generate go test . -count=1 -run ^TestManifestsAreRendered$ -update
package pin
