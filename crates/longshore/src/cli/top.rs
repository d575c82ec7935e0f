use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use base::Span;
use bytes::Bytes;
use clap::Args;
use tokio::{sync::mpsc, time::Instant};

use super::{
    client::{Client, DaemonArgs},
    screen::Screen,
    terminal::{self, Interrupts, RawTerminal},
    usage::{self, Readings, Row, SortBy},
};

/// Show what containers use, all the time, the busiest first.
///
/// On a terminal the keys c, m, d and n sort by CPU, memory, disk and name, and q ends it. 100 %
/// is one CPU.
///
///     longshore top --sort memory --interval 5s
///     longshore top --json --count 10
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Top {
    /// What comes first.
    #[arg(short, long, value_enum, default_value_t)]
    sort: SortBy,
    /// The time between two tables.
    #[arg(short, long, default_value = "2s", value_name = "TIME")]
    interval: Span,
    /// End after so many tables.
    #[arg(short = 'n', long, value_name = "NUMBER")]
    count: Option<u64>,
    /// For programs: a line of JSON each time.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Lines of the screen that are not for rows: the head, what is left out, and the keys.
const OTHER_LINES: usize = 3;

impl Top {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        super::block_on(async {
            let client = self.daemon.connect().await?;
            let interactive = !self.json && io::stdin().is_terminal() && io::stdout().is_terminal();
            let mut interrupts = Interrupts::listen()?;
            let raw = interactive.then(RawTerminal::enter).transpose()?;
            let keys = if interactive { terminal::stdin() } else { mpsc::channel(1).1 };
            let ended = tokio::select! {
                shown = self.show(&client, keys, out) => shown.map(|()| ExitCode::SUCCESS),
                code = interrupts.next() => Ok(code.into()),
            };
            drop(raw);
            ended
        })
    }

    async fn show(
        &self,
        client: &Client,
        mut keys: mpsc::Receiver<Bytes>,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let (mut screen, mut by, mut shown) = (Screen::default(), self.sort, 0);
        let mut before = Readings::take(client).await?;
        let mut now = before.clone();
        let mut next = Instant::now() + self.interval.0;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => {
                    before = std::mem::replace(&mut now, Readings::take(client).await?);
                    next = Instant::now() + self.interval.0;
                    shown += 1;
                }
                Some(typed) = keys.recv() => match key(&typed) {
                    Some(Key::Sort(other)) => by = other,
                    Some(Key::End) => return Ok(()),
                    None => continue,
                },
            }
            let rows = usage::rows(&before, &now, by);
            match self.json {
                true => writeln!(out, "{}", usage::json(&rows)).and_then(|()| out.flush())?,
                false => screen.show(out, table(&rows))?,
            }
            if self.count.is_some_and(|count| shown >= count) {
                return Ok(());
            }
        }
    }
}

/// As much as the terminal has room for.
fn table(rows: &[Row]) -> String {
    let lines = terminal::size().and_then(|size| usize::try_from(size.height).ok());
    match lines {
        Some(lines) => {
            let table = usage::table(rows, lines.saturating_sub(OTHER_LINES).max(1));
            format!("{table}sort: c CPU, m memory, d disk, n name; q ends")
        }
        None => usage::table(rows, usize::MAX),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Sort(SortBy),
    End,
}

/// The last key that means anything counts.
fn key(typed: &[u8]) -> Option<Key> {
    /// Ctrl-C and Ctrl-D, which are keys like others here.
    const CONTROL: [u8; 2] = [3, 4];
    typed.iter().rev().find_map(|byte| match byte {
        b'c' => Some(Key::Sort(SortBy::Cpu)),
        b'm' => Some(Key::Sort(SortBy::Memory)),
        b'd' => Some(Key::Sort(SortBy::Disk)),
        b'n' => Some(Key::Sort(SortBy::Name)),
        b'q' => Some(Key::End),
        byte if CONTROL.contains(byte) => Some(Key::End),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_and_end() {
        assert_eq!(key(b"m"), Some(Key::Sort(SortBy::Memory)));
        assert_eq!(key(b"xnc "), Some(Key::Sort(SortBy::Cpu)));
        assert_eq!((key(b"q"), key(&[3]), key(b"xyz")), (Some(Key::End), Some(Key::End), None));
    }
}
