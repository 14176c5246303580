//! The content of `/etc/ld.so.preload` as glibc reads it: paths separated by white space and colons; `#` starts a comment.

use vgpu_region::paths::LIBRARY;

/// Maximum size of an image's own list in bytes.
pub const MAX_BYTES: usize = 64 << 10;

/// Returns the list with vgpu's library first, followed by the entries of the image's list in order and without duplicates.
#[must_use]
pub fn merged(image_list: &str) -> String {
    let mut libraries = vec![LIBRARY];
    // Not `lines()`, which removes carriage returns: to glibc they are part of a path.
    for line in image_list.split('\n') {
        let code = line.split('#').next().unwrap_or_default();
        for path in code.split([' ', '\t', ':']).filter(|path| !path.is_empty()) {
            if !libraries.contains(&path) {
                libraries.push(path);
            }
        }
    }
    libraries.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_the_images_entries_keep_their_order() {
        let cases = [
            ("an empty list", "", "@\n"),
            ("one entry", "/lib/a.so\n", "@\n/lib/a.so\n"),
            ("no newline at the end", "/lib/a.so", "@\n/lib/a.so\n"),
            ("HAMi's device plugin lists the same path", "/usr/local/vgpu/libvgpu.so\n", "@\n"),
            ("duplicates", "/b.so\n/a.so\n/b.so\n", "@\n/b.so\n/a.so\n"),
            ("all separators", "/a.so /b.so:/c.so\t/d.so", "@\n/a.so\n/b.so\n/c.so\n/d.so\n"),
            ("comments", "# one\n/a.so # two /x.so\n", "@\n/a.so\n"),
            ("carriage returns belong to the path", "/a.so\r\n/b.so", "@\n/a.so\r\n/b.so\n"),
            ("the loader's tokens are kept", "/usr/$LIB/a.so\n", "@\n/usr/$LIB/a.so\n"),
        ];
        for (description, image_list, expected) in cases {
            assert_eq!(merged(image_list), expected.replace('@', LIBRARY), "{description}");
        }
    }
}
