//! Stop signals. The numbers of the CRI are its own, not those of Linux.

use api_cri::v1;
use oci::Signal;

use crate::field::{Invalid, Result, known};

/// 0 leaves it to the image.
pub(crate) fn request(number: i32) -> Result<Option<Signal>> {
    let signal = known("stop_signal", number)?;
    if signal == v1::Signal::RuntimeDefault {
        return Ok(None);
    }
    match ours(signal) {
        Some(signal) => Ok(Some(signal)),
        None => Err(Invalid::new("stop_signal", format_args!("{signal:?} is not a signal"))),
    }
}

/// By the full name, as records keep it. A name nobody knows is the default.
pub(crate) fn wire(name: &str) -> v1::Signal {
    let Ok(signal) = name.parse::<Signal>() else {
        return v1::Signal::RuntimeDefault;
    };
    // Some have two names; the first one stands for both.
    (1..)
        .map_while(|number| v1::Signal::try_from(number).ok())
        .find(|known| ours(*known) == Some(signal))
        .unwrap_or_default()
}

/// `SIGNAL_SIGRTMINPLUS3` is `SIGRTMIN+3`.
fn ours(signal: v1::Signal) -> Option<Signal> {
    let name = signal.as_str_name().strip_prefix("SIGNAL_")?;
    name.replace("PLUS", "+").replace("MINUS", "-").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_the_contract_is_a_signal_and_comes_back() {
        let mut count = 0;
        for number in 1..=65 {
            let signal = request(number).unwrap().unwrap();
            let back = wire(&signal.to_string());
            assert_eq!(ours(back), Some(signal), "{number}");
            count += usize::from(back as i32 == number);
        }
        assert_eq!(count, 65 - 3, "all but SIGCLD, SIGIOT and SIGPOLL, which are second names");
    }

    #[test]
    fn every_signal_of_linux_has_a_value() {
        let known = (1..=64).filter_map(Signal::new);
        assert!(known.clone().all(|s| wire(&s.to_string()) != v1::Signal::RuntimeDefault));
        assert_eq!(known.count(), 62);
    }

    #[track_caller]
    fn check(wire_signal: v1::Signal, name: &str) {
        assert_eq!(request(wire_signal.into()), Ok(Some(name.parse().unwrap())));
        assert_eq!(wire(name), wire_signal);
    }

    #[test]
    fn numbers_are_not_those_of_linux() {
        check(v1::Signal::Sigterm, "SIGTERM");
        check(v1::Signal::Sigkill, "SIGKILL");
        check(v1::Signal::Sigrtminplus3, "SIGRTMIN+3");
        check(v1::Signal::Sigrtmax, "SIGRTMAX");
        check(v1::Signal::Sigrtmaxminus14, "SIGRTMAX-14");
        assert_eq!(v1::Signal::Sigterm as i32, 23);
    }

    #[test]
    fn none_and_unknown() {
        assert_eq!(request(0), Ok(None));
        assert_eq!(request(66).unwrap_err().to_string(), "stop_signal: unknown value 66");
        assert_eq!(request(-1).unwrap_err().to_string(), "stop_signal: unknown value -1");
        assert_eq!(wire(""), v1::Signal::RuntimeDefault);
    }
}
