# Every command of the project is a target here; CI calls nothing else.

GO      ?= go
TOOL     = $(GO) tool -modfile=test/tools/go.mod
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS  = -s -w -X github.com/metacontroller-solo/solo/pkg/version.version=$(VERSION)

# Where a local cluster keeps its data, certificates and logs.
RUN_DIR ?= .run

# Where the guard's certificate comes from in a local cluster: local, cert-manager
# or self-managed.
TLS ?= local

# Whether the product is installed in it; false leaves it empty, to follow
# docs/install.md in.
PRODUCT ?= true

# Flags of make run, such as: --lock-wait 5m
RUN_FLAGS ?=

# How long each fuzz target runs.
FUZZTIME ?= 30s

# How long make soak goes on, and how many changes it makes in that time.
SOAK_DURATION ?= 20m
SOAK_CHANGES  ?= 100000

# Flags of make bench, such as: --mode composite --parents 10000 --json bench.json
BENCH_ARGS ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ See it work

.PHONY: run
run: ## Start a cluster on this machine, install the product, show it, keep it running until Ctrl-C
	@echo 'building the local cluster; the first time takes some minutes'
	@$(GO) build -o bin/local ./test/local && exec bin/local run --dir $(RUN_DIR) --tls $(TLS) --product=$(PRODUCT) $(RUN_FLAGS)

.PHONY: demo
demo: ## The same unattended, in a throwaway folder: exits non-zero on the first step that is wrong
	@$(GO) build -o bin/local ./test/local && exec bin/local demo --tls $(TLS)

.PHONY: sample
sample: ## Install SAMPLE=name of config/samples, with its example, in the cluster of make run
	@test -n '$(SAMPLE)' || { echo 'say which: make sample SAMPLE=catset (docs/samples.md lists them)' >&2; exit 2; }
	@$(GO) build -o bin/local ./test/local && exec bin/local sample --dir $(RUN_DIR) $(SAMPLE)

.PHONY: clean
clean: ## Remove the local cluster's data and what was built here
	rm -rf $(RUN_DIR) bin dist

##@ Build

.PHONY: build
build: ## Build controller and guard into bin/
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/controller ./cmd/guard

.PHONY: images
images: ## Build the images of both programs into OCI layouts in dist/images, with their SBOMs, without a daemon
	@cd test/images && $(GO) run . -root ../.. -dir $(CURDIR)/dist/images -version $(VERSION)

.PHONY: controlplane
controlplane: ## Build etcd, the Kubernetes programs (or check KUBEBUILDER_ASSETS) and cert-manager into the cache folder
	@$(GO) run ./test/kit/assets

##@ Check

.PHONY: test
test: controlplane ## Run every test, the integration suites against a real API server
	@$(TOOL) gotestsum --format pkgname-and-test-fails --hide-summary skipped -- -timeout 15m ./...
	@cd test/images && $(GO) test ./base

.PHONY: images-test
images-test: ## Build the images twice and look at what is on disk: platforms, user, files, labels, SBOMs, equal digests
	cd test/images && $(GO) test -count 1 -timeout 60m -v .

.PHONY: test-race
test-race: controlplane ## The same with the race detector
	@$(TOOL) gotestsum --format pkgname-and-test-fails --hide-summary skipped -- -race -timeout 25m ./...

# How often the controller is killed in make test-faults.
FAULT_KILLS ?= 50

.PHONY: test-faults
test-faults: controlplane ## The long form of the fault suite: FAULT_KILLS kills, outages of 30 s and more; FAULT_SEED repeats one
	FAULT_LONG=1 FAULT_KILLS=$(FAULT_KILLS) $(GO) test -count 1 -timeout 90m -v ./test/integration/faults

.PHONY: test-guard
test-guard: controlplane ## The long form of the guard suite: 1000 rounds of the race, the concurrency cases on one API server and on two
	GUARD_LONG=1 GUARD_RACE_ROUNDS=1000 $(GO) test -count 1 -timeout 60m -v ./test/integration/guard

.PHONY: test-tls
test-tls: controlplane ## The long form of the TLS suite: more renewals
	TLS_LONG=1 $(GO) test -count 1 -timeout 15m -v ./test/integration/tls

# How often the writer's node is cut off in make test-fence.
FENCE_RUNS ?= 50

.PHONY: test-fence
test-fence: controlplane ## The long form of the fence's suite: FENCE_RUNS partitions, its lag, and its cost at 1000 writes a second
	FENCE_RUNS=$(FENCE_RUNS) FENCE_LAG=200 FENCE_PARAM=10 FENCE_BENCH=10000 $(GO) test -count 1 -timeout 60m -v ./test/integration/fence

# How many Pods make test-scale creates.
SCALE_PODS ?= 50000

