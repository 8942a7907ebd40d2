//! The bytes between Decurion, the guard and its reapers: a [`Launch`] in, a blob out and back into a
//! [`WireRequest`]; and the eight-byte [`ReaperReport`]s and [`ReaperOrder`]s of a running command. Pure.
//!
//! Not JSON, because arguments are bytes and not text, and because the reaper can point the kernel at the
//! strings where they lie.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::launch::{Launch, LaunchError, Limit};
use crate::sandbox::Sandbox;

/// Spoken first by the guard and at the head of every request; changes with any change in this file.
pub(crate) const VERSION: u8 = 4;
/// More than any system takes as arguments and environment together.
pub(crate) const MAX_REQUEST: usize = 8 << 20;
/// Bytes before the strings of a request.
pub(crate) const HEADER: usize = 52;
/// Bytes of a report and of an order.
pub(crate) const FRAME: usize = 8;

/// Settings of the command that are numbers. `None` leaves what the guard inherited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaunchNumbers {
    pub umask: Option<u32>,
    pub open_files: Option<u64>,
    pub processes: Option<u64>,
    pub file_bytes: Option<u64>,
    /// Whether `bwrap` makes its sandbox.
    pub bubblewrap: bool,
}

/// A launch as the reaper holds it: offsets into the blob it arrived in.
#[derive(Debug)]
pub(crate) struct WireRequest {
    pub numbers: LaunchNumbers,
    blob: Vec<u8>,
    /// Where each string starts: program, directory, then arguments, then environment.
    starts: Vec<usize>,
    arguments: usize,
    /// Where the strings end and the sandbox begins, if there is one.
    sandbox: Option<usize>,
}

/// Where a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartStage {
    Request,
    Fork,
    Setup,
    Directory,
    Program,
    /// The files that a sandboxed command sees; the error's number comes with that of a path, see [`path_error`].
    Mounts,
    /// The other restrictions of a sandboxed command.
    Restrictions,
}

/// What a reaper says about its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaperReport {
    /// It runs, with this process id.
    Started(i32),
    Failed(StartStage, i32),
    /// It ended by itself; `clean` if it left nothing behind, else [`ReaperReport::Swept`] follows.
    Exited {
        code: i32,
        clean: bool,
    },
    /// It was ended by a signal.
    Signalled {
        signal: i32,
        clean: bool,
    },
    /// It used more than it may.
    OverLimit {
        limit: Limit,
        clean: bool,
    },
    /// It was ended because the guard was lost.
    Unknown,
    /// Nothing of it is left.
    Swept,
}

/// What Decurion tells a reaper. The end of the stream means "end everything now".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaperOrder {
    /// Ask the command to end, and end everything after this time.
    Stop(Duration),
}

/// The blob for a launch.
pub(crate) fn encode(launch: &Launch, numbers: LaunchNumbers) -> Result<Vec<u8>, LaunchError> {
    let mut blob = Vec::with_capacity(4096);
    blob.resize(HEADER, 0);
    push(&mut blob, &launch.program, || "the program's name".to_owned())?;
    push(&mut blob, launch.cwd.as_os_str(), || "the working directory".to_owned())?;
    for (index, argument) in launch.args.iter().enumerate() {
        push(&mut blob, argument, || format!("argument {}", index + 1))?;
    }
    for (name, value) in &launch.env {
        if name.is_empty() || name.as_bytes().iter().any(|byte| matches!(byte, b'=' | 0)) {
            return Err(LaunchError::Unpassable { what: format!("environment name {}", shown(name)) });
        }
        blob.extend_from_slice(name.as_bytes());
        blob.push(b'=');
        push(&mut blob, value, || format!("the value of environment variable {}", shown(name)))?;
    }
    let strings = blob.len();
    if let Some(sandbox) = &launch.sandbox {
        push_sandbox(&mut blob, sandbox)?;
    }
    if blob.len() > MAX_REQUEST {
        return Err(LaunchError::TooLarge { bytes: blob.len() });
    }
    write_header(&mut blob, launch, numbers, strings);
    Ok(blob)
}

