//! Linker options of the library.

fn main() {
    // Read-only relocations cost every process one more mapping and one system call at its start. They would protect the process of a
    // tenant, who controls the process anyway.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,norelro");
    // References within the library bind at link time. The loader would otherwise look up 300 names at every start of a process (20 us on
    // an H200's host).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Functions of the C library are looked up at their first call, which most processes never make.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,lazy");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{folder}/link.ld");
    println!("cargo:rerun-if-changed=link.ld");
    println!("cargo:rerun-if-changed=build.rs");
}
