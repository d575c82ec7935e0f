//! The streams of one container.

use std::{os::fd::OwnedFd, time::SystemTime};

use rustix::io::Errno;

use super::{
    LogFile, Stream,
    input::{Input, State},
    line::Lines,
};
use crate::clock::Stamp;

/// Everything the log thread has of a container.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) id: String,
    pub(crate) stdin_once: bool,
    outputs: Vec<Output>,
    input: Option<Input>,
    log: Option<LogFile>,
}

#[derive(Debug)]
struct Output {
    fd: OwnedFd,
    stream: Stream,
    lines: Option<Lines>,
}

/// What reading once brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Bytes(Stream, usize),
    Nothing,
    /// No process has this stream any more.
    End,
}

impl Source {
    pub(crate) fn new(id: String, stdin_once: bool, log: Option<LogFile>) -> Self {
        Self { id, stdin_once, outputs: Vec::new(), input: None, log }
    }

    /// None of the descriptors blocks.
    pub(crate) fn with_output(mut self, stream: Stream, fd: OwnedFd) -> Self {
        let lines = self.log.as_ref().map(|log| Lines::new(stream, log.format, log.max_line));
        self.outputs.push(Output { fd, stream, lines });
        self
    }

    pub(crate) fn with_input(mut self, fd: Option<OwnedFd>) -> Self {
        self.input = fd.map(Input::new);
        self
    }

    pub(super) fn output_fds(&self) -> impl Iterator<Item = &OwnedFd> {
        self.outputs.iter().map(|output| &output.fd)
    }

    pub(super) fn outputs(&self) -> usize {
        self.outputs.len()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Reads once from one of the outputs into `buffer` and logs it by way of `text`.
    pub(super) fn read(&mut self, output: usize, buffer: &mut [u8], text: &mut Vec<u8>) -> Got {
        let Some(from) = self.outputs.get_mut(output) else { return Got::Nothing };
        let len = match rustix::io::read(&from.fd, &mut *buffer) {
            Err(Errno::AGAIN | Errno::INTR) => return Got::Nothing,
            // A terminal that nobody has open any more is an I/O error.
            Ok(0) | Err(_) => {
                self.end(output, text);
                return Got::End;
            }
            Ok(len) => len,
        };
        if let (Some(lines), Some(log)) = (&mut from.lines, &mut self.log) {
            text.clear();
            lines.push(&buffer[..len], &Stamp::new(SystemTime::now()), text);
            log.write(text);
        }
        Got::Bytes(from.stream, len)
    }

    fn end(&mut self, output: usize, text: &mut Vec<u8>) {
        let mut from = self.outputs.remove(output);
        if let (Some(lines), Some(log)) = (&mut from.lines, &mut self.log) {
            text.clear();
            lines.finish(&Stamp::new(SystemTime::now()), text);
            log.write(text);
        }
    }

    /// The last words, also of streams that some process still holds open.
    pub(super) fn finish(mut self, text: &mut Vec<u8>) -> u64 {
        while !self.outputs.is_empty() {
            self.end(0, text);
        }
        self.log_errors()
    }

    pub(super) fn log_errors(&self) -> u64 {
        self.log.as_ref().map_or(0, LogFile::errors)
    }

    pub(super) fn reopen_log(&mut self) -> std::io::Result<()> {
        self.log.as_mut().map_or(Ok(()), LogFile::reopen)
    }

    // === input ===

    pub(super) fn input(&self) -> Option<&Input> {
        self.input.as_ref()
    }

    pub(super) fn type_in(&mut self, bytes: &[u8]) {
        self.with_input_do(|input| input.push(bytes));
    }

    pub(super) fn flush_input(&mut self) {
        self.with_input_do(Input::flush);
    }

    pub(super) fn close_input(&mut self) {
        self.with_input_do(Input::close);
    }

    fn with_input_do(&mut self, act: impl FnOnce(&mut Input) -> State) {
        if self.input.as_mut().map(act) == Some(State::Over) {
            self.input = None;
        }
    }
}
