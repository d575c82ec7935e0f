//! Output made into lines of a log. Pure.
//!
//! CRI: `<RFC 3339> <stdout|stderr> <F|P> <text>\n`, where P is a part of a line: one that
//! was too long, or the last without an end. `\r\n` ends a line like `\n`.
//! json-file: an object a line, whose text keeps the end of the line, if it had one.
//!
//! **Invariant:** at most the longest allowed line, and no line that has ended, is kept
//! between two calls.

use crate::Stamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Cri,
    JsonFile,
}

/// Even where no limit is asked for: a container that never ends its line must not grow us.
const LONGEST: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Lines {
    stream: Stream,
    format: Format,
    max: usize,
    /// The beginning of a line whose end has not come.
    rest: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Tag {
    Full,
    Part,
}

impl Lines {
    /// `max` 0 means the longest we can hold.
    pub(crate) fn new(stream: Stream, format: Format, max: usize) -> Self {
        let max = if max == 0 { LONGEST } else { max.min(LONGEST) };
        Self { stream, format, max, rest: Vec::new() }
    }

    /// Appends to `out` what is complete by these bytes, all with the time they came.
    pub(crate) fn push(&mut self, bytes: &[u8], at: &Stamp, out: &mut Vec<u8>) {
        let mut bytes = bytes;
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, after) = (&bytes[..end], &bytes[end + 1..]);
            if self.rest.is_empty() {
                self.line(line, at, out);
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                self.line(&whole, at, out);
            }
            bytes = after;
        }
        self.keep(bytes, at, out);
    }

    /// The last words of a container that did not end its line.
    pub(crate) fn finish(&mut self, at: &Stamp, out: &mut Vec<u8>) {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.parts(&rest, Tag::Part, at, out);
        }
    }

    fn keep(&mut self, bytes: &[u8], at: &Stamp, out: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        self.rest.extend_from_slice(bytes);
        let mut begin = 0;
        while self.is_over(&self.rest[begin..]) {
            self.emit(&self.rest[begin..begin + self.max], Tag::Part, at, out);
            begin += self.max;
        }
        self.rest.drain(..begin);
    }

    /// A `\r` just above the limit may turn out to be the end of the line.
    fn is_over(&self, rest: &[u8]) -> bool {
        let may_end =
            self.format == Format::Cri && rest.len() == self.max + 1 && rest.last() == Some(&b'\r');
        rest.len() > self.max && !may_end
    }

    fn line(&self, line: &[u8], at: &Stamp, out: &mut Vec<u8>) {
        let line = match self.format {
            Format::Cri => line.strip_suffix(b"\r").unwrap_or(line),
            Format::JsonFile => line,
        };
        self.parts(line, Tag::Full, at, out);
    }

    fn parts(&self, mut line: &[u8], last: Tag, at: &Stamp, out: &mut Vec<u8>) {
        while line.len() > self.max {
            let (part, after) = line.split_at(self.max);
            self.emit(part, Tag::Part, at, out);
            line = after;
        }
        self.emit(line, last, at, out);
    }

    fn emit(&self, text: &[u8], tag: Tag, at: &Stamp, out: &mut Vec<u8>) {
        match self.format {
            Format::Cri => self.emit_cri(text, tag, at, out),
            Format::JsonFile => self.emit_json(text, tag, at, out),
        }
    }

    fn emit_cri(&self, text: &[u8], tag: Tag, at: &Stamp, out: &mut Vec<u8>) {
        let middle: &[u8] = match (self.stream, tag) {
            (Stream::Stdout, Tag::Full) => b" stdout F ",
            (Stream::Stdout, Tag::Part) => b" stdout P ",
            (Stream::Stderr, Tag::Full) => b" stderr F ",
            (Stream::Stderr, Tag::Part) => b" stderr P ",
        };
        out.reserve(text.len() + 48);
        out.extend_from_slice(at.as_bytes());
        out.extend_from_slice(middle);
        out.extend_from_slice(text);
        out.push(b'\n');
    }

    fn emit_json(&self, text: &[u8], tag: Tag, at: &Stamp, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"log\":\"");
        for chunk in text.utf8_chunks() {
            escape(chunk.valid().as_bytes(), out);
            if !chunk.invalid().is_empty() {
                out.extend_from_slice("\u{fffd}".as_bytes());
            }
        }
        if matches!(tag, Tag::Full) {
            out.extend_from_slice(b"\\n");
        }
        out.extend_from_slice(match self.stream {
            Stream::Stdout => b"\",\"stream\":\"stdout\",\"time\":\"",
            Stream::Stderr => b"\",\"stream\":\"stderr\",\"time\":\"",
        });
        out.extend_from_slice(at.as_bytes());
        out.extend_from_slice(b"\"}\n");
    }
}

