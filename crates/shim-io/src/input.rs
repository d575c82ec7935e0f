//! A container's standard input, fed by attached clients.

use std::{collections::VecDeque, os::fd::OwnedFd};

use rustix::io::Errno;

/// So much may wait for a container that does not read; who typed it waits with the rest.
const ROOM: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Input {
    fd: OwnedFd,
    waiting: VecDeque<u8>,
    closing: bool,
}

/// Whether there is more to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// The container reads no more, or what was to be closed is written.
    Over,
}

impl Input {
    /// The descriptor does not block.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, waiting: VecDeque::new(), closing: false }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= ROOM
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> State {
        self.waiting.extend(bytes);
        self.flush()
    }

    /// The container sees the end once it has read what waits.
    pub(crate) fn close(&mut self) -> State {
        self.closing = true;
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> State {
        while !self.waiting.is_empty() {
            let (front, _) = self.waiting.as_slices();
            match rustix::io::write(&self.fd, front) {
                Ok(len) => drop(self.waiting.drain(..len)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return State::Open,
                Err(_) => return State::Over,
            }
        }
        if self.closing { State::Over } else { State::Open }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn input() -> (Input, std::io::PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        (Input::new(writer.into()), reader)
    }

    #[test]
    fn a_full_pipe_makes_bytes_wait_in_order() {
        let (mut input, mut reader) = input();
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        assert_eq!(input.push(&bytes), State::Open);
        assert!(input.is_full() && input.is_waiting());
        assert_eq!(input.close(), State::Open);
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            let mut part = [0; 4096];
            let len = reader.read(&mut part).unwrap();
            got.extend_from_slice(&part[..len]);
            input.flush();
        }
        assert_eq!((got == bytes, input.flush()), (true, State::Over));
    }

    #[test]
    fn a_container_that_is_gone_ends_it() {
        let (mut input, reader) = input();
        drop(reader);
        assert_eq!(input.push(b"x"), State::Over);
    }
}
