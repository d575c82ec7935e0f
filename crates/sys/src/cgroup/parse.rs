//! The text forms of cgroup files. Pure; what does not parse is left out, because a
//! kernel may add to any of these files.

/// What v1 writes for "no limit": the largest number of bytes in whole pages.
const V1_UNLIMITED: u64 = 0x7fff_ffff_ffff_f000;

/// A single number.
pub fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// A limit; `max`, and what v1 has for it, is `None`.
pub fn limit(text: &str) -> Option<u64> {
    number(text).filter(|&limit| limit < V1_UNLIMITED)
}

/// Lines `name number`.
pub fn flat(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name, number(value)?))
    })
}

/// One value of a flat file.
pub fn field(text: &str, name: &str) -> Option<u64> {
    flat(text).find_map(|(own, value)| (own == name).then_some(value))
}

/// Process ids, one a line. 0 is a process of a PID namespace we cannot see into.
pub fn pids(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|&pid| pid != 0).collect()
}

pub type Device = (u32, u32);

fn device(text: &str) -> Option<Device> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// v2 `io.stat`: lines `8:0 rbytes=1 wbytes=2 …`.
pub fn keyed(text: &str) -> impl Iterator<Item = (Device, &str, u64)> {
    text.lines().flat_map(|line| {
        let mut words = line.split_whitespace();
        let device = words.next().and_then(device);
        words.filter_map(move |word| {
            let (name, value) = word.split_once('=')?;
            Some((device?, name, number(value)?))
        })
    })
}

/// v1 `blkio.*`: lines `8:0 Read 1`, and totals without a device.
pub fn blkio(text: &str) -> impl Iterator<Item = (Device, &str, u64)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (device, name) = (device(words.next()?)?, words.next()?);
        Some((device, name, number(words.next()?)?))
    })
}

/// Pressure stall information: how much of the time tasks waited for a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    pub some: Stall,
    /// Nobody ran at all. Old kernels have none for the CPU.
    pub full: Option<Stall>,
}

/// Averages in percent, the total in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total_us: u64,
}

/// Lines `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
pub fn pressure(text: &str) -> Option<Pressure> {
    let line = |kind: &str| {
        let words = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        stall(words)
    };
    Some(Pressure { some: line("some")?, full: line("full") })
}

fn stall(words: &str) -> Option<Stall> {
    let field = |name: &str| {
        words.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    Some(Stall {
        avg10: field("avg10")?.parse().ok()?,
        avg60: field("avg60")?.parse().ok()?,
        avg300: field("avg300")?.parse().ok()?,
        total_us: field("total")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_and_limits() {
        let check = |text: &str, n: Option<u64>, l: Option<u64>| {
            assert_eq!((number(text), limit(text)), (n, l), "{text:?}");
        };
        check("4096\n", Some(4096), Some(4096));
        check("0\n", Some(0), Some(0));
        check("max\n", None, None);
        check("9223372036854771712\n", Some(9_223_372_036_854_771_712), None);
        check("-1\n", None, None);
        check("", None, None);
    }

    #[test]
    fn flat_files() {
        let events = "low 0\nhigh 3\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(field(events, "oom_kill"), Some(1));
        assert_eq!(field(events, "oom"), Some(1));
        assert_eq!(field(events, "kill"), None);
        let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n";
        assert_eq!(field(control, "oom_kill"), Some(2));
        assert_eq!(flat("a 1\nodd\nb x\nc 3\n").collect::<Vec<_>>(), [("a", 1), ("c", 3)]);
    }

    #[test]
    fn process_lists() {
        assert_eq!(pids("1\n42\n0\nx\n7\n"), [1, 42, 7]);
        assert_eq!(pids(""), [] as [u32; 0]);
    }

    #[test]
    fn io_of_both_versions() {
        let v2 = "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n\
                  8:16 rbytes=1 cost.usage=5\n";
        let got: Vec<_> = keyed(v2).filter(|(_, name, _)| name.ends_with("bytes")).collect();
        assert_eq!(got[..2], [((254, 0), "rbytes", 4096), ((254, 0), "wbytes", 8192)]);
        assert_eq!(got.last(), Some(&((8, 16), "rbytes", 1)));
        // A device whose name the kernel could not find.
        assert_eq!(keyed("(unknown) rbytes=1\n8:0\n").count(), 0);

        let v1 = "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 12288\nTotal 12288\n";
        let got: Vec<_> = blkio(v1).collect();
        assert_eq!(got.len(), 3);
        assert_eq!(got[1], ((254, 0), "Write", 8192));
    }

    #[test]
    fn pressure_files() {
        let text = "some avg10=3.46 avg60=2.29 avg300=1.57 total=13652933\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        let got = pressure(text).unwrap();
        assert_eq!((got.some.avg10, got.some.total_us), (3.46, 13_652_933));
        assert_eq!(got.full, Some(Stall::default()));
        let some_only = text.lines().next().unwrap();
        assert_eq!(pressure(some_only).unwrap().full, None);
        assert_eq!(pressure("full avg10=0 avg60=0 avg300=0 total=0"), None);
        assert_eq!(pressure("some avg10=x"), None);
    }

    fn shape() -> impl Strategy<Value = String> {
        "((some|full|[0-9]{1,3}:[0-9]{0,2}|[a-z_]{0,6})( (Read|[a-z0-9]{0,5}=?)[0-9.]{0,21}){0,4}\n?){0,5}"
    }

    proptest! {
        #[test]
        fn no_text_panics(text in prop_oneof![any::<String>(), shape()]) {
            let _ = (number(&text), limit(&text), pids(&text), pressure(&text));
            let _ = (flat(&text).count(), keyed(&text).count(), blkio(&text).count());
            let _ = field(&text, "some");
        }

        #[test]
        fn flat_files_round_trip(pairs in proptest::collection::vec(("[a-z_.]{1,12}", any::<u64>()), 0..9)) {
            let text: String = pairs.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
            let got: Vec<_> = flat(&text).map(|(name, value)| (name.to_owned(), value)).collect();
            prop_assert_eq!(got, pairs);
        }
    }
}
