//! What went through the interfaces of a network namespace.

use std::{fs, os::fd::BorrowedFd};

use crate::{
    error::{Result, on},
    namespace,
};

/// Of the calling thread's namespace.
const FILE: &str = "/proc/thread-self/net/dev";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub received: Traffic,
    pub sent: Traffic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// The interfaces of each of these network namespaces. One that cannot be entered fails
/// alone.
pub fn of_each(spaces: &[BorrowedFd<'_>]) -> Result<Vec<Result<Vec<Interface>>>> {
    let read = || fs::read_to_string(FILE).map_err(on("read", FILE));
    let texts = namespace::in_each_network(spaces, read)?;
    Ok(texts.into_iter().map(|text| Ok(parse(&text??))).collect())
}

/// Lines `name: ` and eight numbers each of what was received and sent; two lines of heads.
pub fn parse(text: &str) -> Vec<Interface> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Interface> {
    // A name may hold colons, the numbers do not.
    let (name, numbers) = line.rsplit_once(':')?;
    let numbers: Option<Vec<u64>> =
        numbers.split_whitespace().map(|number| number.parse().ok()).collect();
    let numbers = numbers.filter(|numbers| numbers.len() >= 12)?;
    let traffic = |at: usize| Traffic {
        bytes: numbers[at],
        packets: numbers[at + 1],
        errors: numbers[at + 2],
        dropped: numbers[at + 3],
    };
    Some(Interface { name: name.trim().to_owned(), received: traffic(0), sent: traffic(8) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       2    0    0    0     0          0         0      100       2    0    0    0     0       0          0
  eth0: 1296     17    3    4    0     0          0         0    876      11    5    6    0     0       0          0
eth0:1: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0
  odd: 1 2 x
";

    #[test]
    fn every_interface_is_read() {
        let got = parse(TEXT);
        let names: Vec<_> = got.iter().map(|interface| interface.name.as_str()).collect();
        assert_eq!(names, ["lo", "eth0", "eth0:1"]);
        let received = Traffic { bytes: 1296, packets: 17, errors: 3, dropped: 4 };
        let sent = Traffic { bytes: 876, packets: 11, errors: 5, dropped: 6 };
        assert_eq!((got[1].received, got[1].sent), (received, sent));
    }

    #[test]
    fn our_own_namespace_has_what_we_see() {
        let own = fs::File::open("/proc/self/ns/net").unwrap();
        // Joining needs a right even where it changes nothing.
        let Ok(got) = of_each(&[own.as_fd(), own.as_fd()]).unwrap().remove(1) else { return };
        assert!(got.iter().any(|interface| interface.name == "lo"), "{got:?}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(( ?[a-z0-9:]{0,6}:)?( [0-9]{1,22}){0,17}\n?){0,4}") {
            parse(&text);
        }
    }
}
