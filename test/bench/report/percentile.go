package report

import (
	"math"
	"slices"
	"time"
)

func sortedDurations(all []time.Duration) []time.Duration {
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	return sorted
}

// percentile is the least of the sorted values that p of 100 of them do not exceed.
func percentile(sorted []time.Duration, p float64) time.Duration {
	rank := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}
