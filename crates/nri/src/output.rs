//! What launched plugins print: made into lines, limited in rate, and the last of it kept.
//!
//! ```text
//!   bytes of a pipe --> LineBuffer --> Output --+--> log, as fast as RateLimit allows
//!                                               `--> the last lines, of all there were
//! ```
//!
//! **Invariant:** whatever a plugin prints, memory is bounded and no control character reaches
//! a log or a terminal. Pure: the clock is handed in.

use std::{
    collections::VecDeque,
    fmt::Write,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

/// The longest line that is shown; the rest of a longer one is thrown away.
const LINE_BYTES: usize = 4096;
/// Says that a line was longer.
const CUT: &str = " [cut]";
/// How many lines are kept per plugin.
const KEPT: usize = 20;
/// Lines per second that a plugin may print for long.
const PER_SECOND: u32 = 50;
/// Lines that it may print at once.
const BURST: u32 = 200;

/// The stream that a line was printed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// A line that a plugin printed, without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    pub at: SystemTime,
    pub stream: OutputStream,
    pub text: String,
}

/// Bytes of one stream on their way to lines.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer {
    begun: Vec<u8>,
    /// The line has more bytes than are kept.
    cut: bool,
}

impl LineBuffer {
    /// Takes bytes as they come, and hands over each line that they complete.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut line: impl FnMut(String)) {
        let mut parts = bytes.split(|byte| *byte == b'\n');
        let open = parts.next_back().unwrap_or_default();
        for part in parts {
            self.extend(part);
            line(self.take());
        }
        self.extend(open);
    }

    /// Returns the last line, if the stream ended within one.
    pub(crate) fn finish(&mut self) -> Option<String> {
        (!self.begun.is_empty()).then(|| self.take())
    }

    fn extend(&mut self, part: &[u8]) {
        let room = LINE_BYTES - self.begun.len();
        self.cut |= part.len() > room;
        self.begun.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn take(&mut self) -> String {
        let mut cut = std::mem::take(&mut self.cut);
        let text = printable(self.begun.strip_suffix(b"\r").unwrap_or(&self.begun), &mut cut);
        self.begun.clear();
        if cut { text + CUT } else { text }
    }
}

/// Makes a text of somebody else harmless on a terminal.
pub(crate) fn printable_text(text: &str) -> String {
    printable(text.as_bytes(), &mut false)
}

/// Makes text that is harmless on a terminal: no control characters, none that change the
/// direction of text, and no invalid UTF-8.
fn printable(bytes: &[u8], cut: &mut bool) -> String {
    let mut text = String::new();
    for c in String::from_utf8_lossy(bytes).chars() {
        // Escapes are longer than what they stand for.
        if text.len() >= LINE_BYTES {
            *cut = true;
            break;
        }
        let acts = c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match acts {
            true => write!(text, "{}", c.escape_default()).expect("a string takes all of it"),
            false => text.push(c),
        }
    }
    text
}

/// Lets lines through until there are too many, and then none for about a second, so that
/// there is one report of how many were suppressed and not one between any two lines.
#[derive(Debug)]
pub(crate) struct RateLimit {
    allowed: f64,
    refilled: Instant,
    suppressing: bool,
    suppressed: u64,
}

/// Whether a line is to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Yes,
    /// It is, after so many that were not.
    After(u64),
    No,
}

impl RateLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { allowed: BURST.into(), refilled: now, suppressing: false, suppressed: 0 }
    }

    pub(crate) fn pass(&mut self, now: Instant) -> Pass {
        self.refill(now);
        if self.suppressing || self.allowed < 1.0 {
            self.suppressing = true;
            self.suppressed += 1;
            return Pass::No;
        }
        self.allowed -= 1.0;
        match std::mem::take(&mut self.suppressed) {
            0 => Pass::Yes,
            lines => Pass::After(lines),
        }
    }

    pub(crate) fn is_suppressing(&self) -> bool {
        self.suppressing
    }

    /// Returns how many lines were suppressed and not reported yet, once it is over or, by
    /// `ended`, will not go on.
    pub(crate) fn report(&mut self, now: Instant, ended: bool) -> Option<u64> {
        self.refill(now);
        let due = ended || !self.suppressing;
        let lines = if due { std::mem::take(&mut self.suppressed) } else { 0 };
        (lines > 0).then_some(lines)
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.refilled);
        self.refilled = now;
        let earned = passed.as_secs_f64() * f64::from(PER_SECOND);
        self.allowed = (self.allowed + earned).min(BURST.into());
        if self.allowed >= PER_SECOND.into() {
            self.suppressing = false;
        }
    }
}

/// What one plugin printed in all its lives.
#[derive(Debug)]
pub(crate) struct Output {
    last: VecDeque<OutputLine>,
    rate: RateLimit,
}

