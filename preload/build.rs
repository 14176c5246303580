//! How the library is linked.

fn main() {
    // Read-only relocations cost every process one more mapping and one system call at its start. They protect a program from itself
    // being taken over; this library lives in processes of a tenant who may do as he likes in them.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,norelro");
    // Our own names mean our own functions: the loader need not look each of the 300 up at every start of a process (20 us on an H200's host).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rerun-if-changed=build.rs");
}