.PHONY: test-scale
test-scale: controlplane ## Measure the guard's memory and time beside SCALE_PODS Pods; part of make test with 2000
	GUARD_SCALE_PODS=$(SCALE_PODS) $(GO) test -count 1 -timeout 60m -v ./test/integration/scale

.PHONY: samples
samples: controlplane ## Run every sample of config/samples end to end in a throwaway local cluster; part of make test
	$(GO) test -count 1 -timeout 15m -v ./test/e2e

.PHONY: chart-test
chart-test: controlplane ## Build Helm and test the chart with it: lint, golden files, install, upgrade, drain, uninstall, docs/install.md; make test has what needs no Helm
	CHART_LONG=1 $(GO) test -count 1 -timeout 60m -v ./test/chart

.PHONY: monitoring-test
monitoring-test: controlplane ## Build promtool and check the alerts with it, with their unit tests; look for each metric in those of the real programs; make test parses them
	MONITORING_LONG=1 $(GO) test -count 1 -timeout 60m -v ./test/integration/monitoring

.PHONY: migrate-test
migrate-test: controlplane ## Go by docs/migrate.md in a local cluster: from the public Metacontroller's workload to ours and back
	MIGRATE_LONG=1 $(GO) test -count 1 -timeout 30m -v ./test/integration/migrate

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME
	@for target in $$(grep -rlE '^func Fuzz' --include='*_test.go' cmd pkg test | xargs -n1 dirname | sort -u); do \
		for name in $$(grep -rhoE '^func Fuzz[A-Za-z0-9_]+' $$target/*_test.go | sed 's/func //'); do \
			echo "$$target $$name"; $(GO) test ./$$target -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) || exit 1; \
		done; \
	done

.PHONY: bench
bench: controlplane ## Measure the controller from outside, beside a raw writer; BENCH_ARGS has flags (BENCH_ARGS=--help)
	@$(GO) build -o bin/bench ./test/bench && exec bin/bench $(BENCH_ARGS)

.PHONY: bench-micro
bench-micro: ## Run the micro-benchmarks; compare two outputs with: go tool -modfile=test/tools/go.mod benchstat OLD NEW
	$(GO) test -run '^$$' -bench . -benchmem -count 6 ./pkg/...

.PHONY: soak
soak: controlplane ## Run the controller under a day's worth of changes in SOAK_DURATION; fail if its memory grows (bin/soak has the plot)
	$(GO) run ./test/soak -duration $(SOAK_DURATION) -changes $(SOAK_CHANGES)

.PHONY: bench-guard
bench-guard: controlplane ## Measure the guard: time of a decision under load, cost for what it has nothing to do with
	GUARD_BENCH_JSON=$(CURDIR)/dist/bench-guard.json $(GO) test ./test/integration/guard -run '^$$' -bench '^BenchmarkGuard$$' -benchtime 1x -timeout 20m

.PHONY: lint
lint: ## Run the linters
	$(TOOL) golangci-lint run

.PHONY: generate
generate: ## Make the generated files again: deep copies, CRDs, admission objects, the chart, roles of samples, docs/policy.md, alerts
	$(TOOL) controller-gen object paths=./pkg/api/... crd output:crd:dir=config/crd
	$(GO) generate ./pkg/... ./cmd/... ./test/chart ./test/reference ./test/integration/monitoring
	@$(GO) build -o bin/ ./cmd/controller
	@for file in config/samples/*/rbac.yaml test/local/manifests/hook/rbac.yaml; do \
		arguments=$$(sed -n 's/^# controller rbac //p' $$file); \
		roles=$$(cd $$(dirname $$file) && $(CURDIR)/bin/controller rbac $$arguments) || exit 1; \
		echo "$$roles" > $$file; \
	done

.PHONY: verify
verify: generate ## Fail if a generated file is not what the sources say, or a module file is untidy
	@git diff --exit-code -- pkg config docs || { echo 'generated files are stale: run "make generate" and commit the result' >&2; exit 1; }
	@test -z "$$(git ls-files --others --exclude-standard -- pkg config)" || { git ls-files --others --exclude-standard -- pkg config; echo 'generated files are not committed: run "make generate" and add them' >&2; exit 1; }
	$(GO) mod tidy -diff
	cd test/controlplane && $(GO) mod tidy -diff
	cd test/certmanager && $(GO) mod tidy -diff
	cd test/images && $(GO) mod tidy -diff
	cd test/monitoring && $(GO) mod tidy -diff
	cd test/tools && $(GO) mod tidy -diff
	cd test/helm && $(GO) mod tidy -diff

.PHONY: ci
ci: ## What a change must pass: tests, linters, generated files, demo
	@.ci/run
