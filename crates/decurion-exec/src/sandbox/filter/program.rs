//! A system call filter as a program for the kernel. Takes which calls it answers itself, and for which arguments; gives
//! its instructions.
//!
//! When a filter is installed, which each command does, the kernel translates it and runs it for every call that it
//! has, to learn which are always allowed. So the program is short, and finds a number by halves.

use std::collections::BTreeMap;

use libc::{c_int, c_long, sock_filter};

pub(crate) type FilterProgram = Vec<sock_filter>;

/// What the filter answers to a call instead of the kernel: an error, or with 0 that it succeeded.
pub(super) enum FilterAnswer {
    Always(c_int),
    /// By the first case that holds. If none does, the call is made.
    When(Vec<Case>),
}

/// What is answered if all tests hold.
pub(super) struct Case {
    pub errno: c_int,
    pub tests: Vec<Test>,
}

/// A test of an argument, by its place. All but the last look at its lower 32 bits.
pub(super) enum Test {
    Is(u32, u32),
    Not(u32, u32),
    /// With this mask it is this value.
    Masked(u32, u32, u32),
    /// One of these bits is set.
    Any(u32, u32),
    /// It is not zero.
    NotNull(u32),
}

// What the kernel calls BPF_LD | BPF_W | BPF_ABS, and so on.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

// Where a call's number, its architecture and its first argument are.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

const ALLOW: u32 = 0x7FFF_0000;
const KILL: u32 = 0x8000_0000;
const ERROR: u32 = 0x0005_0000;
/// 64-bit x86 kernels may offer a second numbering of calls from here on, which is in no list.
const SECOND_NUMBERING: u32 = 0x4000_0000;
/// How many numbers are compared one after the other.
const ABREAST: usize = 8;

/// The program. `None` where the architecture is not known.
pub(super) fn make(answers: &BTreeMap<c_long, FilterAnswer>) -> Option<FilterProgram> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => 0xC000_003E,
        "aarch64" => 0xC000_00B7,
        "riscv64" => 0xC000_00F3,
        _ => return None,
    };
    let start = [
        step(LOAD, ARCHITECTURE),
        branch(IF_EQUAL, architecture, 1, 0),
        step(RETURN, KILL),
        step(LOAD, NUMBER),
        branch(IF_AT_LEAST, SECOND_NUMBERING, 0, 1),
        error(libc::EPERM),
    ];
    let calls: Option<Vec<(u32, &FilterAnswer)>> =
        answers.iter().map(|(call, answer)| Some((u32::try_from(*call).ok()?, answer))).collect();
    Some(start.into_iter().chain(search(&parts(&calls?))?).collect())
}

/// Calls that are answered in one piece, by their first number.
struct CallRange {
    first: u32,
    program: FilterProgram,
}

/// The calls, in the order of their numbers. One that depends on its arguments is a part for itself.
fn parts(calls: &[(u32, &FilterAnswer)]) -> Vec<CallRange> {
    let alike = |(_, one): &(u32, &FilterAnswer), (_, other): &(u32, &FilterAnswer)| matches!((one, other), (FilterAnswer::Always(one), FilterAnswer::Always(other)) if one == other);
    let pieces = calls.chunk_by(alike).flat_map(|alike| alike.chunks(ABREAST));
    pieces.filter_map(|piece| Some(CallRange { first: piece.first()?.0, program: answer(piece) })).collect()
}

/// Finds the part of the number that is loaded.
fn search(parts: &[CallRange]) -> Option<FilterProgram> {
    if let [part] = parts {
        return Some(part.program.clone());
    }
    let (lower, upper) = parts.split_at(parts.len() / 2);
    let middle = upper.first()?.first;
    let (lower, upper) = (search(lower)?, search(upper)?);
    let choose = match u8::try_from(lower.len()) {
        Ok(skip) => vec![branch(IF_AT_LEAST, middle, skip, 0)],
        Err(_) => {
            vec![branch(IF_AT_LEAST, middle, 0, 1), step(JUMP, u32::try_from(lower.len()).ok()?)]
        }
    };
    Some(choose.into_iter().chain(lower).chain(upper).collect())
}

/// Answers calls whose numbers are here, which have one answer, and allows others.
fn answer(calls: &[(u32, &FilterAnswer)]) -> FilterProgram {
    let allow = step(RETURN, ALLOW);
    match calls.first() {
        None => vec![allow],
        Some((_, FilterAnswer::Always(errno))) => {
            // To the last instruction, over the other numbers and the one that allows.
            let skip = |at: usize| distance(calls.len() - at);
            let numbers = calls.iter().enumerate();
            let numbers = numbers.map(|(at, (number, _))| branch(IF_EQUAL, *number, skip(at), 0));
            numbers.chain([allow, error(*errno)]).collect()
        }
        Some((number, FilterAnswer::When(cases))) => {
            let cases: FilterProgram = cases.iter().flat_map(case).collect();
            let first = branch(IF_EQUAL, *number, 0, distance(cases.len()));
            [first].into_iter().chain(cases).chain([allow]).collect()
        }
    }
}

/// Answers if all tests hold, else continues after it.
fn case(case: &Case) -> FilterProgram {
    let all = |rest: FilterProgram, test: &Test| {
        test.before(distance(rest.len())).into_iter().chain(rest).collect()
    };
    case.tests.iter().rev().fold(vec![error(case.errno)], all)
}

