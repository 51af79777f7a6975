// Package chart tests what people install with: the chart config/chart and the
// kustomizations of config.
//
//	config/*  ─ kustomize ─> config/chart/files ─ helm ─┐
//	config/*  ─ kustomize ──────────────────────────────┼─> the same objects? valid? installed, upgraded, removed
//	pkg/guard/pin ─ guard render ───────────────────────┘
//
// What needs Helm runs by "make chart-test", which sets CHART_LONG: Helm is a
// program of hundreds of packages that nothing else here needs, and building it for the
// first time takes minutes. "make test" runs the rest: the files that the chart is made
// of are those that kustomize makes, the admission objects are those that "guard
// render" makes, the API server accepts all of them, and the values, their schema
// and their page agree.
//
// "make generate" has it make config/chart/files and docs/chart.md. The golden files
// are made by: CHART_LONG=1 go test ./test/chart -run TestGolden -update. There is
// nothing here but tests.
package chart

//go:generate go test . -count=1 -run "^(TestFilesAreGenerated|TestValuesAreDocumented)$" -update
