//! Which NRI a runtime speaks that does not say so: old releases leave the version empty.

type Release = (u32, u32, u32);

/// From which release on a runtime has which NRI.
const CONTAINERD: &[(Release, &str)] = &[
    ((1, 7, 0), "v0.3.0"),
    ((1, 7, 7), "v0.4.0"),
    ((1, 7, 14), "v0.6.0"),
    ((1, 7, 16), "v0.6.1"),
    ((1, 7, 26), "v0.8.0"),
    ((2, 2, 0), "v0.10.0"),
    ((2, 2, 1), "v0.11.0"),
];
const CRI_O: &[(Release, &str)] = &[
    ((1, 26, 0), "v0.2.0"),
    ((1, 26, 2), "v0.3.0"),
    ((1, 26, 4), "v0.3.1"),
    ((1, 27, 0), "v0.3.0"),
    ((1, 27, 1), "v0.3.1"),
    ((1, 29, 0), "v0.5.0"),
    ((1, 29, 2), "v0.6.0"),
    ((1, 31, 0), "v0.6.1"),
    ((1, 32, 0), "v0.9.0"),
    ((1, 33, 0), "v0.9.1"),
    ((1, 34, 0), "v0.10.0"),
    ((1, 35, 0), "v0.11.0"),
];

/// The NRI of the newest known release that is not newer than the given one.
pub(crate) fn infer(runtime: &str, version: &str) -> Option<&'static str> {
    let table = match runtime {
        "containerd" => CONTAINERD,
        "cri-o" => CRI_O,
        _ => return None,
    };
    let release = parse(version)?;
    table.iter().rev().find(|(since, _)| *since <= release).map(|(_, nri)| *nri)
}

/// Three numbers, with or without a `v`; what follows (`-3-g1234abc`, `+unknown`) is ignored.
fn parse(version: &str) -> Option<Release> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let version = version.split(['-', '+']).next()?;
    let mut numbers = version.split('.').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_release_below_decides() {
        let check = |runtime, version, want| assert_eq!(infer(runtime, version), want, "{version}");
        check("containerd", "v1.7.0", Some("v0.3.0"));
        check("containerd", "1.7.25", Some("v0.6.1"));
        check("containerd", "v1.7.30", Some("v0.8.0"));
        check("containerd", "v2.1.6", Some("v0.8.0"));
        check("containerd", "v2.2.0-12-gabcdef0", Some("v0.10.0"));
        check("containerd", "v2.9.0+unknown", Some("v0.11.0"));
        check("containerd", "v1.6.30", None);
        check("cri-o", "1.27.0", Some("v0.3.0"));
        check("cri-o", "1.28.11", Some("v0.3.1"));
        check("cri-o", "1.35.2", Some("v0.11.0"));
        check("docker", "29.0.0", None);
        check("containerd", "", None);
        check("containerd", "v2", None);
    }
}