/// Runs that need no escape are copied whole.
fn escape(text: &[u8], out: &mut Vec<u8>) {
    let mut begin = 0;
    for (at, &byte) in text.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' && byte != 0x7f {
            continue;
        }
        out.extend_from_slice(&text[begin..at]);
        begin = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            other => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                let (high, low) = (usize::from(other >> 4), usize::from(other & 15));
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', HEX[high], HEX[low]]);
            }
        }
    }
    out.extend_from_slice(&text[begin..]);
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;

    const AT: &str = "1970-01-01T00:00:00.000000000Z";

    fn render(format: Format, max: usize, parts: &[&[u8]]) -> Vec<u8> {
        let at = Stamp::new(SystemTime::UNIX_EPOCH);
        let (mut lines, mut out) = (Lines::new(Stream::Stdout, format, max), Vec::new());
        for part in parts {
            lines.push(part, &at, &mut out);
        }
        lines.finish(&at, &mut out);
        out
    }

    #[track_caller]
    fn check(max: usize, parts: &[&str], want: &[&str]) {
        let parts: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
        let got = String::from_utf8(render(Format::Cri, max, &parts)).unwrap();
        let want: String = want.iter().map(|line| format!("{AT} stdout {line}\n")).collect();
        assert_eq!(got, want, "{parts:?}");
    }

    #[test]
    fn lines_are_full_or_partial() {
        check(10, &["one\ntwo\n"], &["F one", "F two"]);
        check(10, &["on", "e\ntw", "o\n"], &["F one", "F two"]);
        check(10, &["\n\n"], &["F ", "F "]);
        check(10, &["no end"], &["P no end"]);
        check(10, &[""], &[]);
    }

    #[test]
    fn long_lines_are_cut() {
        check(4, &["abcd\n"], &["F abcd"]);
        check(4, &["abcde\n"], &["P abcd", "F e"]);
        check(4, &["abcd", "e\n"], &["P abcd", "F e"]);
        check(4, &["abcdefghi"], &["P abcd", "P efgh", "P i"]);
        check(4, &["abcd", "\n"], &["F abcd"]);
    }

    #[test]
    fn carriage_returns_before_the_end_go() {
        check(10, &["a\r\nb\r\n"], &["F a", "F b"]);
        check(10, &["a\r", "\nb"], &["F a", "P b"]);
        check(10, &["a\rb\n"], &["F a\rb"]);
        check(4, &["abcd\r\n"], &["F abcd"]);
        check(4, &["abcd\r", "\n"], &["F abcd"]);
        check(4, &["abcd\r", "e\n"], &["P abcd", "F \re"]);
    }

    #[test]
    fn json_lines_keep_their_ends() {
        let got =
            render(Format::JsonFile, 0, &[b"a \"b\"\\\r\n\x01\x7f\tc \xc3\xa9 \xff\n", b"end"]);
        let want = format!(
            "{{\"log\":\"a \\\"b\\\"\\\\\\r\\n\",\"stream\":\"stdout\",\"time\":\"{AT}\"}}\n\
             {{\"log\":\"\\u0001\\u007f\\tc é \u{fffd}\\n\",\"stream\":\"stdout\",\"time\":\"{AT}\"}}\n\
             {{\"log\":\"end\",\"stream\":\"stdout\",\"time\":\"{AT}\"}}\n"
        );
        assert_eq!(String::from_utf8(got).unwrap(), want);
    }

    /// What a reader of the log gets back.
    fn read_back(log: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        for line in log.split_inclusive(|byte| *byte == b'\n') {
            let body = line.strip_suffix(b"\n").expect("a log line ends");
            let body = &body[AT.len() + " stdout ".len()..];
            text.extend_from_slice(&body[2..]);
            if body[0] == b'F' {
                text.push(b'\n');
            }
        }
        text
    }

    fn output() -> impl Strategy<Value = Vec<u8>> {
        // Many line ends, of both kinds.
        let byte =
            prop_oneof![3 => any::<u8>(), 2 => Just(b'\n'), 1 => Just(b'\r'), 3 => Just(b'x')];
        proptest::collection::vec(byte, 0..200)
    }

    proptest! {
        #[test]
        fn nothing_is_lost_however_it_arrives(bytes in output(), cuts in proptest::collection::vec(1usize..40, 0..20), max in 0usize..30) {
            let mut parts = Vec::new();
            let mut left = &bytes[..];
            for cut in cuts {
                let (part, after) = left.split_at(cut.min(left.len()));
                parts.push(part);
                left = after;
            }
            parts.push(left);
            let log = render(Format::Cri, max, &parts);
            // Only `\r` before an end may go.
            let mut want = Vec::new();
            for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                match line.strip_suffix(b"\r\n") {
                    Some(line) => want.extend_from_slice(&[line, b"\n"].concat()),
                    None => want.extend_from_slice(line),
                }
            }
            prop_assert_eq!(read_back(&log), want);
            prop_assert_eq!(&log, &render(Format::Cri, max, &[&bytes]));
        }

        #[test]
        fn no_line_is_longer_than_asked(bytes in output(), max in 1usize..30) {
            let log = render(Format::Cri, max, &[&bytes]);
            let over = AT.len() + " stdout F \n".len();
            for line in log.split_inclusive(|byte| *byte == b'\n') {
                prop_assert!(line.len() - over <= max);
            }
        }

        #[test]
        fn json_is_json(bytes in output(), max in 0usize..30) {
            let log = render(Format::JsonFile, max, &[&bytes]);
            let mut text = String::new();
            for line in log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let value: serde_json::Value = serde_json::from_slice(line).unwrap();
                text.push_str(value["log"].as_str().unwrap());
            }
            // A cut may fall inside a character; without one the text is what was written.
            if max == 0 {
                prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
            }
        }
    }
}
