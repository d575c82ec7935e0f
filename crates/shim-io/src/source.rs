//! The streams of one container.

use std::{os::fd::OwnedFd, time::SystemTime};

use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::{
    LogFile, Stamp, Stream,
    input::{Input, State},
    line::Lines,
};

/// Everything the log thread has of a container.
#[derive(Debug)]
pub struct Source {
    pub(crate) id: String,
    pub(crate) stdin_once: bool,
    outputs: Vec<Output>,
    input: Option<Input>,
    /// Told when the input was ended, as opposed to forgotten.
    input_ended: Option<oneshot::Sender<()>>,
    log: Option<LogFile>,
    /// Those who wait for the end of all outputs.
    waiting: Vec<oneshot::Sender<()>>,
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
    /// `stdin_once`: the first client that ends its input ends the container's.
    pub fn new(id: String, stdin_once: bool, log: Option<LogFile>) -> Self {
        let (outputs, waiting) = (Vec::new(), Vec::new());
        Self { id, stdin_once, outputs, input: None, input_ended: None, log, waiting }
    }

    /// None of the descriptors blocks.
    pub fn with_output(mut self, stream: Stream, fd: OwnedFd) -> Self {
        let lines = self.log.as_ref().map(|log| Lines::new(stream, log.format, log.max_line));
        self.outputs.push(Output { fd, stream, lines });
        self
    }

    pub fn with_input(mut self, fd: Option<OwnedFd>) -> Self {
        self.input = fd.map(Input::new);
        self
    }

    /// For an input that somebody else holds open too: he is to hear of its end.
    pub fn tell_input_end(mut self, to: oneshot::Sender<()>) -> Self {
        self.input_ended = Some(to);
        self
    }

    pub(crate) fn output_fds(&self) -> impl Iterator<Item = &OwnedFd> {
        self.outputs.iter().map(|output| &output.fd)
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs.len()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Reads once from one of the outputs into `buffer` and logs it by way of `text`.
    pub(crate) fn read(&mut self, output: usize, buffer: &mut [u8], text: &mut Vec<u8>) -> Got {
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
        if self.outputs.is_empty() {
            for waiter in self.waiting.drain(..) {
                let _ = waiter.send(());
            }
        }
    }

    /// Tells `waiter` when the last output has ended, which may be now.
    pub(crate) fn tell_end(&mut self, waiter: oneshot::Sender<()>) {
        if self.has_ended() {
            let _ = waiter.send(());
        } else {
            self.waiting.push(waiter);
        }
    }

    /// The last words, also of streams that some process still holds open.
    pub(crate) fn finish(mut self, text: &mut Vec<u8>) -> u64 {
        while !self.outputs.is_empty() {
            self.end(0, text);
        }
        self.log_errors()
    }

    pub(crate) fn log_errors(&self) -> u64 {
        self.log.as_ref().map_or(0, LogFile::errors)
    }

    pub(crate) fn reopen_log(&mut self) -> std::io::Result<()> {
        self.log.as_mut().map_or(Ok(()), LogFile::reopen)
    }

    // === input ===

    pub(crate) fn input(&self) -> Option<&Input> {
        self.input.as_ref()
    }

    pub(crate) fn type_in(&mut self, bytes: &[u8]) {
        self.with_input_do(|input| input.push(bytes));
    }

    pub(crate) fn flush_input(&mut self) {
        self.with_input_do(Input::flush);
    }

    pub(crate) fn close_input(&mut self) {
        self.with_input_do(Input::close);
    }

    fn with_input_do(&mut self, act: impl FnOnce(&mut Input) -> State) {
        if self.input.as_mut().map(act) == Some(State::Over) {
            self.input = None;
            if let Some(told) = self.input_ended.take() {
                let _ = told.send(());
            }
        }
    }
}
