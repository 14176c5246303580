//! OCI hooks that limit a container's share of a GPU.

fn main() -> std::process::ExitCode {
    vgpu_oci_hook::hook::main()
}
