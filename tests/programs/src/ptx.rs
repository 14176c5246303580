//! Kernels, as PTX that any GPU since sm_70 runs.

/// `spin(u64 ns)` keeps the GPU busy that long; `empty()` does nothing.
pub const SPIN: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns)
{
    .reg .u64 %start, %now, %wanted;
    .reg .pred %early;
    ld.param.u64 %wanted, [ns];
    mov.u64 %start, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, %wanted;
    @%early bra again;
    ret;
}
.visible .entry empty()
{
    ret;
}
\0";
