//! Tables for people: columns aligned, ages in the largest unit that fits.

use std::{fmt, time::Duration};

/// Rows of as many cells as the head has.
#[derive(Debug)]
pub(super) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(super) fn new(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned)] }
    }

    pub(super) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                line.push_str(&format!("{cell:<width$}  "));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// `3m`: whole units only, as precise as anybody asks.
pub(super) fn age(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0 => format!("{}ms", length.as_millis()),
        1..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["NAME", "ID", "STATE"]);
        table.row(["a-long-näme".into(), "0123".into(), "up".into()]);
        table.row(["x".into(), String::new(), String::new()]);
        let want = "NAME         ID    STATE\na-long-näme  0123  up\nx\n";
        assert_eq!(table.to_string(), want);
    }

    #[test]
    fn ages() {
        #[track_caller]
        fn check(seconds: f64, want: &str) {
            assert_eq!(age(Duration::from_secs_f64(seconds)), want);
        }
        check(0.0, "0ms");
        check(0.25, "250ms");
        check(1.9, "1s");
        check(119.0, "119s");
        check(120.0, "2m");
        check(7199.0, "119m");
        check(7200.0, "2h");
        check(172_799.0, "47h");
        check(172_800.0, "2d");
        check(86_400.0 * 400.0, "400d");
    }
}
