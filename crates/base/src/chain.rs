use std::{error::Error, fmt};

/// Prints an error and all its causes on one line: `start pod: open netns: no such file`.
///
/// Our messages never repeat their source, so a log line or an RPC status needs the
/// whole chain. A cause whose text already ends the line is left out, because foreign
/// errors often do repeat theirs.
///
/// ```
/// # use base::Chain;
/// let cause = std::io::Error::other("disk is on fire");
/// assert_eq!(Chain(&cause).to_string(), "disk is on fire");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
                last = text;
            }
            next = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Link(&'static str, Option<Box<Link>>);

    impl fmt::Display for Link {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Link {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|link| link as _)
        }
    }

    #[track_caller]
    fn check(texts: &[&'static str], want: &str) {
        let chain = texts.iter().rev().fold(None, |tail, text| Some(Box::new(Link(text, tail))));
        assert_eq!(Chain(&*chain.expect("at least one text")).to_string(), want);
    }

    #[test]
    fn causes_follow_in_order_and_are_not_repeated() {
        check(&["a"], "a");
        check(&["a", "b", "c"], "a: b: c");
        check(&["start: no file", "no file"], "start: no file");
        check(&["start: no file", "no file", "errno 2"], "start: no file: errno 2");
        check(&["no file", "no file"], "no file");
    }
}
