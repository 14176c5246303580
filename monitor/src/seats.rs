//! The GPUs on which a container may take turns, by what the host knows.

use std::path::Path;

use vgpu_config::Inventory;
use vgpu_region::uuid::Uuid;

use crate::account::Reader;
use crate::container::{self, Container};
use crate::inventory::KnownGpus;

/// Returns the GPUs of the container in a directory, in the container's order: those of its bundle, else those that its limits name, else the
/// machine's only one. Empty if none of these says which they are: such a container takes no turns, and its own account is not asked.
#[must_use]
pub fn gpus_of(state_dir: &Path, dir: &Path) -> Vec<Uuid> {
    let inventory = Inventory::load(state_dir).ok().flatten().unwrap_or_default();
    let known = KnownGpus::new(&inventory);
    let only = || Some(known.gpus().collect::<Vec<Uuid>>()).filter(|gpus| gpus.len() == 1);
    let gpus = |container: Container| {
        let by_host =
            container.by_bundle(&inventory).or_else(|| Some(container.named_gpus()).filter(|named| !named.is_empty())).or_else(only)?;
        Some(container.gpus(&by_host, &known))
    };
    container::read(dir, &mut Reader::default()).and_then(gpus).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use vgpu_config::limits::{GpuLimits, Which};
    use vgpu_oci_hook::state::REGION;
    use vgpu_region::map;

    use super::*;
    use crate::test_host::Host;

    #[test]
    fn a_containers_own_account_gives_it_no_seat() {
        let host = Host::new();
        let (inventory, uuids) = Host::inventory(2);
        crate::inventory::write(host.path(), &inventory).unwrap();
        host.container("c", "a", "p", &[GpuLimits { cores: Some(30), ..GpuLimits::none(Which::All) }]);
        let region = map::region(&CString::new(host.dir("c").join(REGION).as_os_str().as_bytes()).unwrap()).unwrap();
        region.gpu(uuids[0]).unwrap();
        assert_eq!(gpus_of(host.path(), &host.dir("c")), [], "nothing of the host says which GPU it has");
        host.bundle("c", &format!(r#"{{"process":{{"env":["NVIDIA_VISIBLE_DEVICES={}"]}}}}"#, uuids[1]));
        assert_eq!(gpus_of(host.path(), &host.dir("c")), [uuids[1]]);
        crate::inventory::write(host.path(), &Host::inventory(1).0).unwrap();
        host.bundle("c", "{}");
        assert_eq!(gpus_of(host.path(), &host.dir("c")), [uuids[0]], "the machine has one GPU");
        let named = GpuLimits { cores: Some(30), ..GpuLimits::none(Which::Uuid(uuids[1].to_string())) };
        host.container("d", "a", "p", &[named]);
        assert_eq!(gpus_of(host.path(), &host.dir("d")), [uuids[1]]);
        // SAFETY: the region is not used after this.
        unsafe { map::unmap(region) };
    }
}
