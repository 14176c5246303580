//! Device code.

/// Reads an image. Its first byte selects whether the compute capability is known.
pub fn device_code(data: &[u8]) {
    let [selector, image @ ..] = data else { return };
    // An image in memory of exactly its size: the sanitizer sees a read beyond its end.
    let image: Box<[u8]> = image.into();
    if image.len() < 4 {
        return;
    }
    let capabilities: &[u32] = if selector & 1 == 0 { &[] } else { &[90] };
    // SAFETY: the image has at least four bytes, and this is its length.
    let globals = unsafe { vgpu_device_code::within(image.as_ptr(), image.len(), || capabilities) };
    // SAFETY: as above. Reading has no side effects, so a second time gives the same answer.
    assert_eq!(globals, unsafe { vgpu_device_code::within(image.as_ptr(), image.len(), || capabilities) });
}
