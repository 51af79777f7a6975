// Package chart tests what people install with: the chart config/chart and the
// kustomizations of config.
//
//	config/*  ─ kustomize ─> config/chart/files ─ helm ─┐
//	config/*  ─ kustomize ──────────────────────────────┼─> the same objects? valid? installed, upgraded, removed
//	pkg/guard/pin ─ guard render ───────────────────────┘
//
// It also makes config/chart/files, docs/chart.md's table of values and the golden
// files: go test ./test/chart -update. There is nothing here but tests.
package chart

//go:generate go test . -count=1 -run "^(TestFilesAreGenerated|TestValuesAreDocumented|TestGolden)$" -update
