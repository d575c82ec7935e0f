//! What was found: rows, the verdict over all of them, and two ways to show them.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::runtime::Runtime;

/// Worse compares greater, so the verdict of a report is the maximum of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing to do.
    Ok,
    /// Containers run, but something is missing that some of them need.
    Warn,
    /// Containers do not run, or not as asked.
    Fail,
}

/// One thing looked at. `reason` is empty when the finding speaks for itself;
/// a row that is not [`Verdict::Ok`] always has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub group: &'static str,
    pub name: String,
    pub verdict: Verdict,
    pub found: String,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Rows in the order of their groups, and the runtimes behind the runtime rows.
#[derive(Debug, Serialize)]
pub struct Report {
    pub rows: Vec<Row>,
    pub runtimes: Vec<Runtime>,
}

/// Whether a table carries terminal colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Plain,
    Ansi,
}

// === impl Row ===

impl Row {
    pub(crate) fn ok(
        group: &'static str,
        name: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self {
            group,
            name: name.into(),
            verdict: Verdict::Ok,
            found: found.into(),
            reason: String::new(),
            remedy: None,
        }
    }

    pub(crate) fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ..self }
    }

    pub(crate) fn warn(self, reason: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, ..self }.because(reason)
    }

    pub(crate) fn fail(self, reason: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..self }.because(reason)
    }

    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

// === impl Report ===

impl Report {
    /// The worst verdict of all rows.
    pub fn verdict(&self) -> Verdict {
        self.rows.iter().map(|row| row.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// `{"verdict": …, "rows": [...], "runtimes": [...]}`.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "verdict": self.verdict(),
            "rows": self.rows,
            "runtimes": self.runtimes,
        })
    }

    /// An aligned table for people. Reasons and remedies wrap at `width`
    /// columns; a finding stays on its line, so that it can be grepped.
    pub fn table(&self, width: usize, paint: Paint) -> String {
        let names = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let indent = " ".repeat(2 + "warn".len() + 2);
        let mut out = String::new();
        let mut group = "";
        for row in &self.rows {
            if row.group != group {
                group = row.group;
                push(&mut out, format_args!("{}\n", paint.bold(group)));
            }
            let (name, verdict) = (&row.name, paint.verdict(row.verdict));
            let line = format!("  {verdict}  {name:<names$}  {}", row.found);
            push(&mut out, format_args!("{}\n", line.trim_end()));
            let wrap = width.saturating_sub(indent.len()).max(20);
            let remedy = row.remedy.iter().map(|text| format!("fix: {text}"));
            for text in [row.reason.clone()].into_iter().chain(remedy) {
                for line in wrapped(&text, wrap) {
                    push(&mut out, format_args!("{indent}{}\n", paint.faint(&line)));
                }
            }
        }
        let count = |v| self.rows.iter().filter(|row| row.verdict == v).count();
        let (ok, warn, fail) = (count(Verdict::Ok), count(Verdict::Warn), count(Verdict::Fail));
        push(&mut out, format_args!("\n{ok} ok, {warn} warn, {fail} fail\n"));
        out
    }
}

fn push(out: &mut String, text: fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
}

/// Greedy wrap by words. A word longer than the line, such as a path, stays whole.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

// === impl Paint ===

impl Paint {
    fn verdict(self, verdict: Verdict) -> String {
        let (colour, word) = match verdict {
            Verdict::Ok => ("32", "ok  "),
            Verdict::Warn => ("33", "warn"),
            Verdict::Fail => ("1;31", "fail"),
        };
        self.wrap(colour, word)
    }

    fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn faint(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Ansi => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Report {
        let rows = vec![
            Row::ok("kernel", "version", "6.18.1"),
            Row::ok("cgroup", "mode", "hybrid")
                .warn("the v2 hierarchy has controllers and crun refuses such hosts")
                .remedy("boot with systemd.unified_cgroup_hierarchy=1"),
            Row::ok("cgroup", "a longer name", ""),
        ];
        Report { rows, runtimes: Vec::new() }
    }

    #[test]
    fn table_aligns_wraps_and_counts() {
        let want = "\
kernel
  ok    version        6.18.1
cgroup
  warn  mode           hybrid
        the v2 hierarchy has controllers
        and crun refuses such hosts
        fix: boot with
        systemd.unified_cgroup_hierarchy=1
  ok    a longer name

2 ok, 1 warn, 0 fail
";
        assert_eq!(sample().table(42, Paint::Plain), want);
    }

    #[test]
    fn colours_change_nothing_but_escapes() {
        let painted = sample().table(42, Paint::Ansi);
        assert!(painted.contains("\x1b[33mwarn\x1b[0m"));
        let mut plain = String::new();
        let mut escape = false;
        for c in painted.chars() {
            match c {
                '\x1b' => escape = true,
                'm' if escape => escape = false,
                c if !escape => plain.push(c),
                _ => {}
            }
        }
        assert_eq!(plain, sample().table(42, Paint::Plain));
    }

    #[test]
    fn tiny_width_still_prints() {
        assert!(sample().table(0, Paint::Plain).contains("systemd.unified_cgroup_hierarchy=1"));
    }

    #[test]
    fn verdict_is_the_worst_row() {
        assert_eq!(sample().verdict(), Verdict::Warn);
        let mut report = sample();
        report.rows.push(Row::ok("x", "y", "z").fail("broken"));
        assert_eq!(report.verdict(), Verdict::Fail);
        assert_eq!(Report { rows: Vec::new(), runtimes: Vec::new() }.verdict(), Verdict::Ok);
    }

    #[test]
    fn json_has_the_names_scripts_rely_on() {
        let json = sample().json();
        assert_eq!(json["verdict"], "warn");
        assert_eq!(json["rows"][1]["verdict"], "warn");
        assert_eq!(json["rows"][1]["name"], "mode");
        assert!(json["rows"][0].get("remedy").is_none());
    }
}
