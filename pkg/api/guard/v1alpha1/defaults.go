package v1alpha1

// DefaultMatch is the match that the CRD fills in: it fits Metacontroller. It
// stands in for a policy that does not exist.
func DefaultMatch() Match {
	return Match{
		Images: []string{
			"**/metacontroller/metacontroller",
			"**/metacontrollerio/metacontroller",
			"**/metacontroller-solo/controller",
		},
		Commands: []string{"metacontroller"},
	}
}
