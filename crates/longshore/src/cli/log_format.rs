//! The CRI log format, read: `<RFC 3339> <stdout|stderr> <P|F> <text>`. Pure.
//!
//! ```text
//! bytes of the file ──> lines of the file ──> pieces of the container's own lines
//! ```
//!
//! The container's own lines may have been cut into parts (`P`), each a line of the file. They
//! come out as pieces, the first of which begins a line and the last of which ends it; a piece
//! is given out as soon as it is there, so nothing is kept to join them.
//!
//! **Invariant:** at most [`LONGEST`] bytes of a line whose end has not come are kept.

/// Longer lines are of no log writer; they come out as they are.
const LONGEST: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// Part of a line that a container wrote, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) stream: Stream,
    /// When it was written; empty if the log does not say.
    pub(super) at: &'a str,
    pub(super) begins: bool,
    pub(super) ends: bool,
    pub(super) text: &'a [u8],
}

/// Takes a file in any portions.
#[derive(Debug, Default)]
pub(super) struct LogReader {
    rest: Vec<u8>,
    /// Whether a line of that stream is begun and not ended.
    open: [bool; 2],
}

impl LogReader {
    /// Gives what is complete by these bytes to `each`.
    pub(super) fn push<E>(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&bytes[..end], &bytes[end + 1..]);
            bytes = after;
            if self.rest.is_empty() {
                each(self.piece(line))?;
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                each(self.piece(&whole))?;
            }
        }
        self.rest.extend_from_slice(bytes);
        if self.rest.len() > LONGEST {
            let rest = std::mem::take(&mut self.rest);
            each(foreign(&rest))?;
        }
        Ok(())
    }

    fn piece<'a>(&mut self, line: &'a [u8]) -> Piece<'a> {
        let Some((at, stream, is_part, text)) = parse(line) else { return foreign(line) };
        let open = &mut self.open[stream as usize];
        let begins = !std::mem::replace(open, is_part);
        Piece { stream, at, begins, ends: !is_part, text }
    }
}

/// Something else wrote into the log: it is shown, not hidden.
fn foreign(line: &[u8]) -> Piece<'_> {
    Piece { stream: Stream::Stdout, at: "", begins: true, ends: true, text: line }
}

