//! Global arrays in PTX text, as ptxas 13.0 and 13.5 lay them out (seen in their cubins), and calls of `malloc`.

use crate::globals::{Globals, LONGEST, MALLOCS};

/// Reads a text that ends with a zero, or after `room` bytes.
///
/// # Safety
/// `bytes` has at least one byte, and `room` bytes or a zero.
pub unsafe fn text_globals(bytes: *const u8, room: usize) -> Globals {
    // SAFETY: the caller's promise.
    unsafe {
        // Anything else than text is unknown, and may not end with a zero.
        if !(*bytes).is_ascii_graphic() && !(*bytes).is_ascii_whitespace() {
            return Globals::UNKNOWN;
        }
        let length = libc::strnlen(bytes.cast(), LONGEST.min(room));
        let globals = globals(core::slice::from_raw_parts(bytes, length));
        Globals { exact: globals.exact && length < LONGEST, ..globals }
    }
}

/// Token of PTX text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// A name, a number, an instruction, a directive, or several directives in a row (`.v4.f32`).
    Word(&'a [u8]),
    /// Any other character.
    Mark(u8),
    /// A text in quotes.
    Quoted,
}

/// Iterator over the tokens of a text; skips comments.
#[derive(Clone, Copy)]
struct Tokens<'a> {
    /// Text that is still to be read.
    rest: &'a [u8],
    /// Whether one of the tokens was a function of [`MALLOCS`].
    mallocs: bool,
}

impl<'a> Tokens<'a> {
    /// Skips `count` bytes.
    fn skip(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
    }

    /// Skips up to the end of the next `what`, or to the end of the text.
    fn skip_past(&mut self, what: &[u8]) {
        let at = self.rest.windows(what.len()).position(|there| there == what);
        self.skip(at.map_or(self.rest.len(), |at| at + what.len()));
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.');
        loop {
            match *self.rest {
                [byte, ..] if byte.is_ascii_whitespace() => self.skip(1),
                [b'/', b'/', ..] => self.skip_past(b"\n"),
                [b'/', b'*', ..] => {
                    self.skip(2);
                    self.skip_past(b"*/");
                }
                [b'"', ..] => {
                    self.skip(1);
                    self.skip_past(b"\"");
                    return Some(Token::Quoted);
                }
                [byte, ..] if is_word(&byte) => {
                    let length = self.rest.iter().take_while(|byte| is_word(byte)).count();
                    let (word, rest) = self.rest.split_at_checked(length)?;
                    self.rest = rest;
                    self.mallocs |= MALLOCS.contains(&word);
                    return Some(Token::Word(word));
                }
                [byte, ..] => {
                    self.skip(1);
                    return Some(Token::Mark(byte));
                }
                [] => return None,
            }
        }
    }
}

/// Returns the directives in a word; none in a name, a number or an instruction.
fn directives(word: &[u8]) -> impl Iterator<Item = &[u8]> {
    let directives = word.strip_prefix(b".").map(|rest| rest.split(|&byte| byte == b'.'));
    directives.into_iter().flatten()
}

/// Arrays of one alignment in one section.
#[derive(Clone, Copy, Default)]
struct Arrays {
    /// Sum of their sizes in bytes, each rounded up to the alignment.
    rounded: u64,
    /// Size of the largest array in bytes.
    largest: u64,
}

/// Section of a cubin for global arrays. ptxas orders them by descending alignment, and those of one alignment by ascending size, so that only
/// the largest is not padded up to its alignment.
#[derive(Clone, Copy, Default)]
struct Section([Arrays; Section::ALIGNMENTS]);

impl Section {
    /// Number of alignments that are distinguished: powers of two up to 2 GiB.
    const ALIGNMENTS: usize = 32;

    /// Adds an array. `None` if the alignment, in bytes, is none that ptxas accepts.
    fn add(&mut self, bytes: u64, alignment: u64) -> Option<()> {
        let arrays = self.0.get_mut(alignment.is_power_of_two().then(|| alignment.ilog2() as usize)?)?;
        arrays.rounded = arrays.rounded.saturating_add(bytes.checked_next_multiple_of(alignment).unwrap_or(u64::MAX));
        arrays.largest = arrays.largest.max(bytes);
        Some(())
    }

