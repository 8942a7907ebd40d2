//! Hides what this process was started with. Takes the secret variables and words; afterwards the system shows them to
//! no other process (`/proc/PID/environ`, `/proc/PID/cmdline`), and this one still knows them.
//!
//! A process's start arguments lie in its own memory, and the system shows that memory as it is now. So variables are
//! copied elsewhere and overwritten there. Only we and root can read that memory.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, c_char};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Replaces a word that must not be seen.
const CONCEALED: u8 = b'x';

/// Lets no process of the same user read this one's memory, descriptors or environment, and leaves no core behind. Holds
/// until another program takes its place.
pub fn keep_memory() {
    // It cannot fail for this value.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Hides the variables of which this is true, by name and value. They can be read by this process as before. To be called
/// while no other thread reads or changes the environment.
pub fn hide_variables(is_secret: &dyn Fn(&OsStr, &OsStr) -> bool) {
    let Some(Blocks { variables, .. }) = Blocks::find() else { return };
    let mut at = 0;
    loop {
        // SAFETY: `environ` is null, or an array that ends with a null pointer, of strings that end with a NUL; no other
        // thread changes it, says the caller.
        let entry = unsafe {
            if environ.is_null() {
                return;
            }
            environ.add(at)
        };
        // SAFETY: within the array, as above.
        let text = unsafe { *entry };
        if text.is_null() {
            return;
        }
        at += 1;
        // SAFETY: as above.
        let whole = unsafe { CStr::from_ptr(text) };
        let bytes = whole.to_bytes();
        let Some(mark) = bytes.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = (OsStr::from_bytes(&bytes[..mark]), OsStr::from_bytes(&bytes[mark + 1..]));
        if !variables.contains(&text.addr()) || !is_secret(name, value) {
            continue;
        }
        let (from, length) = (text.wrapping_add(mark + 1), value.len());
        // Kept for as long as the process lives, like the one it stands for.
        let copy = CString::from(whole).into_raw();
        // SAFETY: the entry is one pointer of the array, and the copy is never given back. Nothing refers to the old
        // text any more but the system, which reads it as bytes; what is overwritten is its value, without the NUL.
        unsafe {
            *entry = copy;
            std::ptr::write_bytes(from, 0, length);
        }
    }
}

/// Overwrites secrets in the words that this process was started with. They are read before.
pub fn hide_words<'a>(secrets: impl IntoIterator<Item = &'a [u8]>) {
    let Some(Blocks { words, .. }) = Blocks::find() else { return };
    let block: *mut u8 = std::ptr::with_exposed_provenance_mut(words.start);
    // SAFETY: the system says that the words are there; they belong to this process, can be written, and stay. Words that
    // the standard library hands out are copies, so nothing else refers to them.
    let block = unsafe { std::slice::from_raw_parts_mut(block, words.len()) };
    for secret in secrets.into_iter().filter(|secret| !secret.is_empty()) {
        while let Some(at) = block.windows(secret.len()).position(|part| part == secret) {
            block[at..at + secret.len()].fill(CONCEALED);
            // A secret of these letters only would be found again for ever.
            if secret.iter().all(|byte| *byte == CONCEALED) {
                break;
            }
        }
    }
}

/// The places in memory of this process's start arguments and variables.
struct Blocks {
    words: Range<usize>,
    variables: Range<usize>,
}

impl Blocks {
    fn find() -> Option<Self> {
        // The fields after the name, which may contain anything: the first of them is the third.
        const FIRST: usize = 3;
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - FIRST)?.parse::<usize>().ok().filter(|at| *at > 0);
        Some(Self { words: field(48)?..field(49)?, variables: field(50)?..field(51)? })
    }
}
