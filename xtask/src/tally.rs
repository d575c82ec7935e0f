//! How many tests ran, read from what they print.

use std::{fmt, ops::AddAssign};

/// Tests counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    /// Takes in one line of output. Only the line that ends the run of a test binary counts:
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; …`, and that
    /// of critest: `critest: 9 passed, 0 failed, 1 skipped`.
    pub(crate) fn read(&mut self, line: &str) {
        let ends = ["test result: ", "critest: "];
        let counts = ends.iter().find_map(|end| line.trim_start().strip_prefix(end));
        let Some(counts) = counts else { return };
        // The verdict and the first count share a field: `ok. 3 passed`.
        for field in counts.split([';', ',']) {
            let mut words = field.split_whitespace().rev();
            let (Some(word), Some(Ok(count))) = (words.next(), words.next().map(str::parse::<u64>))
            else {
                continue;
            };
            match word {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" | "skipped" => self.skipped += count,
                _ => {}
            }
        }
    }

    /// Moves tests that said they could not run here from the passed ones, where the test
    /// harness put them, to the skipped ones.
    pub(crate) fn skip(&mut self, tests: u64) {
        let tests = tests.min(self.passed);
        self.passed -= tests;
        self.skipped += tests;
    }
}

/// The name of the test that a line of output says has failed.
pub(crate) fn failed_test(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.strip_suffix(" - should panic").unwrap_or(name))
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(output: &str, want: &str) {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.read(line));
        assert_eq!(tally.to_string(), want);
    }

    #[test]
    fn sums_over_binaries() {
        let one = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        let two = "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s";
        check(one, "3 passed, 0 failed, 1 skipped");
        check(&format!("{one}\nnoise\n{two}"), "13 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn critest_is_counted_too() {
        check("critest: 9 passed, 1 failed, 2 skipped", "9 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn other_lines_do_not_count() {
        check("", "0 passed, 0 failed");
        check("test codec::tests::ok ... ok", "0 passed, 0 failed");
        check("5 passed; 5 failed", "0 passed, 0 failed");
        check("test result: nonsense", "0 passed, 0 failed");
    }

    #[test]
    fn a_failed_test_is_known_by_its_name() {
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b - should panic ... FAILED"), Some("a::b"));
        assert_eq!(
            failed_test("test src/lib.rs - x (line 3) ... FAILED"),
            Some("src/lib.rs - x (line 3)")
        );
        assert_eq!(failed_test("test a::b ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 1 passed; 1 failed"), None);
    }

    #[test]
    fn a_skipped_test_does_not_count_as_passed() {
        let mut tally = Tally { passed: 5, failed: 0, skipped: 1 };
        tally.skip(2);
        assert_eq!(tally, Tally { passed: 3, failed: 0, skipped: 3 });
        tally.skip(9);
        assert_eq!(tally, Tally { passed: 0, failed: 0, skipped: 6 });
    }
}
