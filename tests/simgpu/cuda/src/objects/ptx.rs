//! Minimal PTX parser: entries, globals and local memory.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};

use cudarc::driver::sys::CUresult;

use crate::ffi::CudaResult;

/// Declarations of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub entries: BTreeMap<String, Entry>,
    /// Name and size in bytes of each global.
    pub globals: Vec<(String, u64)>,
    pub uses_malloc: bool,
}

/// Kernel declaration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Bytes of local memory per thread.
    pub local: u64,
}

/// Parses an image. Only PTX text is supported.
pub fn read(image: *const c_void) -> CudaResult<Image> {
    // SAFETY: by CUDA's contract `image` points to an image, which has at least one byte.
    let first = unsafe { image.cast::<u8>().read() };
    if !first.is_ascii_graphic() && !first.is_ascii_whitespace() {
        return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
    // SAFETY: an image that starts with a printable character is PTX, which is a terminated string.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| CUresult::CUDA_ERROR_INVALID_IMAGE)?;
    if !text.contains(".version") {
        return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
    if !text.contains(".target") || text.matches('{').count() != text.matches('}').count() {
        return Err(CUresult::CUDA_ERROR_INVALID_PTX);
    }
    Ok(parse(text))
}

fn parse(text: &str) -> Image {
    let without_comments = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let mut image = Image { uses_malloc: without_comments.contains("malloc"), ..Image::default() };
    let mut current = None;
    for statement in without_comments.split([';', '{', '}']) {
        let words = statement.split_ascii_whitespace().collect::<Vec<_>>();
        if let Some(at) = words.iter().position(|&word| word == ".entry") {
            let name = words.get(at + 1).and_then(|word| word.split('(').next()).unwrap_or("").to_owned();
            image.entries.insert(name.clone(), Entry::default());
            current = Some(name);
        } else if words.contains(&".global") && words.iter().any(|word| [".b", ".u", ".f"].iter().any(|kind| word.starts_with(kind))) {
            if let Some((name, bytes)) = variable(&words) {
                image.globals.push((name, bytes));
            }
        } else if words.first() == Some(&".local")
            && let (Some(name), Some((_, bytes))) = (&current, variable(&words))
            && let Some(entry) = image.entries.get_mut(name)
        {
            entry.local += bytes;
        }
    }
    image
}

/// Returns name and size of a variable: `… .b8 name[count]`, `… .u32 name` or `… .v4 .f32 name[0x10]`.
fn variable(words: &[&str]) -> Option<(String, u64)> {
    let kind = words.iter().rev().find(|word| word.starts_with('.') && word.ends_with(|last: char| last.is_ascii_digit()))?;
    let width = kind.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse::<u64>().ok()? / 8;
    let at = words.iter().position(|word| word == kind)?;
    let declaration = words.get(at + 1..)?.concat();
    let declaration = declaration.split('=').next()?;
    let (name, rest) = declaration.split_once('[').unwrap_or((declaration, "1]"));
    let extent = rest.split(']').next()?;
    let count = extent.strip_prefix("0x").map_or_else(|| extent.parse(), |digits| u64::from_str_radix(digits, 16)).ok()?;
    let vector = words.iter().find_map(|word| word.strip_prefix(".v")?.parse::<u64>().ok()).unwrap_or(1);
    Some((name.to_owned(), width * count * vector))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_globals_and_locals_are_parsed() {
        let image = parse(
            ".version 7.0\n.target sm_70\n.visible .global .align 8 .b8 big[268435456];\n.global .u32 one;\n.global .v4 .f32 many[0x10];\n\
             .visible .entry g1(){ret;}\n// .visible .entry no()\n\
             .visible .entry loc(.param .u64 o){.local .align 8 .b8 l[65536];.reg .u64 %a;ld.global.u32 %a,[o];ret;}\n",
        );
        assert_eq!(image.globals, [("big".to_owned(), 268_435_456), ("one".to_owned(), 4), ("many".to_owned(), 256)]);
        assert_eq!(image.entries.keys().collect::<Vec<_>>(), ["g1", "loc"]);
        assert_eq!(image.entries["loc"].local, 65536);
        assert!(!image.uses_malloc);
    }
}