impl Output {
    /// How long after the last line a report of suppressed ones is due.
    pub(crate) const REPORT: Duration = Duration::from_secs(1);

    pub(crate) fn new(now: Instant) -> Self {
        Self { last: VecDeque::new(), rate: RateLimit::new(now) }
    }

    /// Keeps a line, and says whether it is to be logged.
    pub(crate) fn keep(&mut self, line: OutputLine, now: Instant) -> Pass {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(line);
        self.rate.pass(now)
    }

    pub(crate) fn rate(&mut self) -> &mut RateLimit {
        &mut self.rate
    }

    /// The last lines, oldest first.
    pub(crate) fn last(&self) -> Vec<OutputLine> {
        self.last.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<String> {
        let (mut buffer, mut lines) = (LineBuffer::default(), Vec::new());
        parts.iter().for_each(|part| buffer.feed(part, |line| lines.push(line)));
        lines.extend(buffer.finish());
        lines
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        assert_eq!(lines(&[b"one\ntw", b"o\r\n\nthr", b"ee"]), ["one", "two", "", "three"]);
        assert_eq!(lines(&[b"one\n"]), ["one"]);
        assert_eq!(lines(&[b""]), Vec::<String>::new());
    }

    #[test]
    fn nothing_acts_on_a_terminal() {
        #[track_caller]
        fn check(bytes: &[u8], want: &str) {
            assert_eq!(lines(&[bytes]), [want]);
        }
        check(b"\x1b[31mred\x07", r"\u{1b}[31mred\u{7}");
        check("\u{9b}2J\u{202e}x".as_bytes(), r"\u{9b}2J\u{202e}x");
        check(b"a\tb", r"a\tb");
        check(b"\xff\xfe!", "\u{fffd}\u{fffd}!");
        check("grün".as_bytes(), "grün");
    }

    #[test]
    fn long_lines_are_cut_and_cost_no_memory() {
        let mut buffer = LineBuffer::default();
        (0..100).for_each(|_| buffer.feed(&[b'x'; LINE_BYTES], |_| panic!("no end of line")));
        assert_eq!(buffer.begun.len(), LINE_BYTES);
        let mut all = Vec::new();
        buffer.feed(b"\nnext\n", |line| all.push(line));
        assert_eq!(all[0].len(), LINE_BYTES + CUT.len());
        assert!(all[0].ends_with(CUT) && all[1] == "next");
        let exact = lines(&[&[b'x'; LINE_BYTES]]);
        assert_eq!(exact[0].len(), LINE_BYTES, "it fits");
        let escaped = lines(&[&[0x1b; LINE_BYTES]]);
        assert!(escaped[0].len() < LINE_BYTES + 20, "{}", escaped[0].len());
    }

    fn passed(rate: &mut RateLimit, now: Instant, count: usize) -> usize {
        (0..count).filter(|_| rate.pass(now) != Pass::No).count()
    }

    #[test]
    fn a_burst_passes_and_then_so_many_a_second() {
        let begun = Instant::now();
        let mut rate = RateLimit::new(begun);
        assert_eq!(passed(&mut rate, begun, 1000), 200);
        assert_eq!(passed(&mut rate, begun + Duration::from_millis(500), 1000), 0, "in one go");
        assert_eq!(rate.report(begun + Duration::from_millis(900), false), None);
        let later = begun + Duration::from_millis(1001);
        assert_eq!(rate.pass(later), Pass::After(1800));
        assert_eq!(passed(&mut rate, later, 1000), 49);
        assert_eq!(rate.report(later, false), None, "not over yet");
        assert_eq!(rate.report(later, true), Some(951));
        assert_eq!(rate.report(later, true), None, "told once");
        let quiet = later + Duration::from_secs(60);
        assert_eq!(passed(&mut rate, quiet, 1000), 200);
        assert_eq!(rate.report(quiet + Output::REPORT, false), Some(800), "also without a line");
    }

    #[test]
    fn the_last_lines_are_kept_also_those_that_are_not_logged() {
        let now = Instant::now();
        let mut output = Output::new(now);
        for number in 0..1000 {
            let (at, text) = (SystemTime::UNIX_EPOCH, number.to_string());
            output.keep(OutputLine { at, stream: OutputStream::Stderr, text }, now);
        }
        let last = output.last();
        assert_eq!((last.len(), last[0].text.as_str(), last[19].text.as_str()), (20, "980", "999"));
    }

    proptest! {
        #[test]
        fn parts_do_not_matter(bytes: Vec<u8>, at: prop::sample::Index) {
            let at = if bytes.is_empty() { 0 } else { at.index(bytes.len()) };
            let whole = lines(&[&bytes]);
            prop_assert_eq!(&whole, &lines(&[&bytes[..at], &bytes[at..]]));
            prop_assert!(whole.iter().all(|line| !line.contains(char::is_control)));
        }
    }
}