    /// Returns the section's size in bytes.
    fn bytes(&self) -> u64 {
        let round = |bytes: u64, log2: usize| bytes.checked_next_multiple_of(1 << log2).unwrap_or(u64::MAX);
        let used = self.0.iter().enumerate().rev().filter(|(_, arrays)| arrays.largest != 0);
        used.fold(0, |end: u64, (log2, arrays)| {
            let unpadded = round(arrays.largest, log2) - arrays.largest;
            round(end, log2).saturating_add(arrays.rounded) - unpadded
        })
    }
}

/// The sections that the arrays of a text are put into.
#[derive(Default)]
struct Sections {
    /// `.nv.global`: arrays without an initial value.
    plain: Section,
    /// `.nv.global.init`: arrays with an initial value.
    initialized: Section,
}

/// Adds up the global arrays that a text declares. An array that is defined elsewhere (`.extern`) counts too if its size is declared.
pub fn globals(text: &[u8]) -> Globals {
    let mut tokens = Tokens { rest: text, mallocs: false };
    let mut globals = Globals::NONE;
    let mut sections = Sections::default();
    let (mut is_ptx, mut is_pointer) = (false, false);
    while let Some(token) = tokens.next() {
        let Token::Word(word) = token else { continue };
        let mut parts = directives(word);
        while let Some(part) = parts.next() {
            is_ptx |= part == b"version";
            // `.ptr .global` describes a kernel's parameter.
            if part == b"global" && !is_pointer {
                globals.exact &= declaration(&mut sections, &mut parts, &mut tokens).is_some();
            }
            is_pointer = part == b"ptr";
        }
    }
    globals.exact &= is_ptx;
    globals.bytes = sections.plain.bytes().saturating_add(sections.initialized.bytes());
    globals.mallocs = tokens.mallocs;
    globals
}

/// Reads a declaration from after `.global` to its end, and adds its arrays to `sections`. `None` if it is not understood.
fn declaration<'a>(sections: &mut Sections, parts: &mut impl Iterator<Item = &'a [u8]>, tokens: &mut Tokens<'a>) -> Option<()> {
    let (mut element, mut vector, mut alignment) = (None, 1, 1);
    let mut specify = |part: &[u8], tokens: &mut Tokens<'a>| {
        match part {
            b"align" => alignment = number(tokens.next()?)?,
            b"v2" => vector = 2,
            b"v4" => vector = 4,
            b"attribute" => while tokens.next()? != Token::Mark(b')') {},
            kind => element = Some(size_of_type(kind)?),
        }
        Some(())
    };
    for part in parts {
        specify(part, tokens)?;
    }
    loop {
        match tokens.next()? {
            Token::Word(word) if word.starts_with(b".") => directives(word).try_for_each(|part| specify(part, tokens))?,
            // The name of the array.
            Token::Word(_) => break,
            _ => return None,
        }
    }
    let element = element?.checked_mul(vector)?;
    let alignment = alignment.max(element).max(1);
    loop {
        let (extents, is_initialized, end) = extents(tokens)?;
        let section = if is_initialized { &mut sections.initialized } else { &mut sections.plain };
        section.add(element.saturating_mul(extents), alignment)?;
        match end {
            b';' => return Some(()),
            b',' if matches!(tokens.next()?, Token::Word(_)) => {}
            _ => return None,
        }
    }
}

/// Returns the number of elements of an array, whether it has an initial value, and the mark after both.
fn extents(tokens: &mut Tokens) -> Option<(u64, bool, u8)> {
    let (mut product, mut is_open) = (1u64, false);
    loop {
        match tokens.next()? {
            Token::Mark(b'[') => match tokens.next()? {
                Token::Mark(b']') => is_open = true,
                extent => {
                    product = product.saturating_mul(number(extent)?);
                    (tokens.next()? == Token::Mark(b']')).then_some(())?;
                }
            },
            Token::Mark(b'=') => {
                let (values, end) = values(tokens)?;
                return Some((if is_open { product.saturating_mul(values) } else { product }, true, end));
            }
            Token::Mark(end @ (b',' | b';')) if !is_open => return Some((product, false, end)),
            _ => return None,
        }
    }
}

