//! An OCI runtime that limits a container's share of a GPU and hands on to runc, crun or another.

fn main() -> std::process::ExitCode {
    vgpu_oci_hook::runtime::main()
}
