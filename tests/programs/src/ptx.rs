//! Kernels, as PTX for every GPU from sm_70 on.

/// `spin(u64 ns)` keeps the GPU busy for that time; `empty()` does nothing.
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

/// A module with 64 MiB of globals, `empty()`, and `deep(u64 out)`, whose threads have 16 KiB of local memory each.
pub const EXTRAS: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 8 .b8 big[67108864];
.visible .entry empty()
{
    ret;
}
.visible .entry deep(.param .u64 out)
{
    .local .align 8 .b8 own[16384];
    .reg .u64 %out, %at, %base, %value;
    .reg .u32 %thread;
    ld.param.u64 %out, [out];
    mov.u32 %thread, %tid.x;
    cvt.u64.u32 %at, %thread;
    mov.u64 %base, own;
    and.b64 %at, %at, 2047;
    shl.b64 %at, %at, 3;
    add.u64 %base, %base, %at;
    st.local.u64 [%base], %out;
    ld.local.u64 %value, [own+128];
    st.global.u64 [%out], %value;
    ret;
}
\0";

/// `take()` calls `malloc` on the GPU.
pub const MALLOC: &str = "\
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 result) malloc (.param .b64 bytes);
.visible .global .align 8 .u64 kept;
.visible .entry take()
{
    .reg .b64 %bytes, %address;
    mov.u64 %bytes, 64;
    {
        .param .b64 argument;
        st.param.b64 [argument], %bytes;
        .param .b64 returned;
        call.uni (returned), malloc, (argument);
        ld.param.b64 %address, [returned];
    }
    st.global.u64 [kept], %address;
    ret;
}
";

/// `say()` calls `vprintf` on the GPU, with an empty text.
pub const PRINTF: &str = "\
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 result) vprintf (.param .b64 text, .param .b64 values);
.visible .global .align 8 .b8 text[8];
.visible .entry say()
{
    .reg .b64 %text, %values;
    .reg .b32 %count;
    mov.u64 %text, text;
    cvta.global.u64 %text, %text;
    mov.u64 %values, 0;
    {
        .param .b64 format;
        st.param.b64 [format], %text;
        .param .b64 list;
        st.param.b64 [list], %values;
        .param .b32 returned;
        call.uni (returned), vprintf, (format, list);
        ld.param.b32 %count, [returned];
    }
    ret;
}
";

/// Returns PTX of `deep(u64 out)`, whose threads have `bytes` bytes of local memory each; at least 256.
#[must_use]
pub fn local(bytes: usize) -> String {
    EXTRAS
        .trim_end_matches('\0')
        .replace(".visible .global .align 8 .b8 big[67108864];\n", "")
        .replace("own[16384]", &format!("own[{bytes}]"))
        .replace("2047;", "31;")
}

/// Returns PTX of `empty()` and a global array of `bytes` bytes.
///
/// # Panics
/// Never: the text contains no zero byte.
#[must_use]
pub fn array(bytes: usize) -> std::ffi::CString {
    let text = format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 big[{bytes}];\n.visible .entry empty()\n{{\n    ret;\n}}\n"
    );
    std::ffi::CString::new(text).expect("the text contains no zero byte")
}

/// Returns PTX of the same array, declared in a less common syntax. `bytes` is a multiple of 16.
///
/// # Panics
/// Never: the text contains no zero byte.
#[must_use]
pub fn vectors(bytes: usize) -> std::ffi::CString {
    let text = array(0).to_string_lossy().replace(".align 8 .b8 big[0]", &format!("// .extern\n.align 16 .v4 .f32 big[{:#x}]", bytes / 16));
    std::ffi::CString::new(text).expect("the text contains no zero byte")
}
