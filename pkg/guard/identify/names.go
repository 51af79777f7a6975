package identify

// Names are the base names of the programs that make a container an instance.
// The caller must not change them.
func (s *Signature) Names() []string { return s.names }
