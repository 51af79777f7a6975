package e2e_test

// sampleNames are the folders below config/samples.
var sampleNames = []string{
	"bluegreen", "catset", "crd-roles", "global-configmap", "indexed-job", "secret-propagation", "service-per-pod", "tenant",
}