const WRITABLE: u8 = b'w';
const ONLY_READ: u8 = b'r';
const LINK: u8 = b'l';
const HIDDEN: u8 = b'h';
const VISIBLE: u8 = b'v';
const TEMPORARY: u8 = b't';
const SHOWN_TEMPORARY: u8 = b's';
const NETWORK: u8 = b'n';
const UNIX_SOCKETS: u8 = b'u';
const SEES_MACHINE: u8 = b'm';
const BUBBLEWRAP: u32 = 1;

/// The paths of a sandbox, each with its kind.
fn entries(sandbox: &Sandbox) -> impl Iterator<Item = (u8, &PathBuf)> {
    let kind = |kind: u8| move |path| (kind, path);
    (sandbox.writable.iter().map(kind(WRITABLE)))
        .chain(sandbox.read_only.iter().map(kind(ONLY_READ)))
        .chain(sandbox.links.iter().map(kind(LINK)))
        .chain(sandbox.hidden.iter().map(kind(HIDDEN)))
        .chain(sandbox.visible.iter().map(kind(VISIBLE)))
        .chain(sandbox.tmp.iter().map(kind(TEMPORARY)))
        .chain(sandbox.shown_tmp.iter().map(kind(SHOWN_TEMPORARY)))
}

/// Equal sandboxes become equal bytes.
fn push_sandbox(blob: &mut Vec<u8>, sandbox: &Sandbox) -> Result<(), LaunchError> {
    for (kind, path) in entries(sandbox) {
        blob.push(kind);
        push(blob, path.as_os_str(), || format!("the sandbox's path {}", shown(path.as_os_str())))?;
    }
    let allowed = [
        (NETWORK, sandbox.network),
        (UNIX_SOCKETS, sandbox.unix_sockets),
        (SEES_MACHINE, sandbox.sees_machine),
    ];
    blob.extend(allowed.iter().filter(|(_, set)| *set).flat_map(|(kind, _)| [*kind, 0]));
    Ok(())
}

/// The sandbox that became these bytes.
fn sandbox_of(bytes: &[u8]) -> Option<Sandbox> {
    let mut sandbox = Sandbox::default();
    for entry in bytes.split_inclusive(|byte| *byte == 0) {
        let (kind, path) = entry.strip_suffix(&[0])?.split_first()?;
        let path = PathBuf::from(OsStr::from_bytes(path));
        match *kind {
            WRITABLE => sandbox.writable.push(path),
            ONLY_READ => sandbox.read_only.push(path),
            LINK => sandbox.links.push(path),
            HIDDEN => sandbox.hidden.push(path),
            VISIBLE => sandbox.visible.push(path),
            TEMPORARY => sandbox.tmp = Some(path),
            SHOWN_TEMPORARY => sandbox.shown_tmp = Some(path),
            NETWORK => sandbox.network = true,
            UNIX_SOCKETS => sandbox.unix_sockets = true,
            SEES_MACHINE => sandbox.sees_machine = true,
            _ => return None,
        }
    }
    Some(sandbox)
}

fn push(blob: &mut Vec<u8>, text: &OsStr, what: impl Fn() -> String) -> Result<(), LaunchError> {
    if text.as_bytes().contains(&0) {
        return Err(LaunchError::Unpassable { what: what() });
    }
    blob.extend_from_slice(text.as_bytes());
    blob.push(0);
    Ok(())
}

fn shown(name: &OsStr) -> String {
    format!("{:.80}", format!("{name:?}"))
}

