//! How the library is linked.

fn main() {
    // Read-only relocations cost every process one more mapping and one system call at its start. They protect a program from itself
    // being taken over; this library lives in processes of a tenant who may do as he likes in them.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,norelro");
    // Our own names mean our own functions: the loader need not look each of the 300 up at every start of a process (20 us on an H200's host).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // What a function of the C library is called by is looked up when it is first called, which is never in most processes.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,lazy");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{folder}/link.ld");
    println!("cargo:rerun-if-changed=link.ld");
    println!("cargo:rerun-if-changed=build.rs");
}
