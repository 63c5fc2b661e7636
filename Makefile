# Thin verbs over cargo and the scripts in tools/. Each installs what it needs first and says so; see tools/setup.sh.

CARGO ?= cargo
FUZZ_SECONDS ?= 20

.DEFAULT_GOAL := help
.PHONY: help demo build test integration lint check bench gpu-check fuzz-smoke docs
# Cargo uses all cores by itself, and two cargos wait for each other.
.NOTPARALLEL:

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: ## a real virtual machine uses a GPU memory larger than any one (simulated) GPU has
	tools/setup.sh --lab
	$(CARGO) run --release -p vram-integration --bin demo

build: ## release builds of everything; programs lie in target/release
	tools/setup.sh
	$(CARGO) build --workspace --release --features vramd/s3

test: ## all tests, those with virtual machines too
	tools/setup.sh --lab
	$(CARGO) test --workspace

integration: ## only the tests with virtual machines
	tools/setup.sh --lab
	$(CARGO) test -p vram-integration

lint: ## formatting and clippy, warnings are errors
	tools/setup.sh --lint
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

check: lint ## lint, our own checks, documentation, licences, a little fuzzing, what only a feature brings
	tools/setup.sh --lint --fuzz --deny
	$(CARGO) test -p vram-tier --features s3 --test s3 --test stores
	$(CARGO) clippy -p vram-tier -p vramd --features vramd/s3 --all-targets -- -D warnings
	$(CARGO) run --quiet -p xtask -- check
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
	tools/deny.sh
	fuzz/run.sh --seconds 3

bench: ## benchmarks
	tools/setup.sh
	$(CARGO) bench --workspace

gpu-check: ## the checks that need a real GPU
	tools/setup.sh
	tools/gpu-check.sh

fuzz-smoke: ## every fuzz target for FUZZ_SECONDS (20)
	tools/setup.sh --fuzz
	fuzz/run.sh --seconds $(FUZZ_SECONDS)

docs: ## the crates' documentation in target/doc
	$(CARGO) doc --workspace --no-deps
