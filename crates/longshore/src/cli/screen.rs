//! Text that is shown again and again.

use std::io::{self, IsTerminal, Write};

const CLEAR: &str = "\x1b[H\x1b[2J";

/// What was shown last: a terminal is drawn anew, a file grows by what is new.
#[derive(Debug, Default)]
pub(super) struct Screen {
    shown: Option<String>,
}

impl Screen {
    pub(super) fn show(&mut self, out: &mut impl Write, text: String) -> io::Result<()> {
        if self.shown.as_ref() == Some(&text) {
            return Ok(());
        }
        let first = self.shown.is_none();
        match io::stdout().is_terminal() {
            // A terminal that passes keys on unchanged does not return at the end of a line either.
            true => write!(out, "{CLEAR}{}", text.replace('\n', "\r\n"))?,
            false if first => write!(out, "{text}")?,
            false => write!(out, "\n{text}")?,
        }
        out.flush()?;
        self.shown = Some(text);
        Ok(())
    }
}