impl Test {
    /// Continues if it holds, else skips so many instructions.
    fn before(&self, skip: u8) -> FilterProgram {
        let load = |argument: u32| step(LOAD, ARGUMENTS + argument * 8);
        match *self {
            Self::Is(argument, value) => vec![load(argument), branch(IF_EQUAL, value, 0, skip)],
            Self::Not(argument, value) => vec![load(argument), branch(IF_EQUAL, value, skip, 0)],
            Self::Masked(argument, mask, value) => {
                vec![load(argument), step(AND, mask), branch(IF_EQUAL, value, 0, skip)]
            }
            Self::Any(argument, bits) => vec![load(argument), branch(IF_ANY_BIT, bits, 0, skip)],
            Self::NotNull(argument) => vec![
                load(argument),
                branch(IF_EQUAL, 0, 0, 2),
                step(LOAD, ARGUMENTS + argument * 8 + 4),
                branch(IF_EQUAL, 0, skip, 0),
            ],
        }
    }
}

fn step(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn error(errno: c_int) -> sock_filter {
    step(RETURN, ERROR | errno.cast_unsigned())
}

/// What a branch skips. Parts are far shorter than the most that is possible, as the test shows.
fn distance(instructions: usize) -> u8 {
    u8::try_from(instructions).unwrap_or(u8::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const ALLOWED: u32 = ALLOW;

    pub fn answered(errno: c_int) -> u32 {
        ERROR | errno.cast_unsigned()
    }

    /// What the kernel answers to a call by this program, and after how many instructions.
    pub fn run(program: &FilterProgram, number: u32, arguments: [u64; 6]) -> (u32, usize) {
        let architecture = program[1].k;
        let load = |place: u32| match place {
            NUMBER => number,
            ARCHITECTURE => architecture,
            place => {
                let argument = arguments[(place - ARGUMENTS) as usize / 8];
                u32::try_from(argument >> ((place - ARGUMENTS) % 8 * 8) & u64::from(u32::MAX)).unwrap()
            }
        };
        let (mut at, mut loaded) = (0, 0);
        for steps in 1.. {
            let sock_filter { code, jt, jf, k } = program[at];
            let holds = match code {
                LOAD => {
                    loaded = load(k);
                    true
                }
                AND => {
                    loaded &= k;
                    true
                }
                JUMP => {
                    at += k as usize;
                    true
                }
                IF_EQUAL => loaded == k,
                IF_AT_LEAST => loaded >= k,
                IF_ANY_BIT => loaded & k != 0,
                RETURN => return (k, steps),
                _ => unreachable!("{code}"),
            };
            at += 1 + usize::from(if holds { jt } else { jf });
        }
        unreachable!()
    }

    #[test]
    fn calls_are_answered_as_they_are_listed() {
        // Many, with gaps of all sizes, so that parts are reached over long distances.
        let listed = |number: u32| (number * number) % 7 < 3 && number < 900;
        let mut answers: BTreeMap<c_long, FilterAnswer> = (0..1000)
            .filter(|number| listed(*number))
            .map(|number| (number.into(), FilterAnswer::Always(if number % 90 < 5 { 38 } else { 1 })))
            .collect();
        let cases = [
            (1, vec![Test::Is(0, 7), Test::Not(1, 8)]),
            (1, vec![Test::Masked(1, 0xF, 3), Test::Any(2, 0b110)]),
            (1, vec![Test::Is(3, 9), Test::NotNull(4)]),
            (0, vec![Test::Is(0, 5)]),
        ];
        let cases = cases.map(|(errno, tests)| Case { errno, tests });
        answers.insert(950, FilterAnswer::When(cases.into()));
        let program = make(&answers).unwrap();
        assert!(program.len() > 256);
        for number in (0..1000).filter(|number| *number != 950) {
            let answer = match answers.get(&c_long::from(number)) {
                Some(FilterAnswer::Always(errno)) => ERROR | errno.cast_unsigned(),
                _ => ALLOW,
            };
            assert_eq!(run(&program, number, [0; 6]).0, answer, "{number}");
        }
        let (refuse, whole) = (ERROR | 1, 1 << 32);
        for (arguments, answer) in [
            ([0, 0, 0, 0, 0, 0], ALLOW),
            ([7, 9, 0, 0, 0, 0], refuse),
            ([whole | 7, 9, 0, 0, 0, 0], refuse),
            ([7, 8, 0, 0, 0, 0], ALLOW),
            ([0, 0x13, 4, 0, 0, 0], refuse),
            ([0, 0x13, 1, 0, 0, 0], ALLOW),
            ([0, 0x14, 4, 0, 0, 0], ALLOW),
            ([0, 0, 0, 9, 0, 0], ALLOW),
            ([0, 0, 0, 9, 1, 0], refuse),
            ([0, 0, 0, 9, whole, 0], refuse),
            ([5, 0, 0, 0, 0, 0], ERROR),
            ([5, 3, 4, 0, 0, 0], refuse),
        ] {
            assert_eq!(run(&program, 950, arguments).0, answer, "{arguments:?}");
        }
        assert_eq!(run(&program, SECOND_NUMBERING + 999, [0; 6]).0, refuse);
    }
}