fn write_header(blob: &mut [u8], launch: &Launch, numbers: LaunchNumbers, strings: usize) {
    // Checked against MAX_REQUEST before, so the counts fit.
    let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes();
    let large = |value: Option<u64>| value.map_or(u64::MAX, |value| value.min(u64::MAX - 1)).to_le_bytes();
    let length = small(blob.len());
    blob[0..4].copy_from_slice(&length);
    blob[4..8].copy_from_slice(&u32::from(VERSION).to_le_bytes());
    blob[8..12].copy_from_slice(&small(launch.args.len()));
    blob[12..16].copy_from_slice(&small(launch.env.len()));
    blob[16..20].copy_from_slice(&numbers.umask.unwrap_or(u32::MAX).to_le_bytes());
    let sandbox = launch.sandbox.as_ref().map_or(u32::MAX.to_le_bytes(), |_| small(strings));
    blob[20..24].copy_from_slice(&sandbox);
    blob[48..52].copy_from_slice(&if numbers.bubblewrap { BUBBLEWRAP } else { 0 }.to_le_bytes());
    blob[24..32].copy_from_slice(&large(numbers.open_files));
    blob[32..40].copy_from_slice(&large(numbers.processes));
    blob[40..48].copy_from_slice(&large(numbers.file_bytes));
}

/// The length of the whole blob, from its header, if the header can be trusted.
pub(crate) fn request_length(header: &[u8; HEADER]) -> Option<usize> {
    let length = usize::try_from(u32_at(header, 0)).ok()?;
    let known = u32_at(header, 4) == u32::from(VERSION);
    (known && (HEADER..=MAX_REQUEST).contains(&length)).then_some(length)
}

/// Whether a request of this header is for a sandbox that `bwrap` makes.
pub(crate) fn wants_bubblewrap(header: &[u8; HEADER]) -> bool {
    sandbox_at(header).is_some() && u32_at(header, 48) & BUBBLEWRAP != 0
}

/// The part of a request that is its sandbox. Two requests with the same have the same sandbox.
pub(crate) fn sandbox_part(request: &[u8]) -> Option<&[u8]> {
    request.get(sandbox_at(request.first_chunk()?)?..)
}

fn sandbox_at(header: &[u8; HEADER]) -> Option<usize> {
    usize::try_from(u32_at(header, 20)).ok().filter(|_| u32_at(header, 20) != u32::MAX)
}

/// The launch in a blob; `None` if it is not one.
pub(crate) fn decode(blob: Vec<u8>) -> Option<WireRequest> {
    let header: &[u8; HEADER] = blob.first_chunk()?;
    if request_length(header)? != blob.len() {
        return None;
    }
    let arguments = usize::try_from(u32_at(header, 8)).ok()?;
    let variables = usize::try_from(u32_at(header, 12)).ok()?;
    let numbers = LaunchNumbers {
        umask: Some(u32_at(header, 16)).filter(|mask| *mask != u32::MAX),
        open_files: limit_at(header, 24),
        processes: limit_at(header, 32),
        file_bytes: limit_at(header, 40),
        bubblewrap: u32_at(header, 48) & BUBBLEWRAP != 0,
    };
    let sandbox = sandbox_at(header);
    let end = sandbox.unwrap_or(blob.len());
    let strings = blob.get(HEADER..end)?;
    let ends = strings.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| HEADER + at + 1);
    let mut starts: Vec<usize> = std::iter::once(HEADER).chain(ends).collect();
    // The last entry is where a further string would start: it must be the end of them.
    let whole = starts.pop()? == end;
    let expected = arguments.checked_add(variables)?.checked_add(2)?;
    (whole && starts.len() == expected).then_some(WireRequest { numbers, blob, starts, arguments, sandbox })
}

impl WireRequest {
    /// The program as given.
    pub fn program(&self) -> &[u8] {
        self.string(0)
    }

    /// The directory, with its closing NUL.
    pub fn directory(&self) -> &[u8] {
        self.terminated(1)
    }

    /// Program name and arguments, each with its closing NUL.
    pub fn argv(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(0).chain(2..2 + self.arguments).map(|index| self.terminated(index))
    }

    /// `NAME=value` strings, each with its closing NUL.
    pub fn envp(&self) -> impl Iterator<Item = &[u8]> {
        (2 + self.arguments..self.starts.len()).map(|index| self.terminated(index))
    }

    /// The value of `PATH` in the command's own environment.
    pub fn search_path(&self) -> Option<&[u8]> {
        self.envp().find_map(|variable| variable.strip_prefix(b"PATH=")).map(|path| &path[..path.len() - 1])
    }

