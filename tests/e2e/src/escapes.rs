//! Attempts of a tenant to escape its limit, other than those that docs/security.md lists as bypassing the library.

use crate::PROGRAMS;

/// Returns shell scripts with the names of the attempts. Each script ends with the output of `fill`.
#[must_use]
pub fn escapes() -> Vec<(&'static str, String)> {
    let fill = format!("{PROGRAMS}/fill --chunk 16M --max 4G");
    let keep = "LD_LIBRARY_PATH=$LD_LIBRARY_PATH";
    let wait = "while ! grep -q } /tmp/output; do sleep 0.1; done 2>/dev/null; cat /tmp/output";
    vec![
        ("CUDA_DEVICE_MEMORY_LIMIT=100g", format!("CUDA_DEVICE_MEMORY_LIMIT=100g CUDA_DISABLE_CONTROL=true VGPU_DIR=/tmp {fill}")),
        ("LD_PRELOAD cleared", format!("unset LD_PRELOAD; LD_PRELOAD= {fill}; true")),
        ("env -i", format!("env -i {keep} {fill}")),
        ("setsid", format!("setsid sh -c '{fill} >/tmp/output' & {wait}")),
        ("double fork", format!("(setsid sh -c '{fill} >/tmp/output &' &) ; {wait}")),
        ("shell in a shell", format!("sh -c \"sh -c '{fill}'\"; true")),
        ("descriptors closed", format!("{fill} 3>&- 4>&- 5>&- 6>&- 7>&-; true")),
    ]
}
