//! An OCI runtime that limits a container's share of a GPU and then executes runc, crun or another runtime.

fn main() -> std::process::ExitCode {
    vgpu_oci_hook::runtime::main()
}