/// Returns the number of values at the outermost level of an initial value, and the mark after it.
fn values(tokens: &mut Tokens) -> Option<(u64, u8)> {
    let (mut depth, mut count) = (0u32, 1);
    loop {
        match tokens.next()? {
            Token::Mark(b'{' | b'(') => depth += 1,
            Token::Mark(b'}' | b')') => depth = depth.checked_sub(1)?,
            Token::Mark(end @ (b',' | b';')) if depth == 0 => return Some((count, end)),
            Token::Mark(b',') if depth == 1 => count += 1,
            Token::Mark(b';') => return None,
            _ => {}
        }
    }
}

/// Returns the size of a type in bytes; `None` for an unknown type.
fn size_of_type(name: &[u8]) -> Option<u64> {
    Some(match name {
        b"b8" | b"u8" | b"s8" => 1,
        b"b16" | b"u16" | b"s16" | b"f16" | b"bf16" | b"e4m3x2" | b"e5m2x2" => 2,
        b"b32" | b"u32" | b"s32" | b"f32" | b"tf32" | b"f16x2" | b"bf16x2" => 4,
        b"b64" | b"u64" | b"s64" | b"f64" => 8,
        b"b128" => 16,
        // Handles of textures and surfaces are not global memory.
        b"texref" | b"surfref" | b"samplerref" => 0,
        _ => return None,
    })
}

