//! OCI hooks that limit a container's share of a GPU.

/// The program lives for about a millisecond. musl's own allocator spends much of that on mapping and unmapping memory.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> std::process::ExitCode {
    vgpu_oci_hook::hook::main()
}
