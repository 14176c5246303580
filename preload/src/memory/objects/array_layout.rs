//! Layout of arrays: rows of whole 64 bytes, in blocks of rows and slices, level after level. Measured on an H200 with driver 580
//! (`tests/gpu/results/conformance-h200.txt`): exact for two dimensions, an upper bound for three.

use vgpu_cuda_abi::cuda::{ARRAY_CUBEMAP, ARRAY_GATHER, ARRAY_LAYERED, ARRAY_SURFACE, Array3dDescriptor};

/// Bytes of a row in a block.
const ROW: u64 = 64;
/// Rows of the lowest block.
const LOWEST: u64 = 8;
/// Rows of the highest block, or of all slices of the largest.
const HIGHEST: u64 = 128;
/// Bytes of the largest element: 4 channels of 32 bits.
const LARGEST: u64 = 16;

/// Returns the bytes that an array takes alone, with all its `levels` (0 if it is not mipmapped); an upper bound where the layout is not
/// certain. `None` for unknown layouts: other element formats, arrays for graphics and video.
pub fn bytes(descriptor: &Array3dDescriptor, levels: u32) -> Option<u64> {
    let usual = ARRAY_LAYERED | ARRAY_SURFACE | ARRAY_CUBEMAP | ARRAY_GATHER;
    (descriptor.flags & !usual == 0).then_some(())?;
    let channel = match descriptor.format {
        1 | 8 => 1,
        2 | 9 | 0x10 => 2,
        3 | 10 | 0x20 => 4,
        _ => return None,
    };
    Some(with_elements(descriptor, channel * u64::from(descriptor.channels), levels))
}

/// As [`bytes`], for the largest elements that there are.
pub fn at_most(descriptor: &Array3dDescriptor, levels: u32) -> u64 {
    with_elements(descriptor, LARGEST, levels)
}

/// As [`bytes`], for elements of `element` bytes.
fn with_elements(descriptor: &Array3dDescriptor, element: u64, levels: u32) -> u64 {
    let [width, height, depth] = [descriptor.width, descriptor.height, descriptor.depth].map(|extent| extent.max(1) as u64);
    let is_layered = descriptor.flags & (ARRAY_LAYERED | ARRAY_CUBEMAP) != 0;
    let halved = |extent: u64, level: u32| (extent >> level).max(1);
    let last = width.max(height).max(if is_layered { 1 } else { depth }).ilog2();
    let pyramid = |slices: &dyn Fn(u32) -> u64| {
        let level = |level| {
            let row = whole(halved(width, level).saturating_mul(element), ROW);
            row.saturating_mul(rows(halved(height, level), slices(level)))
        };
        (0..levels.clamp(1, last + 1)).map(level).fold(0, u64::saturating_add)
    };
    if !is_layered {
        return pyramid(&|level| halved(depth, level));
    }
    // Not measured. Either every level has all layers, perhaps in blocks; or there is pyramid after pyramid, each in whole blocks of its
    // base.
    let one = whole(pyramid(&|_| 1), ROW * block(height, LOWEST, HIGHEST));
    pyramid(&|_| depth).max(one.saturating_mul(depth))
}

/// Returns the padded rows of all slices. Blocks have 8 to 128 rows of one slice, and fewer rows the more slices. The H200's answers leave
/// the proportion open (8 rows and 16 slices or 16 and 8 for a cube; unknown for thin arrays), so this takes the worst.
fn rows(height: u64, slices: u64) -> u64 {
    let of = |slices_most: u64| {
        let (rows, slices_whole) = (block(height, LOWEST, HIGHEST / slices_most), block(slices, 1, slices_most));
        whole(height, rows).saturating_mul(whole(slices, slices_whole))
    };
    [1, 2, 4, 8, 16].into_iter().map(of).fold(0, u64::max)
}

/// Returns the smallest block that `count` fits into.
fn block(count: u64, least: u64, most: u64) -> u64 {
    count.checked_next_power_of_two().unwrap_or(most).clamp(least, most)
}