/// Reads a number in PTX's notation: decimal, hexadecimal, octal, binary.
fn number(token: Token) -> Option<u64> {
    let Token::Word(word) = token else { return None };
    let word = core::str::from_utf8(word.strip_suffix(b"U").unwrap_or(word)).ok()?;
    let (digits, radix) = match word.as_bytes() {
        [b'0', b'x' | b'X', ..] => (word.get(2..)?, 16),
        [b'0', b'b' | b'B', ..] => (word.get(2..)?, 2),
        [b'0', _, ..] => (word.get(1..)?, 8),
        _ => (word, 10),
    };
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(declarations: &str) -> Globals {
        let text =
            format!(".version 8.0\n.target sm_90, debug\n.address_size 64\n{declarations}\n.visible .entry f(.param .u64 p){{ ret; }}");
        globals(text.as_bytes())
    }

    /// The sizes are those of `.nv.global` and `.nv.global.init` in the cubins that ptxas 13.0.88 makes of the same texts.
    #[test]
    fn sizes_match_ptxas() {
        let cases: &[(&str, u64)] = &[
            ("", 0),
            (".global .u32 a[0x10];", 64),
            (".global .u32 a[0X10];", 64),
            (".global .u32 a[010];", 32),
            (".global .u32 a[0b100];", 16),
            (".global .u32 a[16U];", 64),
            (".visible .global .u8 a[010U];", 8),
            (".visible .global .b8 a[0x40000000];", 1 << 30),
            (".global .v4 .f32 a[16];", 256),
            (".global .v4.f32 a[16];", 256),
            (".global .v2 .f16x2 a[4];", 32),
            (".global .v2 .u64 a;", 16),
            (".global .f16 a[8];", 16),
            (".global .f16x2 a[8];", 32),
            (".global .b128 a[4];", 64),
            (".global.u32 a[4];", 16),
            (".global .u32 %a[4];", 16),
            (".global .u32 b[] = {1,2,3};", 12),
            (".global .u32 b[][2] = {{1,2},{3,4},{5,6}};", 24),
            (".global .u32 a[][2] = {{1},{2,3},{}};", 24),
            (".global .align 4 .u32 a[2][3] = {{1,2},{3}};", 24),
            (".global .u32 a[] = {1,2}, c[] = {3};", 12),
            (".global .u32 b[2], c[3];", 20),
            (".global .u32 a = 5, b = 6;", 8),
            (".global .s8 a = -5;", 1),
            (".global .u32 b[4]; .global .u64 a[] = {generic(b), b+4, 0xFF(b)};", 40),
            (".global .f32 a[2] = {0f3f800000, 0F00000000};", 8),
            (".weak .global .b8 a[100];", 100),
            (".common .global .b8 a[100];", 100),
            (".extern .global .b8 a[100];", 100),
            (".global .align 256 .b8 a[1];.global .align 256 .b8 b[1];", 257),
            (".global .align 0x10 .b8 a[3]; .global .align 16 .b8 b[3];", 19),
            (".visible .global .u16 a[3];.visible .global .u64 b;", 14),
            (".global .align 128 .b8 a[90];.global .align 128 .b8 b[12];", 218),
            (".global .align 128 .b8 a[90];.global .align 128 .b8 b[12] = {1};", 102),
            (".global .align 64 .b8 a[90];.global .align 128 .b8 b[12];.global .align 4 .b8 c[3];.global .b8 d[1];.global .u64 e;", 172),
            (".global .align 128 .b8 a[90]={0};.global .align 128 .b8 b[12];.global .b8 c[5];.global .align 128 .b8 d[7];", 235),
            (".global .attribute(.managed) .b8 a[4096];", 4096),
            (".global .texref t;", 0),
            (".const .b8 a[1000];", 0),
            (".global /*x*/ .u32 a /*;*/ [ 4 ];", 16),
            ("// .extern a { ; }\n/* .extern */ .visible .global .align 4 .b8 a[0x1000];", 4096),
            (".file 1 \"a;{.global .b8 no[9]; // \"\n.global .u32 a[1];", 4),
            (".entry k(){ .global .u32 g[100]; ret; }", 400),
            (
                ".entry k(.param .u64 .ptr .global .align 8 p){ .reg .u32 %t; ld.global.u32 %t, [%r1]; st.global.v2.f32 [%r], {%f1, %f2}; ret; }",
                0,
            ),
        ];
        for &(text, bytes) in cases {
            assert_eq!(within(text), Globals { bytes, ..Globals::NONE }, "{text}");
        }
    }

    #[test]
    fn unknown_declarations_make_the_result_inexact() {
        let unclear = [
            ".global .u32 a[4*4];",
            ".global .u32 a[(4)];",
            ".global .u32 a[08];",
            ".global .b8 a[];",
            ".extern .global .b8 a[];",
            ".global .u32 v<10>;",
            ".global .mystery a[4];",
            ".global a[4];",
            ".global .align 3 .b8 a[4];",
            ".global .align 0x100000000 .b8 a[4];",
            ".global .u32 a[4",
            ".global .u32 a[] = {1, 2;",
            ".global .u32 a[4] b[4];",
            "ld .global.u32 %t, [%r1];",
        ];
        for text in unclear {
            assert!(!within(text).exact, "{text}");
        }
        assert_eq!(within(".global .b8 a[99]; .global .b8 b[2*2]; .global .b8 c[1];"), Globals { bytes: 100, ..Globals::UNKNOWN });
        assert!(!globals(b"").exact && !globals(b"what is this?").exact);
    }

    #[test]
    fn malloc_is_found_by_its_name() {
        let declared = ".extern .func (.param .b64 r) malloc (.param .b64 s);";
        for (text, mallocs) in [
            (declared, true),
            (".entry g(){ call.uni (r), malloc, (s); ret; }", true),
            (".global .u64 f[] = {malloc};", true),
            (".extern .func (.param .b64 r) __cuda_syscall_aligned_malloc (.param .b64 s, .param .b64 t);", true),
            ("// malloc\n.file 1 \"malloc\"", false),
            (".extern .func free (.param .b64 malloc_param_0);", false),
            (".func (.param .b64 r) my_malloc (.param .b64 s);", false),
        ] {
            assert_eq!(within(text).mallocs, mallocs, "{text}");
        }
        assert!(within(&format!(".global .u32 a[4*4];\n{declared}")).mallocs, "also in a text that is not understood");
    }

    #[test]
    fn truncated_text_is_read_to_its_end() {
        for text in ["/*", "//", "\"", ".", "..", ".global", ".global .b8 a[18446744073709551615][9]; /* ", "\u{fffd}.global .b8 é;"] {
            for end in 0..=text.len() {
                globals(&text.as_bytes()[..end]);
            }
        }
        let most = within(".global .b64 a[0xffffffffffffffff]; .global .b8 b[4];");
        assert_eq!(most.bytes, u64::MAX);
    }
}
