//! Sets the soname that programs link against, and binds the library's symbols to itself: a library that programs preload must not stand in
//! for the functions that this one hands out.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rerun-if-changed=build.rs");
}
