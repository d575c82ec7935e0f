use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A signal that stops a container, by its number. Reads `SIGTERM`, `term`, `15` and
/// `SIGRTMIN+3`; writes the full name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal(u8);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a signal")]
pub struct SignalError(String);

/// By number, from 1. The same on every machine we run on.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Second names.
const ALIASES: [(&str, u8); 4] = [("IOT", 6), ("CLD", 17), ("POLL", 29), ("UNUSED", 31)];

/// As C libraries count: the kernel's 32 and 33 are theirs.
const RTMIN: u8 = 34;
const RTMAX: u8 = 64;

impl Signal {
    pub const TERM: Self = Self(15);
    pub const KILL: Self = Self(9);

    pub fn new(number: u8) -> Option<Self> {
        let known = (1..=31).contains(&number) || (RTMIN..=RTMAX).contains(&number);
        known.then_some(Self(number))
    }

    pub fn number(self) -> u8 {
        self.0
    }
}

fn real_time(name: &str) -> Option<u8> {
    let (base, rest) = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(rest), _) => (RTMIN, rest),
        (_, Some(rest)) => (RTMAX, rest),
        _ => return None,
    };
    let number = match (rest.strip_prefix('+'), rest.strip_prefix('-')) {
        (Some(up), _) => base.checked_add(digits(up)?)?,
        (_, Some(down)) => base.checked_sub(digits(down)?)?,
        _ if rest.is_empty() => base,
        _ => return None,
    };
    (RTMIN..=RTMAX).contains(&number).then_some(number)
}

/// No sign: `parse` alone would take `+3`.
fn digits(text: &str) -> Option<u8> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

impl FromStr for Signal {
    type Err = SignalError;

    fn from_str(text: &str) -> Result<Self, SignalError> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let by_name = || NAMES.iter().zip(1..).find(|(known, _)| **known == name).map(|(_, n)| n);
        let by_alias = || ALIASES.iter().find(|(known, _)| *known == name).map(|&(_, n)| n);
        digits(&upper)
            .or_else(by_name)
            .or_else(by_alias)
            .or_else(|| real_time(name))
            .and_then(Self::new)
            .ok_or_else(|| SignalError(text.to_owned()))
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get(usize::from(self.0) - 1) {
            Some(name) => write!(f, "SIG{name}"),
            None if self.0 == RTMIN => f.write_str("SIGRTMIN"),
            None => write!(f, "SIGRTMIN+{}", self.0 - RTMIN),
        }
    }
}

impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, want: Option<(u8, &str)>) {
        let got = text.parse::<Signal>().ok();
        assert_eq!(got.map(|s| (s.number(), s.to_string())), want.map(|(n, s)| (n, s.to_owned())));
    }

    #[test]
    fn names_numbers_and_real_time() {
        check("SIGTERM", Some((15, "SIGTERM")));
        check("term", Some((15, "SIGTERM")));
        check("9", Some((9, "SIGKILL")));
        check("SIGSYS", Some((31, "SIGSYS")));
        check("SIGPOLL", Some((29, "SIGIO")));
        check("SIGRTMIN", Some((34, "SIGRTMIN")));
        check("SIGRTMIN+3", Some((37, "SIGRTMIN+3")));
        check("RTMAX", Some((64, "SIGRTMIN+30")));
        check("SIGRTMAX-30", Some((34, "SIGRTMIN")));
    }

    #[test]
    fn others_are_refused() {
        for text in ["", "SIG", "0", "32", "65", "300", "-9", "+9", "SIGRTMIN-1", "SIGRTMIN++3"] {
            check(text, None);
        }
        for text in ["SIGRTMAX+1", "SIGRTMIN+x", "SIGRTMIN+255", "SIGFOO", "SIGNAL_SIGTERM"] {
            check(text, None);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<Signal>();
        }

        #[test]
        fn a_written_signal_reads_back(number: u8) {
            if let Some(signal) = Signal::new(number) {
                prop_assert_eq!(signal.to_string().parse(), Ok(signal));
                let json = serde_json::to_string(&signal).unwrap();
                prop_assert_eq!(serde_json::from_str::<Signal>(&json).unwrap(), signal);
            }
        }
    }
}
