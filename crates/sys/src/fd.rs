//! Descriptors: who holds them after `exec`, and how they travel over unix sockets.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    io::{Errno, retry_on_intr},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

use crate::error::{Error, Result, to};

/// No message of ours carries more; the kernel's limit is 253.
pub const MAX_FDS: usize = 16;

/// Marks every descriptor from `first` on close-on-exec, so that a program started next
/// inherits none of them. One system call, however many are open (Linux ≥ 5.11).
pub fn cloexec_from(first: RawFd) -> Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    close_range(first.cast_unsigned(), u32::MAX, flags)
        .map_err(to("mark descriptors close-on-exec"))
}

/// Closes all descriptors but `keep`.
///
/// # Safety
/// Nothing in the process may use or drop any other descriptor afterwards: for a child
/// between `fork` and `exec` or `_exit` only.
pub(crate) unsafe fn close_all_but(keep: &mut [RawFd]) -> std::result::Result<(), Errno> {
    keep.sort_unstable();
    let mut next = 0;
    for fd in keep.iter().map(|fd| fd.cast_unsigned()) {
        if fd > next {
            close_range(next, fd - 1, 0)?;
        }
        next = next.max(fd + 1);
    }
    close_range(next, u32::MAX, 0)
}

fn close_range(first: u32, last: u32, flags: u32) -> std::result::Result<(), Errno> {
    // SAFETY: takes three integers. Closing is the business of our callers; with
    // CLOSE_RANGE_CLOEXEC nothing is closed.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Who connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The process that called `connect` (or made the pair). It may have ended since.
pub fn peer(socket: impl AsFd) -> Result<Peer> {
    let cred = rustix::net::sockopt::socket_peercred(socket).map_err(to("ask who connected"))?;
    let pid = cred.pid.as_raw_nonzero().get().cast_unsigned();
    Ok(Peer { pid, uid: cred.uid.as_raw(), gid: cred.gid.as_raw() })
}

/// Sends `bytes` (at least one: an empty message carries no descriptors) with `fds`.
/// Returns how many bytes went out; the descriptors went with the first.
pub fn send_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize> {
    let step = "send descriptors";
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if bytes.is_empty()
        || fds.len() > MAX_FDS
        || !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds))
    {
        return Err(Error::new(step, Errno::INVAL));
    }
    let iov = [IoSlice::new(bytes)];
    retry_on_intr(|| sendmsg(&socket, &iov, &mut control, SendFlags::NOSIGNAL)).map_err(to(step))
}

/// Receives bytes and up to [`MAX_FDS`] descriptors, close-on-exec from the start.
/// More of them is an error, and none of them leaks.
pub fn recv_fds(socket: impl AsFd, buf: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let step = "receive descriptors";
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = retry_on_intr(|| {
        let mut iov = [IoSliceMut::new(buf)];
        recvmsg(&socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(to(step))?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Error::new(format!("{step}: more than {MAX_FDS}"), Errno::MSGSIZE));
    }
    Ok((got.bytes, fds))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read, io::Write, os::unix::net::UnixStream};

    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    #[test]
    fn descriptors_travel_and_stay_private() {
        let (left, right) = UnixStream::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        assert_eq!(send_fds(&left, b"hi", &[writer.as_fd(), reader.as_fd()]).unwrap(), 2);
        let mut buf = [0; 8];
        let (len, mut fds) = recv_fds(&right, &mut buf).unwrap();
        assert_eq!((&buf[..len], fds.len()), (&b"hi"[..], 2));
        assert!(fds.iter().all(|fd| fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC)));
        drop((reader, writer));
        let (mut reader, mut writer) =
            (File::from(fds.pop().unwrap()), File::from(fds.pop().unwrap()));
        writer.write_all(b"through").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn a_message_without_descriptors_is_a_message() {
        let (left, right) = UnixStream::pair().unwrap();
        send_fds(&left, b"x", &[]).unwrap();
        let (len, fds) = recv_fds(&right, &mut [0; 4]).unwrap();
        assert_eq!((len, fds.len()), (1, 0));
        drop(left);
        assert_eq!(recv_fds(&right, &mut [0; 4]).unwrap().0, 0);
    }

    #[test]
    fn empty_or_overfull_messages_are_refused() {
        let (left, _right) = UnixStream::pair().unwrap();
        assert!(send_fds(&left, b"", &[left.as_fd()]).unwrap_err().is(Errno::INVAL));
        let many = vec![left.as_fd(); MAX_FDS + 1];
        assert!(send_fds(&left, b"x", &many).unwrap_err().is(Errno::INVAL));
    }

    #[test]
    fn the_peer_is_us() {
        let (left, _right) = UnixStream::pair().unwrap();
        let peer = peer(&left).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
    }

    #[test]
    fn cloexec_marks_high_descriptors() {
        let file = File::open("/dev/null").unwrap();
        // A number no other test of this process uses.
        let high = rustix::io::fcntl_dupfd_cloexec(&file, 900).unwrap();
        rustix::io::fcntl_setfd(&high, FdFlags::empty()).unwrap();
        cloexec_from(900).unwrap();
        assert!(fcntl_getfd(&high).unwrap().contains(FdFlags::CLOEXEC));
    }
}