    /// What the command may do, as it was written; `None` if nothing is kept from it.
    pub fn sandbox_part(&self) -> Option<&[u8]> {
        self.blob.get(self.sandbox?..)
    }

    /// The same; `None` also if it makes no sense.
    pub fn sandbox(&self) -> Option<Sandbox> {
        sandbox_of(self.sandbox_part()?)
    }

    fn string(&self, index: usize) -> &[u8] {
        let terminated = self.terminated(index);
        &terminated[..terminated.len() - 1]
    }

    fn terminated(&self, index: usize) -> &[u8] {
        let start = self.starts[index];
        let end = self.starts.get(index + 1).copied().or(self.sandbox).unwrap_or(self.blob.len());
        &self.blob[start..end]
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|slice| slice.try_into().ok()).map_or(u32::MAX, u32::from_le_bytes)
}

fn limit_at(bytes: &[u8], at: usize) -> Option<u64> {
    let value = bytes.get(at..at + 8).and_then(|slice| slice.try_into().ok()).map(u64::from_le_bytes);
    value.filter(|value| *value != u64::MAX)
}

impl StartStage {
    const ALL: [Self; 7] = [
        Self::Request,
        Self::Fork,
        Self::Setup,
        Self::Directory,
        Self::Program,
        Self::Mounts,
        Self::Restrictions,
    ];

    fn byte(self) -> u8 {
        Self::ALL.iter().position(|stage| *stage == self).map_or(u8::MAX, |at| u8::try_from(at).unwrap_or(0))
    }
}

impl ReaperReport {
    pub fn to_bytes(self) -> [u8; FRAME] {
        let (kind, detail, value) = match self {
            Self::Started(pid) => (1, 0, pid),
            Self::Failed(stage, errno) => (2, stage.byte(), errno),
            Self::Exited { code, clean } => (3, u8::from(clean), code),
            Self::Signalled { signal, clean } => (4, u8::from(clean), signal),
            Self::Unknown => (5, 0, 0),
            Self::Swept => (6, 0, 0),
            Self::OverLimit { limit: Limit::Memory { mebibytes }, clean } => {
                (7, u8::from(clean), mebibytes.cast_signed())
            }
            Self::OverLimit { limit: Limit::Processes(number), clean } => {
                (8, u8::from(clean), number.cast_signed())
            }
        };
        frame(kind, detail, value)
    }

    pub fn from_bytes(bytes: [u8; FRAME]) -> Option<Self> {
        let (kind, detail, value) = unframe(bytes);
        Some(match kind {
            1 => Self::Started(value),
            2 => Self::Failed(*StartStage::ALL.get(usize::from(detail))?, value),
            3 => Self::Exited { code: value, clean: detail == 1 },
            4 => Self::Signalled { signal: value, clean: detail == 1 },
            5 => Self::Unknown,
            6 => Self::Swept,
            7 => {
                let limit = Limit::Memory { mebibytes: value.cast_unsigned() };
                Self::OverLimit { limit, clean: detail == 1 }
            }
            8 => Self::OverLimit { limit: Limit::Processes(value.cast_unsigned()), clean: detail == 1 },
            _ => return None,
        })
    }
}

impl ReaperOrder {
    pub fn to_bytes(self) -> [u8; FRAME] {
        let Self::Stop(grace) = self;
        frame(1, 0, i32::try_from(grace.as_millis()).unwrap_or(i32::MAX))
    }

    pub fn from_bytes(bytes: [u8; FRAME]) -> Option<Self> {
        let (kind, _, value) = unframe(bytes);
        let grace = u64::try_from(value).ok()?;
        (kind == 1).then(|| Self::Stop(Duration::from_millis(grace)))
    }
}

fn frame(kind: u8, detail: u8, value: i32) -> [u8; FRAME] {
    let [a, b, c, d] = value.to_le_bytes();
    [kind, detail, 0, 0, a, b, c, d]
}

fn unframe([kind, detail, _, _, a, b, c, d]: [u8; FRAME]) -> (u8, u8, i32) {
    (kind, detail, i32::from_le_bytes([a, b, c, d]))
}

