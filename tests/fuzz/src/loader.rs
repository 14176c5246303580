//! The tables of a loaded library, as an image's author may have written them, in the library's look-up of functions and relocations.
//!
//! What the dynamic loader itself has followed is well-formed: tables are in mapped memory, names end, indices are within their tables. All
//! else is arbitrary: names, kinds, duplicates, buckets, the order of the tables, which of them there are, what the words contain.

use core::ffi::{CStr, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;
use std::cell::RefCell;
use std::ptr::null_mut;

use arbitrary::{Arbitrary, Unstructured};

#[expect(dead_code, reason = "the target uses a part of the library's file")]
#[path = "../../../preload/src/loader/elf.rs"]
mod elf;
#[cfg_attr(not(test), expect(dead_code, reason = "the target uses a part of the library's file"))]
#[path = "../../../preload/src/loader/relocations.rs"]
mod relocations;

use relocations::{BOUND_AT_ONCE, BOUND_LATE, Search};

/// The function that is looked up. The C library has it, too.
const NAME: &CStr = c"getppid";
/// String table: names that are equal, that begin equally, and that end equally.
const STRINGS: &[u8] = b"\0getppid\0getpid\0xgetppid\0getppidx\0\0getppid\0abcd\0";
/// The function that is called instead.
const HOOK: usize = 0x10;
/// Room of an object in bytes.
const ROOM: usize = 1 << 16;
/// Words of an object that relocations fill.
const WORDS: usize = 8;
/// `STT_FUNC`.
const FUNCTION: u8 = 2;

/// Symbol: place of its name, kind, section (0: not defined), value.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Symbol(u8, u8, bool, u16);

/// Relocation: index of the symbol, kind, index of the word.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Relocation(u8, u8, u8);

/// Object.
#[derive(Arbitrary, Debug)]
struct Object {
    symbols: Vec<Symbol>,
    buckets: u8,
    filter: u8,
    has_gnu_hash: bool,
    has_hash: bool,
    /// Whether the addresses in the dynamic section are relocated.
    is_relocated: bool,
    late: Vec<Relocation>,
    at_once: Vec<Relocation>,
    words: [u8; WORDS],
    /// Entries of the dynamic section that mean something else.
    other: Vec<(u8, u64)>,
    order: u8,
}

impl Symbol {
    fn name(self) -> &'static CStr {
        let rest = STRINGS.get(usize::from(self.0) % STRINGS.len()..).unwrap_or_default();
        CStr::from_bytes_until_nul(rest).expect("names end")
    }

    fn kind(self) -> u8 {
        // Half of the symbols are functions.
        if self.1 & 1 == 0 { FUNCTION } else { self.1 }
    }

    fn is_wanted(self) -> bool {
        self.name() == NAME && self.kind() & 0xf == FUNCTION && self.2
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes = ((usize::from(self.0) % STRINGS.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend([self.kind(), 0, u8::from(self.2), 0]);
        bytes.extend(u64::from(self.3).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes
    }

    fn hash(self) -> u32 {
        self.name().to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
    }
}

/// Memory for an object, which ends at a page that cannot be read.
struct Memory(usize);

impl Memory {
    fn new() -> Self {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice; its last page is used by nothing else.
        unsafe {
            let memory = libc::mmap(null_mut(), ROOM + 4096, protection, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::mprotect(memory.byte_add(ROOM), 4096, libc::PROT_NONE), 0);
            Self(memory as usize)
        }
    }
}

/// Tables of an object: their tags in the dynamic section, and their contents. The dynamic section itself has no tag.
type Tables = Vec<(Option<i64>, Vec<u8>)>;

/// Tags of the dynamic section.
const HASH: i64 = 4;
const STRTAB: i64 = 5;
const SYMTAB: i64 = 6;
const RELA: i64 = 7;
const RELASZ: i64 = 8;
const PLTRELSZ: i64 = 2;
const JMPREL: i64 = 23;
const GNU_HASH: i64 = 0x6fff_fef5;

impl Object {
    /// Sorts the symbols as the GNU hash table requires it: those that are not defined first, then by bucket.
    fn sort(&mut self) {
        self.symbols.truncate(64);
        self.symbols.insert(0, Symbol(0, 1, false, 0));
        let buckets = self.buckets();
        self.symbols.sort_by_key(|symbol| (symbol.2, if symbol.2 { symbol.hash() % buckets } else { 0 }));
    }

    fn buckets(&self) -> u32 {
        u32::from(self.buckets % 16).max(1)
    }

    fn gnu_hash(&self) -> Vec<u8> {
        let (buckets, filter) = (self.buckets(), u32::from(self.filter % 4));
        let first = self.symbols.iter().position(|symbol| symbol.2).unwrap_or(self.symbols.len());
        let mut words = vec![buckets, first as u32, filter, 0];
        words.extend(std::iter::repeat_n(u32::MAX, filter as usize * 2));
        let bucket = |symbol: &Symbol| symbol.hash() % buckets;
        let begin = |wanted| self.symbols.iter().position(|symbol| symbol.2 && bucket(symbol) == wanted).unwrap_or(0);
        words.extend((0..buckets).map(|wanted| begin(wanted) as u32));
        let defined = &self.symbols[first..];
        words.extend(defined.iter().enumerate().map(|(index, symbol)| {
            let is_last = defined.get(index + 1).is_none_or(|next| bucket(next) != bucket(symbol));
            symbol.hash() & !1 | u32::from(is_last)
        }));
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Returns the symbol's index, the kind and the word of a relocation.
    fn resolve(&self, relocation: Relocation) -> (usize, u32, usize) {
        let kinds = [BOUND_LATE, BOUND_AT_ONCE[0], BOUND_AT_ONCE[1], 37];
        let kind = kinds[usize::from(relocation.1) % kinds.len()];
        (usize::from(relocation.0) % self.symbols.len(), kind, usize::from(relocation.2) % WORDS)
    }

    fn relocations(&self, list: &[Relocation], words_at: usize) -> Vec<u8> {
        let entry = |relocation: &Relocation| {
            let (symbol, kind, word) = self.resolve(*relocation);
            [(words_at + word * 8) as u64, (symbol as u64) << 32 | u64::from(kind), 0]
        };
        list.iter().flat_map(entry).flat_map(u64::to_ne_bytes).collect()
    }

    /// Returns the contents of the words: null, the hook, an address in the object, one elsewhere.
    fn words(&self, base: usize) -> [usize; WORDS] {
        self.words.map(|word| match word % 4 {
            0 => 0,
            1 => HOOK,
            2 => base + usize::from(word),
            _ => 0x1000 + usize::from(word),
        })
    }

    fn tables(&self, words_at: usize) -> Tables {
        let symbols = self.symbols.iter().flat_map(|symbol| symbol.bytes()).collect();
        let mut tables = vec![
            (Some(STRTAB), STRINGS.to_vec()),
            (Some(SYMTAB), symbols),
            (Some(RELA), self.relocations(&self.at_once, words_at)),
            (Some(JMPREL), self.relocations(&self.late, words_at)),
        ];
        if self.has_gnu_hash {
            tables.push((Some(GNU_HASH), self.gnu_hash()));
        }
        if self.has_hash {
            tables.push((Some(HASH), [1, self.symbols.len() as u32].map(u32::to_ne_bytes).concat()));
        }
        // The dynamic section: two words for each entry, and two that end it.
        tables.push((None, vec![0; 16 * (tables.len() + 2 + self.other.len() + 1)]));
        let count = tables.len();
        tables.rotate_left(usize::from(self.order) % count);
        tables
    }
}

/// Looks up a function in an object, and redirects its calls. Asserts that the function is the one that the tables name, and that exactly
/// the words of its relocations change.
pub fn loader(data: &[u8]) {
    thread_local! {
        static MEMORY: RefCell<Memory> = RefCell::new(Memory::new());
    }
    let Ok(mut object) = Object::arbitrary(&mut Unstructured::new(data)) else { return };
    object.sort();
    for list in [&mut object.late, &mut object.at_once] {
        list.truncate(64);
    }
    object.other.truncate(8);
    MEMORY.with_borrow(|memory| load(&object, memory.0));
}

/// Puts an object into memory at `base`, and examines it.
fn load(object: &Object, base: usize) {
    let mut tables = object.tables(0);
    let size: usize = tables.iter().map(|(_, content)| content.len().next_multiple_of(8)).sum();
    let words_at = ROOM - size - WORDS * 8;
    tables = object.tables(words_at);
    let shift = if object.is_relocated { base } else { 0 };
    let (mut entries, mut dynamic) = (Vec::<[u64; 2]>::new(), 0);
    entries.extend(object.other.iter().map(|(tag, value)| [0x6000_0000 + u64::from(*tag), *value]));
    entries.extend([[RELASZ as u64, object.at_once.len() as u64 * 24], [PLTRELSZ as u64, object.late.len() as u64 * 24]]);
    let mut at = words_at + WORDS * 8;
    let write = |at: usize, content: &[u8]| {
        // SAFETY: all tables are within the object's room.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), (base + at) as *mut u8, content.len()) };
    };
    for (tag, content) in &tables {
        match tag {
            Some(tag) => entries.push([*tag as u64, (shift + at) as u64]),
            None => dynamic = at,
        }
        write(at, content);
        at += content.len().next_multiple_of(8);
    }
    entries.push([0, 0]);
    write(dynamic, &entries.as_flattened().iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>());
    let words = object.words(base);
    write(words_at, &words.map(usize::to_ne_bytes).concat());
    let headers = [header(libc::PT_LOAD, 0, ROOM), header(libc::PT_DYNAMIC, dynamic, 0)];
    // SAFETY: all-zero is a valid description; what the library reads of it is set.
    let mut info: libc::dl_phdr_info = unsafe { std::mem::zeroed() };
    (info.dlpi_addr, info.dlpi_phdr, info.dlpi_phnum) = (base as u64, headers.as_ptr(), headers.len() as u16);
    check_look_up(object, base, &info);
    check_redirection(object, base, words_at, words, &info);
}

fn header(kind: u32, at: usize, size: usize) -> libc::Elf64_Phdr {
    let (at, size) = (at as u64, size as u64);
    libc::Elf64_Phdr { p_type: kind, p_flags: 0, p_offset: 0, p_vaddr: at, p_paddr: at, p_filesz: size, p_memsz: size, p_align: 8 }
}

/// Compares the look-up with the list of symbols.
fn check_look_up(object: &Object, base: usize, info: &libc::dl_phdr_info) {
    // SAFETY: the object is in memory as the loader would have put it there.
    let found = unsafe { elf::find(info, NAME) };
    let first = object.symbols.iter().find(|symbol| symbol.is_wanted());
    let expected = first.filter(|_| object.has_gnu_hash || object.has_hash).map_or(0, |symbol| base + usize::from(symbol.3));
    assert_eq!(found as usize, expected, "{object:?}");
}

/// Compares the words after a redirection with what the relocations say.
fn check_redirection(object: &Object, base: usize, words_at: usize, mut words: [usize; WORDS], info: &libc::dl_phdr_info) {
    let original = AtomicPtr::new(null_mut());
    // SAFETY: as above; the words are the object's and aligned.
    unsafe { Search { within: base, name: NAME, function: HOOK as *mut c_void, original: &original }.replace_all(info) };
    let mut called = 0;
    for relocation in object.at_once.iter().chain(&object.late) {
        let (symbol, kind, word) = object.resolve(*relocation);
        let is_call = kind == BOUND_LATE || BOUND_AT_ONCE.contains(&kind);
        if !is_call || object.symbols[symbol].name() != NAME || [0, HOOK].contains(&words[word]) {
            continue;
        }
        let is_unbound = kind == BOUND_LATE && (base..base + ROOM).contains(&words[word]);
        let function = if is_unbound { elf::in_libc(NAME) as usize } else { words[word] };
        called = if called == 0 { function } else { called };
        words[word] = HOOK;
    }
    // SAFETY: the words are within the object's room.
    let found = unsafe { *((base + words_at) as *const [usize; WORDS]) };
    assert_eq!((found, original.load(Relaxed) as usize), (words, called), "{object:?}");
}
