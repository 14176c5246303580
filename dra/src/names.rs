//! Names that the driver publishes in the cluster.

/// Name of the driver, and domain of its devices' attributes and capacities.
pub const DRIVER: &str = "gpu.vgpu";
/// DeviceClass that claims request.
pub const DEVICE_CLASS: &str = "gpu.vgpu";
/// Capacity of device memory, in bytes.
pub const MEMORY: &str = "memory";
/// Capacity of compute time, in percent of one GPU.
pub const CORES: &str = "cores";
/// Key of the taint on a GPU that NVML does not list while claims use it.
pub const GONE_TAINT: &str = "gpu.vgpu/gone";
/// Key of the taint on a GPU that answers but has a fault.
pub const FAULT_TAINT: &str = "gpu.vgpu/fault";

/// Returns true if a text is a DNS label (RFC 1123), as names of namespaces are: at most 63 lower-case letters, digits and inner hyphens.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let has_ends = bytes.first().copied().is_some_and(is_plain) && bytes.last().copied().is_some_and(is_plain);
    has_ends && bytes.len() <= 63 && bytes.iter().all(|byte| is_plain(*byte) || *byte == b'-')
}

/// Returns true if a text is a DNS subdomain (RFC 1123), as names of claims are: labels separated by dots, at most 253 bytes.
#[must_use]
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_urls_are_dns_names() {
        for good in ["team", "a-1", "0"] {
            assert!(is_dns_label(good) && is_dns_subdomain(good), "{good}");
        }
        let long = "x".repeat(64);
        for bad in ["", "-a", "a-", "A", "a/b", "..", "a%2fb", "a?x", "a#", "ä", "a b", &long] {
            assert!(!is_dns_label(bad) && !is_dns_subdomain(bad), "{bad}");
        }
        assert!(is_dns_subdomain("a.b-c.d") && !is_dns_subdomain("a..b") && !is_dns_label("a.b"));
    }
}