/// What a failed start means to the caller.
pub(crate) fn launch_error(stage: StartStage, errno: i32, launch: &Launch, bytes: usize) -> LaunchError {
    let source = io::Error::from_raw_os_error(errno);
    let program = || launch.program.clone();
    match (stage, errno) {
        (StartStage::Directory, _) => LaunchError::Directory { cwd: launch.cwd.clone(), source },
        (StartStage::Program, libc::ENOENT | libc::ENOTDIR) => LaunchError::NoProgram { program: program() },
        (StartStage::Program, libc::E2BIG) => LaunchError::TooLarge { bytes },
        (StartStage::Program, libc::ENOMEM | libc::EAGAIN | libc::ENFILE | libc::EMFILE) => {
            LaunchError::Resources { what: "the program", source }
        }
        (StartStage::Program, _) => LaunchError::NotExecutable { program: program(), source },
        (StartStage::Fork, _) => LaunchError::Resources { what: "a process", source },
        (StartStage::Mounts, _) => mount_error(errno, launch),
        (StartStage::Restrictions, _) => {
            LaunchError::Sandbox { what: "its system call filter and Landlock rules".into(), source }
        }
        (StartStage::Setup, _) => LaunchError::Resources { what: "the process's limits", source },
        (StartStage::Request, _) => LaunchError::Unpassable { what: format!("the request ({source})") },
    }
}

/// An error's number together with the place of a path in its sandbox, in the upper half.
pub(crate) fn path_error(errno: i32, path: &Path, sandbox: &Sandbox) -> i32 {
    let place = entries(sandbox).position(|(_, entry)| entry == path).map_or(0, |place| place + 1);
    errno & 0xFFFF | i32::from(i16::try_from(place).unwrap_or(0)) << 16
}

