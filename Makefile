# Headrace: build, try, test. `make help` lists the targets.

GO      ?= go
BIN     := bin/headrace
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
# Tests run with the race detector, which needs a C compiler.
TESTFLAGS ?= -race -p 2 -timeout 15m
# Linters are pinned in a module of their own.
TOOL := $(GO) tool -modfile=tools/go.mod

.PHONY: build demo test test-long mutants soak test-clients lint bench bench-short fmt golden docs help

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/headrace, one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/headrace

demo: build ## run the main job on real flight records (STAY=1 keeps the node running)
	$(BIN) demo $(if $(STAY),--stay)

test: ## run the tests with the race detector, under 8 minutes on 2 cores
	@command -v gcc >/dev/null || { echo "installing gcc, which the race detector needs"; apt-get update -qq && apt-get install -y -qq gcc libc6-dev; }
	$(GO) test $(TESTFLAGS) ./...
	$(GO) test -run TestNexmarkGivesTheKnownAnswers ./internal/endtoend # 100,000 events are too many for the race detector

test-long: ## run the long suites: more crash states, more kills, longer fuzzing
	HEADRACE_LONG=1 $(GO) test $(TESTFLAGS) -timeout 60m ./...
	./internal/fuzz.sh 60s

# The server is the ordinary binary; the clients need no race detector.
SOAK_MINUTES ?= 20
SOAK_RATE    ?= 2000
soak: ## watch a busy server for SOAK_MINUTES: nothing that it holds may grow
	HEADRACE_SOAK=$(SOAK_MINUTES)m HEADRACE_SOAK_RATE=$(SOAK_RATE) $(GO) test -count=1 -v -run TestNothingGrows -timeout $$(($(SOAK_MINUTES) + 10))m ./internal/soak

mutants: ## seed faults into the log's code, one by one: the tests must notice each (MUTANT=part-of-a-name for one)
	HEADRACE_MUTANTS=1 HEADRACE_MUTANT='$(MUTANT)' $(GO) test -count=1 -run TestEveryMutantIsCaught -v -timeout 40m ./internal/mutants

test-clients: build ## run kcat, kafkajs and pyarrow against the binary (installs them)
	./internal/clients.sh

lint: ## gofumpt, go vet, staticcheck
	@out=$$($(TOOL) gofumpt -l $$(git ls-files '*.go')); [ -z "$$out" ] || { echo "gofumpt differs (make fmt):"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(TOOL) staticcheck ./...

# Nexmark's queries, by their place in the file.
NEXMARK = $(shell sed -n 's|^// \(q[0-9]*\)$$|\1|p' internal/nexmark/queries.hr)

bench: build ## measure: the figures of the README, then the package benchmarks
	$(BIN) bench ingest --compare
	$(BIN) bench ingest --client native
	$(BIN) bench ingest --columns
	$(BIN) bench ingest --columns --with-pipeline --rate 10000000 --seconds 60
	$(BIN) bench latency
	$(BIN) bench pipeline
	for q in $(NEXMARK); do $(BIN) bench nexmark --query $$q --format arrow || exit 1; done
	$(BIN) bench partitions
	$(BIN) bench recovery
	$(GO) test -run '^$$' -bench . -benchtime 2s ./...

bench-short: build ## run every benchmark for a moment, to prove that it works
	$(BIN) bench ingest --seconds 2 --compare
	$(BIN) bench ingest --seconds 2 --client native
	$(BIN) bench ingest --seconds 2 --columns --with-pipeline --rate 200000
	$(BIN) bench latency --seconds 2
	$(BIN) bench pipeline --rows 200000
	for q in $(NEXMARK); do $(BIN) bench nexmark --query $$q --events 20000 --format arrow || exit 1; done
	$(BIN) bench nexmark --query q1 --events 20000
	$(BIN) bench partitions --topics 500 --partitions 100
	$(BIN) bench recovery --seconds 2
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...
	$(GO) test -run Alloc ./client ./log/... ./runtime/codec ./server/kafka # what the race detector cannot count

fmt: ## format Go and .hr files
	$(TOOL) gofumpt -w $$(git ls-files '*.go')
	$(GO) run ./cmd/headrace fmt -w $$(git ls-files 'examples/*.hr')

golden: ## rewrite the golden files; read the diff
	./internal/golden.sh

docs: build ## regenerate docs/errors.md and docs/cli from the code
	$(BIN) docs --dir docs
