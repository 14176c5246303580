# Both commands set up what they need on Debian and Ubuntu, given Rust.

.PHONY: demo test build gpu-kit clean

# A container held to its share, on the real GPU if there is one, else on the simulated one.
demo:
	@scripts/demo.sh

# Everything that CI runs.
test:
	@scripts/test.sh

# What is shipped, and what the tests run, in target/kit.
build:
	@scripts/build.sh

# What tests/gpu/run needs on a machine with a GPU and no network, in .gpu-kit.
gpu-kit:
	@tests/gpu/pack

clean:
	cargo clean
	rm -rf .gpu-kit
