//! CUDA arrays.

use std::ptr::null_mut;

use vgpu_test_programs::cuda::{self, sys::*};

use crate::report::Report;
use crate::setup::require;

fn descriptor(size: [usize; 3], channels: u32, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    let format = CUarray_format::CU_AD_FORMAT_FLOAT;
    CUDA_ARRAY3D_DESCRIPTOR { Width: size[0], Height: size[1], Depth: size[2], Format: format, NumChannels: channels, Flags: flags }
}

pub fn ask(report: &mut Report) {
    require("start", cuda::start(0).err().unwrap_or(CUresult::CUDA_SUCCESS));
    report.measure();
    let mut array = null_mut();
    let shapes = [
        [5000, 0, 0],
        [1024, 1024, 0],
        [1000, 1000, 0],
        [64, 64, 0],
        [100, 100, 100],
        [1, 1, 0],
        [3000, 7, 0],
        [33, 33, 33],
        [131_072, 64, 0],
    ];
    for shape in shapes {
        for channels in [1, 4] {
            // SAFETY: the descriptor and the out-pointer are valid.
            unsafe {
                let code = cuArray3DCreate_v2(&raw mut array, &descriptor(shape, channels, 0));
                report.code(format!("{shape:?} × {channels}"), code);
                report.growth("costs");
                if code == CUresult::CUDA_SUCCESS {
                    require("destroy", cuArrayDestroy(array));
                    report.growth("destroyed");
                }
            }
        }
    }
    special(report);
}

/// Many small arrays, invalid descriptors, sparse and deferred arrays, mipmaps.
fn special(report: &mut Report) {
    let mut array = null_mut();
    // SAFETY: the descriptors and the out-pointers are valid, or null where that is the question.
    unsafe {
        let many = [(); 256].map(|()| {
            let mut array = null_mut();
            require("array", cuArray3DCreate_v2(&raw mut array, &descriptor([64, 64, 0], 1, 0)));
            array
        });
        report.growth("256 of 64 × 64");
        many.iter().for_each(|&array| require("destroy", cuArrayDestroy(array)));
        report.growth("destroyed");
        report.code("of no width", cuArray3DCreate_v2(&raw mut array, &descriptor([0, 1, 0], 1, 0)));
        report.code("of 3 channels", cuArray3DCreate_v2(&raw mut array, &descriptor([64, 64, 0], 3, 0)));
        report.code("to null", cuArray3DCreate_v2(null_mut(), &descriptor([64, 64, 0], 1, 0)));
        report.code("without descriptor", cuArray3DCreate_v2(&raw mut array, std::ptr::null()));
        for (name, flags) in [("sparse", 0x40), ("deferred", 0x80)] {
            report.code(name, cuArray3DCreate_v2(&raw mut array, &descriptor([4096, 4096, 0], 1, flags)));
            report.growth(format!("{name} costs"));
            let mut requirements = std::mem::zeroed::<CUDA_ARRAY_MEMORY_REQUIREMENTS>();
            let code = cuArrayGetMemoryRequirements(&raw mut requirements, array, 0);
            report.code("requirements", code);
            if code == CUresult::CUDA_SUCCESS {
                report.answer("requirements are", format!("{} {}", requirements.size, requirements.alignment));
            }
            report.code("destroy", cuArrayDestroy(array));
        }
        let mut pyramid = null_mut();
        for levels in [1, 4, 11, 20] {
            report
                .code(format!("pyramid of {levels}"), cuMipmappedArrayCreate(&raw mut pyramid, &descriptor([1024, 1024, 0], 1, 0), levels));
            report.growth("costs");
            report.code("its last level", cuMipmappedArrayGetLevel(&raw mut array, pyramid, levels.min(11) - 1));
            report.code("destroy", cuMipmappedArrayDestroy(pyramid));
            report.growth("destroyed");
        }
        report.code("pyramid of 0", cuMipmappedArrayCreate(&raw mut pyramid, &descriptor([1024, 1024, 0], 1, 0), 0));
    }
    deferred(report);
}

/// Memory requirements of deferred arrays and mipmaps of all shapes, compared with what the same shapes take with memory.
fn deferred(report: &mut Report) {
    const DEFERRED: u32 = 0x80;
    for shape in [[1, 1, 0], [5000, 0, 0], [2048, 1, 0], [1000, 1000, 0], [33, 33, 33], [4096, 4096, 0]] {
        for (levels, channels) in [(0, 1), (1, 1), (2, 4), (4, 1), (16, 2)] {
            let (mut array, mut pyramid) = (null_mut(), null_mut());
            // SAFETY: all-zero is valid for this struct of numbers; the descriptors and the out-pointers are valid.
            unsafe {
                let mut needs = std::mem::zeroed::<CUDA_ARRAY_MEMORY_REQUIREMENTS>();
                let (plain, later) = (descriptor(shape, channels, 0), descriptor(shape, channels, DEFERRED));
                let what = format!("{shape:?} × {channels}, {levels} levels");
                if levels == 0 {
                    report.code(format!("{what}, deferred"), cuArray3DCreate_v2(&raw mut array, &raw const later));
                    report.code("needs", cuArrayGetMemoryRequirements(&raw mut needs, array, 0));
                    report.code("destroy", cuArrayDestroy(array));
                } else {
                    report.code(format!("{what}, deferred"), cuMipmappedArrayCreate(&raw mut pyramid, &raw const later, levels));
                    report.code("needs", cuMipmappedArrayGetMemoryRequirements(&raw mut needs, pyramid, 0));
                    report.code("destroy", cuMipmappedArrayDestroy(pyramid));
                }
                report.answer("they are", format!("{} {}", needs.size, needs.alignment));
                report.growth("costs");
                if levels == 0 {
                    report.code("with memory", cuArray3DCreate_v2(&raw mut array, &raw const plain));
                    report.growth("costs");
                    report.code("destroy", cuArrayDestroy(array));
                } else {
                    report.code("with memory", cuMipmappedArrayCreate(&raw mut pyramid, &raw const plain, levels));
                    report.growth("costs");
                    report.code("destroy", cuMipmappedArrayDestroy(pyramid));
                }
                report.growth("destroyed");
            }
        }
    }
}
