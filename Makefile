# On Debian and Ubuntu with Rust, the targets install what else they need.

.PHONY: demo test test-random fuzz moves audit reproducible scale soak build gpu-kit release clean test-crio quickstarts

# Runs a container with limits, on a real GPU if there is one, else on a simulated one.
demo:
	@scripts/demo.sh

# Runs everything that CI runs.
test:
	@scripts/test.sh

# Runs the random tests with a seed from the clock, which a failure prints. For nightly runs: CI's seed is fixed.
test-random:
	@scripts/test-random.sh

# Pods of a real CRI-O, as root; CRIO_SOURCE: a checkout of CRI-O's sources, from which it is built.
test-crio:
	@scripts/crio.sh "$(CRIO_SOURCE)"

# Runs the book's quickstarts on a clean system: SUITE is a release of Debian or Ubuntu (default: noble), MIRROR its archive.
quickstarts:
	@scripts/quickstarts.sh $(or $(SUITE),noble)

# Checks the dependencies with cargo-deny, which is built first: advisories from RustSec's database, licences, bans, sources.
audit:
	@scripts/audit.sh

# Builds the static programs and the library in two folders, and compares the bytes; PARTS=packages: all packages, which takes long.
reproducible:
	@scripts/reproducible.sh $(PARTS)

# Fuzzes each target for SECONDS (60 by default), two at a time; EXECUTIONS instead: for so many inputs.
fuzz:
	@scripts/fuzz.sh $(if $(EXECUTIONS),-n $(EXECUTIONS),-s $(or $(SECONDS),60)) $(TARGETS)

# Moves a program's memory to the host and back 10,000 times, on the simulated GPU; four minutes.
moves:
	@scripts/moves.sh

# Measures the host's side with up to 1,000 containers, as root with runc.
scale:
	@scripts/scale.sh

# Two hours of containers on a simulated GPU, with random operations and kills, as root with runc; SOAK="-t SECONDS" and other options.
soak:
	@scripts/soak.sh $(SOAK)

# Builds the shipped files and the test programs in target/kit.
build:
	@scripts/build.sh

# Makes what a release consists of in packaging/out: packages, checksums, and repositories for apt and rpm (KEY=FINGERPRINT signs these).
release:
	@packaging/build.sh && packaging/package.sh && packaging/repository.sh

# Collects in .gpu-kit the files that tests/gpu/run needs on a machine with a GPU and no network.
gpu-kit:
	@tests/gpu/pack

clean:
	cargo clean
	rm -rf .gpu-kit
