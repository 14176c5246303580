//! The table of exported functions, and the macro that writes them.

use cudarc::driver::sys::CUresult;

use crate::ffi::CudaResult;

/// An exported function.
pub struct Export {
    pub name: &'static str,
    pub address: *const (),
}

// SAFETY: the address of a function means the same to all threads.
unsafe impl Sync for Export {}

/// All of them, for `cuGetProcAddress`.
#[linkme::distributed_slice]
pub static EXPORTS: [Export];

/// Runs a function's body. The name keeps functions of equal bodies from being merged into one address, which programs would notice.
#[inline(always)]
pub fn enter(name: &'static str, body: impl FnOnce() -> CudaResult) -> CUresult {
    std::hint::black_box(name);
    body().err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Exports functions: `fn name(arguments) { body }`, where the body is that of a function that returns [`Answer`].
/// `fn name [name_ptsz stream] (…)` also exports the form for per-thread default streams, in which the argument `stream` means the
/// calling thread's stream when it is null. `fn name [name_ptds] (…)` exports a second name for the same.
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
        api!(@export $ptsz ($($arg: $type),*) { let $stream = $crate::stream::per_thread_default($stream); $body });
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
