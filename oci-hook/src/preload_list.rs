//! `/etc/ld.so.preload`, as glibc reads it: paths between blanks, line ends and colons; `#` starts a comment.

use vgpu_region::paths::LIBRARY;

/// Most bytes of an image's own list that are read.
pub const MOST: usize = 64 << 10;

/// Our library first, then what the image lists, in its order and without repetition.
#[must_use]
pub fn merged(of_image: &str) -> String {
    let mut listed = vec![LIBRARY];
    for line in of_image.lines() {
        let code = line.split('#').next().unwrap_or_default();
        for path in code.split([' ', '\t', ':']).filter(|path| !path.is_empty()) {
            if !listed.contains(&path) {
                listed.push(path);
            }
        }
    }
    listed.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_first_then_the_images_in_its_order() {
        let cases = [
            ("nothing of its own", "", "@\n"),
            ("one of its own", "/lib/a.so\n", "@\n/lib/a.so\n"),
            ("no line end", "/lib/a.so", "@\n/lib/a.so\n"),
            ("HAMi's device plugin names our path", "/usr/local/vgpu/libvgpu.so\n", "@\n"),
            ("repetition, order", "/b.so\n/a.so\n/b.so\n", "@\n/b.so\n/a.so\n"),
            ("all separators", "/a.so /b.so:/c.so\t/d.so", "@\n/a.so\n/b.so\n/c.so\n/d.so\n"),
            ("comments", "# one\n/a.so # two /x.so\n", "@\n/a.so\n"),
            ("the loader's own variables stay", "/usr/$LIB/a.so\n", "@\n/usr/$LIB/a.so\n"),
        ];
        for (description, of_image, expected) in cases {
            assert_eq!(merged(of_image), expected.replace('@', LIBRARY), "{description}");
        }
    }
}