/// Rounds `count` up to a multiple of `step`.
fn whole(count: u64, step: u64) -> u64 {
    count.checked_next_multiple_of(step).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_cuda_abi::cuda::ARRAY_CUBEMAP;
    use vgpu_cuda_abi::cuda::ARRAY_LAYERED;
    use vgpu_cuda_abi::cuda::Array3dDescriptor;

    const FLOAT: u32 = 0x20;
    const NEEDED: u64 = 64 << 10;

    fn like(extents: [usize; 3], flags: u32) -> Array3dDescriptor {
        let [width, height, depth] = extents;
        Array3dDescriptor { width, height, depth, format: FLOAT, channels: 1, flags }
    }

    /// The numbers in a text, in order.
    fn numbers(text: &str) -> Vec<usize> {
        text.split(|character: char| !character.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
    }

    #[test]
    fn sizes_match_an_h200_and_bound_it_in_three_dimensions() {
        let recorded = include_str!("../../../../tests/gpu/results/conformance-h200.txt");
        let (mut asked, mut checked) = (None, 0);
        for line in recorded.lines() {
            if line.starts_with("arrays: ") && line.contains("levels, deferred") {
                asked = Some(numbers(line));
            } else if let Some(answer) = line.strip_prefix("arrays: they are: ") {
                let asked = asked.take().unwrap();
                let [width, height, depth, channels, levels] = asked[..] else { panic!("{line}") };
                let descriptor = Array3dDescriptor { channels: channels as u32, ..like([width, height, depth], 0) };
                let (here, needed) = (bytes(&descriptor, levels as u32).unwrap(), numbers(answer)[0] as u64);
                assert!(at_most(&descriptor, levels as u32) >= here, "{asked:?}");
                if depth == 0 {
                    assert_eq!(here.next_multiple_of(NEEDED), needed, "{asked:?}");
                } else {
                    assert!(here.next_multiple_of(NEEDED) >= needed && here < needed * 3 / 2, "{asked:?}: {here}, {needed}");
                }
                checked += 1;
            }
        }
        assert_eq!(checked, 30);
    }

    #[test]
    fn every_rule_that_fits_the_h200_takes_at_most_as_much() {
        let padded = |count: u64, least: u64, most: u64| {
            let block = [least, 2 * least, 4 * least, 8 * least, 16 * least].into_iter().find(|&block| block >= count || block == most);
            count.div_ceil(block.unwrap()) * block.unwrap()
        };
        let extents = [1, 2, 3, 5, 8, 9, 16, 17, 31, 33, 64, 65, 127];
        for (width, height, depth) in extents.iter().flat_map(|&w| extents.iter().flat_map(move |&h| extents.map(|d| (w, h, d)))) {
            for levels in [0, 1, 2, 4, 7] {
                let most = (width.max(height).max(depth) as u64).ilog2() + 1;
                for (rows, slices) in [(16, 8), (8, 16)] {
                    let taken = (0..u32::max(levels, 1).min(most)).map(|level| {
                        let [width, height, depth] = [width, height, depth].map(|extent| (extent as u64 >> level).max(1));
                        (width * 4).div_ceil(64) * 64 * padded(height, 8, rows) * padded(depth, 1, slices)
                    });
                    let (taken, here) = (taken.sum::<u64>(), bytes(&like([width, height, depth], 0), levels).unwrap());
                    assert!(here >= taken, "{width} x {height} x {depth}, {levels} levels, blocks of {rows} x {slices}: {here} < {taken}");
                }
            }
        }
    }

    #[test]
    fn a_pyramid_is_the_sum_of_its_possible_levels() {
        let floats = |extents, levels| bytes(&like(extents, 0), levels);
        assert_eq!(floats([1024, 0, 0], 0), Some(32 << 10));
        assert_eq!(floats([1024, 0, 0], 2), Some(48 << 10));
        assert_eq!(floats([128, 1, 0], 8), Some(9728));
        assert_eq!(floats([128, 1, 0], 99), Some(9728));
        // In the first level 16 rows each, in the second 8, and half as many slices.
        assert_eq!(floats([16, 16, 4], 2), Some(64 * 16 * 4 + 64 * 8 * 2));
    }

    #[test]
    fn layers_are_not_halved_and_fill_whole_blocks() {
        let floats = |extents, flags, levels| bytes(&like(extents, flags), levels);
        // 6 faces: blocks of 8 slices would take 8.
        assert_eq!(floats([16, 16, 6], ARRAY_CUBEMAP, 0), Some(64 * 16 * 8));
        // Levels of 16, 8, 4, 2 and 1: 3 KiB, which is whole blocks of 16 rows.
        assert_eq!(floats([16, 16, 4], ARRAY_LAYERED, 5), Some((64 * 16 + 4 * 64 * 8) * 4));
        assert_eq!(floats([16, 16, 4], ARRAY_LAYERED, 2), Some((64 * 16 + 64 * 16) * 4));
        // The number of layers gives a pyramid no levels.
        assert_eq!(floats([1, 0, 100], ARRAY_LAYERED, 9), floats([1, 0, 100], ARRAY_LAYERED, 0));
    }

    #[test]
    fn unknown_formats_have_no_size_and_sizes_saturate() {
        assert_eq!(bytes(&Array3dDescriptor { format: 0x91, ..like([1, 1, 0], 0) }, 0), None);
        assert_eq!(bytes(&like([1, 1, 0], 0x10), 0), None);
        assert_eq!(bytes(&like([usize::MAX; 3], 0), 99), Some(u64::MAX));
        assert_eq!(at_most(&like([usize::MAX, 1, 0], ARRAY_LAYERED), 0), u64::MAX);
    }
}