fn mount_error(number: i32, launch: &Launch) -> LaunchError {
    let place = usize::try_from(number >> 16).ok().and_then(|place| place.checked_sub(1));
    let path = launch.sandbox.as_deref().zip(place).and_then(|(all, place)| entries(all).nth(place));
    let what =
        path.map_or_else(|| "its view of the files".to_owned(), |(_, path)| path.display().to_string());
    LaunchError::Sandbox { what, source: io::Error::from_raw_os_error(number & 0xFFFF) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn sample() -> Launch {
        let mut launch = Launch::new("prog", "/some/where").args(["", "two words", "ü"]);
        launch.args.push(std::ffi::OsString::from_vec(vec![0xff, 0xfe]));
        launch.env([("PATH".into(), "/bin:/usr/bin".into()), ("EMPTY".into(), "".into())])
    }

    #[test]
    fn a_launch_comes_back_as_it_went() {
        let numbers = LaunchNumbers {
            umask: Some(0o22),
            open_files: Some(1024),
            file_bytes: Some(0),
            ..LaunchNumbers::default()
        };
        let request = decode(encode(&sample(), numbers).unwrap()).unwrap();
        assert_eq!(request.numbers, numbers);
        assert_eq!(request.program(), b"prog");
        assert_eq!(request.directory(), b"/some/where\0");
        let argv: Vec<_> = request.argv().collect();
        assert_eq!(argv, [&b"prog\0"[..], b"\0", b"two words\0", "ü\0".as_bytes(), b"\xff\xfe\0"]);
        assert_eq!(request.envp().collect::<Vec<_>>(), [&b"PATH=/bin:/usr/bin\0"[..], b"EMPTY=\0"]);
        assert_eq!(request.search_path(), Some(&b"/bin:/usr/bin"[..]));
    }

    #[test]
    fn a_sandbox_comes_back_as_it_went() {
        let path = |name: &str| vec![PathBuf::from(name), PathBuf::from(OsStr::from_bytes(b"/\xff"))];
        let all = Sandbox {
            writable: path("/w"),
            read_only: path("/r"),
            links: path("/l"),
            hidden: path("/h"),
            visible: path("/v"),
            tmp: Some("/t".into()),
            shown_tmp: Some("/s".into()),
            network: true,
            unix_sockets: true,
            sees_machine: true,
            ..Sandbox::default()
        };
        let moved = Sandbox { writable: path("/r"), read_only: path("/w"), ..all.clone() };
        let offline = Sandbox { network: false, ..all.clone() };
        let blob = |sandbox: &Sandbox| {
            let launch = Launch { sandbox: Some(sandbox.clone().into()), ..sample() };
            encode(&launch, LaunchNumbers { bubblewrap: true, ..LaunchNumbers::default() }).unwrap()
        };
        let sandboxes = [Sandbox::default(), all, moved, offline];
        for sandbox in &sandboxes {
            let request = decode(blob(sandbox)).unwrap();
            assert_eq!(request.sandbox().as_ref(), Some(sandbox));
            assert!(request.numbers.bubblewrap);
            assert_eq!(request.envp().last(), Some(&b"EMPTY=\0"[..]));
            for other in &sandboxes {
                let same = sandbox_part(&blob(other)) == request.sandbox_part();
                assert_eq!(same, sandbox == other, "{sandbox:?} {other:?}");
            }
        }
        let without = decode(encode(&sample(), LaunchNumbers::default()).unwrap()).unwrap();
        assert_eq!((without.sandbox_part(), without.sandbox()), (None, None));
    }

    #[test]
    fn no_cut_or_changed_header_is_taken_for_a_launch() {
        let blob = encode(&sample(), LaunchNumbers::default()).unwrap();
        for length in 0..blob.len() {
            assert!(decode(blob[..length].to_vec()).is_none(), "{length}");
        }
        for at in 0..16 {
            for bit in 0..8 {
                let mut changed = blob.clone();
                changed[at] ^= 1 << bit;
                // Moving one string between arguments and environment keeps the total; nothing else may pass.
                let decoded = decode(changed);
                assert!(decoded.is_none(), "byte {at} bit {bit}: {decoded:?}");
            }
        }
    }

    #[test]
    fn what_no_process_can_be_given_is_named() {
        let bad = |launch: Launch| encode(&launch, LaunchNumbers::default()).unwrap_err().to_string();
        assert!(bad(Launch::new("a\0b", "/")).contains("program"));
        assert!(bad(Launch::new("a", "/\0")).contains("directory"));
        assert!(bad(Launch::new("a", "/").args(["x", "y\0"])).contains("argument 2"));
        assert!(bad(Launch::new("a", "/").env([("A=B".into(), "".into())])).contains("A=B"));
        assert!(bad(Launch::new("a", "/").env([("".into(), "".into())])).contains("name"));
        assert!(bad(Launch::new("a", "/").env([("KEY".into(), "\0".into())])).contains("KEY"));
        let large = Launch::new("a", "/").args(["x".repeat(MAX_REQUEST)]);
        assert!(matches!(encode(&large, LaunchNumbers::default()), Err(LaunchError::TooLarge { .. })));
    }

    #[test]
    fn frames_come_back_and_unknown_ones_do_not() {
        let reports = [
            ReaperReport::Started(i32::MAX),
            ReaperReport::Failed(StartStage::Program, libc::ENOENT),
            ReaperReport::Failed(StartStage::Request, 0),
            ReaperReport::Exited { code: 255, clean: true },
            ReaperReport::Exited { code: -1, clean: false },
            ReaperReport::Signalled { signal: 9, clean: true },
            ReaperReport::OverLimit { limit: Limit::Memory { mebibytes: u32::MAX }, clean: true },
            ReaperReport::OverLimit { limit: Limit::Processes(4096), clean: false },
            ReaperReport::Unknown,
            ReaperReport::Swept,
        ];
        for report in reports {
            assert_eq!(ReaperReport::from_bytes(report.to_bytes()), Some(report));
        }
        assert_eq!(ReaperReport::from_bytes([0; FRAME]), None);
        assert_eq!(ReaperReport::from_bytes([2, 9, 0, 0, 0, 0, 0, 0]), None);
        let stop = ReaperOrder::Stop(Duration::from_secs(2));
        assert_eq!(ReaperOrder::from_bytes(stop.to_bytes()), Some(stop));
        assert_eq!(ReaperOrder::from_bytes([2; FRAME]), None);
    }
}
