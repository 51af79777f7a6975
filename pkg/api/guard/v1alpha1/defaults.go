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

// SetDefaults fills in what the CRD's defaults fill in, for a policy that was not
// read from an API server.
func (p *SingletonPolicy) SetDefaults() {
	match := DefaultMatch()
	// A list that is written out and empty stays so.
	if p.Spec.Match.Images == nil {
		p.Spec.Match.Images = match.Images
	}
	if p.Spec.Match.Commands == nil {
		p.Spec.Match.Commands = match.Commands
	}
	if p.Spec.Mode == "" {
		p.Spec.Mode = ModeStrict
	}
	if len(p.Spec.ValidationActions) == 0 {
		p.Spec.ValidationActions = []ValidationAction{ActionDeny}
	}
	if fence := p.Spec.Fence; fence != nil && fence.Action == "" {
		fence.Action = FenceAudit
	}
}
