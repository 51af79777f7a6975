//go:build race

package kit

const raceDetector = true