fn parse(line: &[u8]) -> Option<(&str, Stream, bool, &[u8])> {
    let mut fields = line.splitn(4, |byte| *byte == b' ');
    let at = std::str::from_utf8(fields.next()?).ok()?;
    let stream = match fields.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    // More tags may follow, after a colon.
    let tag = fields.next()?.split(|byte| *byte == b':').next()?;
    let is_part = match tag {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    let text = fields.next()?;
    at.starts_with(|c: char| c.is_ascii_digit()).then_some((at, stream, is_part, text))
}

/// Leaves out the first lines of a log.
#[derive(Debug, Default)]
pub(super) struct Skip {
    left: u64,
    hidden: [bool; 2],
}

impl Skip {
    pub(super) fn lines(count: u64) -> Self {
        Self { left: count, hidden: [false; 2] }
    }

    pub(super) fn shows(&mut self, piece: &Piece<'_>) -> bool {
        let hidden = &mut self.hidden[piece.stream as usize];
        if piece.begins {
            *hidden = self.left > 0;
            self.left = self.left.saturating_sub(1);
        }
        !*hidden
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::{collection, prelude::*};

    use super::*;

    const AT: &str = "2026-08-01T10:00:00.123456789Z";

    fn read(reader: &mut LogReader, bytes: &[u8], out: &mut Vec<(Stream, bool, bool, Vec<u8>)>) {
        let done: Result<(), Infallible> = reader.push(bytes, |piece| {
            assert!(piece.at.is_empty() || piece.at == AT);
            out.push((piece.stream, piece.begins, piece.ends, piece.text.to_vec()));
            Ok(())
        });
        let Ok(()) = done;
    }

    #[track_caller]
    fn check(line: &str, want: Option<(Stream, bool, &str)>) {
        let got = parse(line.as_bytes())
            .map(|(_, stream, part, text)| (stream, part, std::str::from_utf8(text).unwrap()));
        assert_eq!(got, want, "{line:?}");
    }

    #[test]
    fn lines_of_the_format() {
        check(&format!("{AT} stdout F hello world"), Some((Stream::Stdout, false, "hello world")));
        check(&format!("{AT} stderr P part"), Some((Stream::Stderr, true, "part")));
        check(&format!("{AT} stdout F "), Some((Stream::Stdout, false, "")));
        check(&format!("{AT} stdout F  two"), Some((Stream::Stdout, false, " two")));
        check(&format!("{AT} stdout P:x more tags"), Some((Stream::Stdout, true, "more tags")));
        check(&format!("{AT} stdout F"), None);
        check(&format!("{AT} stdin F x"), None);
        check(&format!("{AT} stdout X x"), None);
        check("now stdout F x", None);
        check("", None);
    }

    #[test]
    fn parts_are_joined_per_stream() {
        let text = format!(
            "{AT} stdout P one \n{AT} stderr F error\n{AT} stdout P two \n{AT} stdout F three\n\
             garbage\n{AT} stdout F next\n"
        );
        let (mut reader, mut got) = (LogReader::default(), Vec::new());
        read(&mut reader, text.as_bytes(), &mut got);
        let (out, err) = (Stream::Stdout, Stream::Stderr);
        let want = [
            (out, true, false, "one "),
            (err, true, true, "error"),
            (out, false, false, "two "),
            (out, false, true, "three"),
            (out, true, true, "garbage"),
            (out, true, true, "next"),
        ];
        assert_eq!(got, want.map(|(s, b, e, text)| (s, b, e, text.as_bytes().to_vec())));
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let (mut reader, mut got) = (LogReader::default(), Vec::new());
        for _ in 0..40 {
            read(&mut reader, &[b'x'; 64 << 10], &mut got);
            assert!(reader.rest.len() <= LONGEST);
        }
        assert!(!got.is_empty());
    }

    #[test]
    fn skipped_lines_are_skipped_with_all_their_parts() {
        let piece = |stream, begins, ends, text: &'static str| Piece {
            stream,
            at: AT,
            begins,
            ends,
            text: text.as_bytes(),
        };
        let (out, err) = (Stream::Stdout, Stream::Stderr);
        let pieces = [
            piece(out, true, false, "a1"),
            piece(err, true, true, "b"),
            piece(out, false, true, "a2"),
            piece(out, true, true, "c"),
        ];
        let shown = |count| {
            let mut skip = Skip::lines(count);
            let kept = pieces.iter().filter(|piece| skip.shows(piece));
            kept.map(|piece| std::str::from_utf8(piece.text).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(shown(0), ["a1", "b", "a2", "c"]);
        assert_eq!(shown(1), ["b", "c"]);
        assert_eq!(shown(2), ["c"]);
        assert!(shown(9).is_empty());
    }

    /// What a container wrote, line by line, and where its lines are cut.
    fn written() -> impl Strategy<Value = Vec<(bool, Vec<u8>, usize)>> {
        let text = collection::vec(any::<u8>().prop_filter("no end", |b| *b != b'\n'), 0..60);
        collection::vec((any::<bool>(), text, 1..20_usize), 0..20)
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(lines in written(), step in 1..50_usize) {
            let mut file = Vec::new();
            let mut want = [Vec::new(), Vec::new()];
            for (is_err, text, cut) in &lines {
                want[usize::from(*is_err)].extend_from_slice(text);
                want[usize::from(*is_err)].push(b'\n');
                let stream = if *is_err { "stderr" } else { "stdout" };
                let parts: Vec<_> = text.chunks(*cut).collect();
                let (last, parts) = parts.split_last().map_or((&[][..], &[][..]), |(l, p)| (*l, p));
                for part in parts {
                    file.extend([format!("{AT} {stream} P ").as_bytes(), part, b"\n"].concat());
                }
                file.extend([format!("{AT} {stream} F ").as_bytes(), last, b"\n"].concat());
            }
            let (mut reader, mut got) = (LogReader::default(), Vec::new());
            for portion in file.chunks(step) {
                read(&mut reader, portion, &mut got);
            }
            prop_assert!(reader.rest.is_empty());
            let mut texts = [Vec::new(), Vec::new()];
            for (stream, _, ends, text) in &got {
                texts[*stream as usize].extend_from_slice(text);
                if *ends {
                    texts[*stream as usize].push(b'\n');
                }
            }
            prop_assert_eq!(texts, want);
            prop_assert_eq!(got.iter().filter(|(_, begins, ..)| *begins).count(), lines.len());
        }

        #[test]
        fn no_bytes_panic(bytes in collection::vec(any::<u8>(), 0..200)) {
            let mut reader = LogReader::default();
            let pushed: Result<(), Infallible> = reader.push(&bytes, |_| Ok(()));
            let Ok(()) = pushed;
        }
    }
}
