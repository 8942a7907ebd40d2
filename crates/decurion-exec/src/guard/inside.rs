//! The first program inside of `bwrap`. Takes the request of a command on a descriptor, restricts itself as the reaper's
//! own commands do, and becomes the command; what fails is reported on another descriptor.

use std::os::fd::OwnedFd;

use rustix::io::FdFlags;

use super::reaper::{self, ChildConfinement};
use super::spawn::ExecArguments;
use crate::sandbox::{Form, bubblewrap};
use crate::sys;
use crate::wire::{self, ReaperReport, StartStage, WireRequest};

/// The argument that makes this program the one inside, after those that make it a guard.
pub(super) const INSIDE: &str = "--inside";
/// The numbers of what it is given: `bwrap`'s arguments, this program, the request, and where to report.
pub(super) const ARGUMENTS_NUMBER: i32 = 4;
pub(super) const PROGRAM_NUMBER: i32 = 5;
const REQUEST_NUMBER: i32 = 6;
const REPORT_NUMBER: i32 = 7;
/// In the order of their numbers.
pub(super) const NUMBERS: [i32; 4] = [ARGUMENTS_NUMBER, PROGRAM_NUMBER, REQUEST_NUMBER, REPORT_NUMBER];

/// Becomes the command. Comes back only where it cannot even say why not.
pub(super) fn run() -> i32 {
    let (Some(request), Some(reports)) = (sys::adopt(REQUEST_NUMBER), sys::adopt(REPORT_NUMBER)) else {
        return 126;
    };
    drop(sys::adopt(PROGRAM_NUMBER));
    let _ = rustix::io::fcntl_setfd(&reports, FdFlags::CLOEXEC);
    let (stage, errno) = become_command(request, &reports).unwrap_or_else(|failed| failed);
    let _ = rustix::io::write(&reports, &ReaperReport::Failed(stage, errno).to_bytes());
    127
}

fn become_command(request: OwnedFd, reports: &OwnedFd) -> Result<(StartStage, i32), (StartStage, i32)> {
    let (request, notes) = read(request).ok_or((StartStage::Request, libc::EBADMSG))?;
    let sandbox = &request.sandbox().ok_or((StartStage::Request, libc::EBADMSG))?;
    bubblewrap::verify(sandbox, &notes).map_err(|error| {
        let errno = error.source.raw_os_error().unwrap_or(libc::EINVAL);
        (StartStage::Mounts, wire::path_error(errno, &error.path, sandbox))
    })?;
    let directory = std::ffi::CStr::from_bytes_with_nul(request.directory());
    let directory = directory.map_err(|_| (StartStage::Directory, libc::EINVAL))?;
    rustix::process::chdir(directory).map_err(|errno| (StartStage::Directory, errno.raw_os_error()))?;
    let confinement = ChildConfinement::make(sandbox, Form::Bubblewrap)?;
    let places = reaper::candidates(&request);
    let program = ExecArguments::new(&request, places).ok_or((StartStage::Request, libc::EINVAL))?;
    reaper::filter_calls(sandbox, Form::Bubblewrap)?;
    confinement.apply().map_err(|errno| (StartStage::Restrictions, errno))?;
    let _ = rustix::io::write(reports, &ReaperReport::Started(0).to_bytes());
    Ok((StartStage::Program, program.run()))
}

/// The request, and what the reaper noted about its paths.
fn read(request: OwnedFd) -> Option<(WireRequest, Vec<u8>)> {
    use std::io::{Read as _, Seek as _};
    let mut blob = Vec::new();
    let mut file = std::fs::File::from(request);
    file.rewind().ok()?;
    file.read_to_end(&mut blob).ok()?;
    let length = wire::request_length(blob.first_chunk()?)?;
    let notes = blob.split_off(length.min(blob.len()));
    Some((wire::decode(blob)?, notes))
}
