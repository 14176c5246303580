//! Table of exported functions, and the macro that defines them.

use cudarc::driver::sys::CUresult;

use crate::ffi::CudaResult;

/// An exported function.
pub struct Export {
    pub name: &'static str,
    pub address: *const (),
}

// SAFETY: the address of a function is valid on all threads.
unsafe impl Sync for Export {}

/// All exported functions, for `cuGetProcAddress`.
#[linkme::distributed_slice]
pub static EXPORTS: [Export];

/// Runs the body of an exported function. The name prevents the linker from merging functions with equal bodies into one address, which
/// programs would notice.
#[inline(always)]
pub fn enter(name: &'static str, body: impl FnOnce() -> CudaResult) -> CUresult {
    std::hint::black_box(name);
    body().err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Exports functions: `fn name(arguments) { body }` with a body that returns [`CudaResult`].
/// `fn name [name_ptsz stream] (…)` also exports the variant for per-thread default streams, in which a null `stream` selects the
/// stream of the calling thread. `fn name [name_ptds] (…)` exports a second name for the same function.
macro_rules! api {
    () => {};
    (fn $name:ident ($($arg:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        api!(@export $name ($($arg: $type),*) { $body });
        api! { $($rest)* }
    };
    (fn $name:ident [$ptds:ident] ($($arg:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        api!(@export $name ($($arg: $type),*) { $body });
        api!(@export $ptds ($($arg: $type),*) { $body });
        api! { $($rest)* }
    };
    (fn $name:ident [$ptsz:ident $stream:ident] ($($arg:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        api!(@export $name ($($arg: $type),*) { $body });
        api!(@export $ptsz ($($arg: $type),*) { let $stream = $crate::handles::per_thread_default($stream); $body });
        api! { $($rest)* }
    };
    (@export $name:ident ($($arg:ident: $type:ty),*) { $($body:tt)* }) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> cudarc::driver::sys::CUresult {
            $crate::api::enter(stringify!($name), || -> $crate::ffi::CudaResult { $($body)* })
        }
        const _: () = {
            #[linkme::distributed_slice($crate::api::EXPORTS)]
            static EXPORT: $crate::api::Export = $crate::api::Export { name: stringify!($name), address: $name as *const () };
        };
    };
}
