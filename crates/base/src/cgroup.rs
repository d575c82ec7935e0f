//! Names of control groups: as OCI runtimes are told, and as the files are found.

use std::path::PathBuf;

/// Returns where the group is that an OCI runtime makes of `linux.cgroupsPath`: a path, or with
/// the systemd driver `slice:prefix:name`. `None` for one that is relative to the runtime's own.
pub fn dir_of_spec(cgroups_path: &str) -> Option<PathBuf> {
    let mut parts = cgroups_path.splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(slice), Some(prefix), Some(name)) => {
            let scope = match prefix {
                "" => format!("{name}.scope"),
                prefix => format!("{prefix}-{name}.scope"),
            };
            Some(slice_dir(slice).join(scope))
        }
        _ => cgroups_path.starts_with('/').then(|| cgroups_path.into()),
    }
}

/// Returns where the group of a slice of systemd is: that of `a-b.slice` is `/a.slice/a-b.slice`.
pub fn slice_dir(name: &str) -> PathBuf {
    let stem = name.strip_suffix(".slice").unwrap_or(name);
    let mut dir = PathBuf::from("/");
    if stem == "-" {
        return dir;
    }
    let mut prefix = String::new();
    for part in stem.split('-') {
        if !prefix.is_empty() {
            prefix.push('-');
        }
        prefix.push_str(part);
        dir.push(format!("{prefix}.slice"));
    }
    dir
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn specs_name_groups() {
        let check = |spec: &str, want: Option<&str>| {
            assert_eq!(dir_of_spec(spec).as_deref(), want.map(Path::new), "{spec}");
        };
        check("/kubepods/pod1/c", Some("/kubepods/pod1/c"));
        check("a-b.slice:longshore:c", Some("/a.slice/a-b.slice/longshore-c.scope"));
        check("a.slice::c", Some("/a.slice/c.scope"));
        check("-.slice:longshore:c", Some("/longshore-c.scope"));
        check("c", None);
        check("", None);
    }
}
