//! Rows with a ratio and what was promised of it, each told when it is known.

use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Table(());

impl Table {
    pub(crate) fn begin() -> Self {
        println!("{:<48} {:>10} {:>10}   ratio", "", "longshore", "containerd");
        Self(())
    }

    /// Ours takes at most `promised` times theirs.
    pub(crate) fn millis(&self, what: &str, ours: Duration, theirs: Duration, promised: f64) {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let (ours, theirs) = (millis(ours), millis(theirs));
        self.row(&format!("{what}, ms"), ours, theirs, Some(("≤", promised)));
    }

    pub(crate) fn kib(&self, what: &str, both: [u64; 2], promised: Option<f64>) {
        let [ours, theirs] = both.map(|kib| kib as f64);
        let promised = promised.map(|ratio| ("≤", ratio));
        self.row(&format!("{what}, KiB of PSS"), ours, theirs, promised);
    }

    pub(crate) fn more_is_better(&self, what: &str, ours: f64, theirs: f64, promised: f64) {
        self.row(what, ours, theirs, Some(("≥", promised)));
    }

    pub(crate) fn note(&self, text: &str) {
        println!("{text}");
    }

    fn row(&self, what: &str, ours: f64, theirs: f64, promised: Option<(&str, f64)>) {
        let ratio = ours / theirs;
        let verdict = match promised {
            Some((sign, limit)) => {
                let kept = if sign == "≤" { ratio <= limit } else { ratio >= limit };
                format!("{sign} {limit} {}", if kept { "kept" } else { "MISSED" })
            }
            None => String::new(),
        };
        println!("{what:<48} {ours:>10.1} {theirs:>10.1} {ratio:>7.2} × {verdict}");
    }
}
