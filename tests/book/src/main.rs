//! Writes the generated pages of the book, and manual pages.

use std::fs;

use vgpu_book::generated;
use vgpu_book::pages::root;

fn main() -> std::io::Result<()> {
    for (name, text) in generated::pages() {
        fs::write(root().join(name), text)?;
    }
    Ok(())
}
