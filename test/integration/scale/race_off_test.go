//go:build !race

package scale_test

// raceDetector says whether the programs are built with it: they take more memory then.
const raceDetector = false
