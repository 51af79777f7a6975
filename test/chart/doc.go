// Package chart tests what people install with: the chart config/chart and the
// kustomizations of config.
//
//	config/*  ─ kustomize ─> config/chart/files ─ helm ─┐
//	config/*  ─ kustomize ──────────────────────────────┼─> the same objects? valid? installed, upgraded, removed
//	pkg/guard/pin ─ guard render ───────────────────────┘
//
// "make generate" has it make config/chart/files and docs/chart.md. The golden files
// are made by: go test ./test/chart -run TestGolden -update. There is nothing here
// but tests.
package chart

//go:generate go test . -count=1 -run "^(TestFilesAreGenerated|TestValuesAreDocumented)$" -update
