//go:build !race

package controller_test

// raceFactor is how much more memory a program takes under the race detector.
const raceFactor = 1
