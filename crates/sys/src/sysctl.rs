//! Names of the kernel's settings.

use std::path::PathBuf;

pub const DIR: &str = "/proc/sys";

/// Below [`DIR`]. As sysctl(8) reads names: whichever of dot and slash comes first separates, the
/// other is part of a name (of an interface `eth0.100`, say). `None` for what is no name.
pub fn path(name: &str) -> Option<PathBuf> {
    let dotted = name.find(['.', '/']).is_some_and(|at| name.as_bytes()[at] == b'.');
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    let path: String = if dotted { name.chars().map(swap).collect() } else { name.to_owned() };
    let sound = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    path.split('/').all(sound).then(|| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths() {
        let check = |name: &str, want: Option<&str>| {
            assert_eq!(path(name), want.map(PathBuf::from), "{name}");
        };
        check("net.ipv4.ip_forward", Some("net/ipv4/ip_forward"));
        check("net/ipv4/ip_forward", Some("net/ipv4/ip_forward"));
        check("net.ipv4.conf.eth0/100.forwarding", Some("net/ipv4/conf/eth0.100/forwarding"));
        check("net/ipv4/conf/eth0.100/forwarding", Some("net/ipv4/conf/eth0.100/forwarding"));
        check("kernel/../../etc/passwd", None);
        check("net...core", None);
        check("", None);
    }
}
