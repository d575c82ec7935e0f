//! The AppArmor profile of containers that name none.
//!
//! It lets a container do in its own file system and network whatever its capabilities allow, and
//! keeps it from what belongs to the host and shows through `/proc` and `/sys` however those are
//! mounted; from mounting; and from signalling or tracing what is not under the profile too.

use crate::{
    facts::Policy,
    request::{Profile, SecurityRequest},
};

/// The profile a container is to have, by the request alone; the engine looks whether it is
/// loaded. `None` if it is to have none.
pub fn apparmor_profile<'a>(security: &'a SecurityRequest, policy: &'a Policy) -> Option<&'a str> {
    match &security.apparmor {
        Some(Profile::Unconfined) => None,
        Some(Profile::Localhost(name)) => Some(local_name(name)),
        None | Some(Profile::RuntimeDefault) if security.privileged => None,
        None | Some(Profile::RuntimeDefault) => Some(&policy.apparmor_profile),
    }
}

/// Some clients write where the profile is before its name.
pub(crate) fn local_name(name: &str) -> &str {
    name.strip_prefix("localhost/").unwrap_or(name)
}

/// The names in the kernel's list of loaded profiles: `name (enforce)`.
pub fn loaded_profiles(list: &str) -> impl Iterator<Item = &str> {
    // A name may have blanks of its own, and a bracket.
    list.lines().filter_map(|line| line.rsplit_once(" (")).map(|(name, _)| name)
}

/// Needs no file but itself, so that it loads wherever there is a parser.
///
/// A denial always wins, so what may be written below `/proc/sys` is spelt out by denying the
/// names that begin otherwise: all but `net`, message queues, shared memory, semaphores and
/// the names of the host, which are the container's own.
pub fn default_apparmor_profile(name: &str) -> String {
    format!(
        r#"profile "{name}" flags=(attach_disconnected,mediate_deleted) {{
  capability,
  file,
  network,
  unix,
  umount,

  # Who runs containers ends them, from outside; among themselves they do as they like.
  signal (receive) peer=unconfined,
  signal (receive) peer="{{runc,crun,longshore-shim}}",
  signal (send, receive) peer="{name}",
  ptrace (trace, read, tracedby, readby) peer="{name}",

  deny mount,

  deny /proc/* w,
  deny /proc/{{kcore,kmem,mem}} rwklx,
  deny /proc/[^1-9s]*/** w,
  deny /proc/{{s[^y],sy[^s],sys?}}*/** w,
  deny /proc/sys/[^fkn]** w,
  deny /proc/sys/fs/{{[^m],m[^q]}}** w,
  deny /proc/sys/kernel/{{[^dhms],d[^o],do[^m],h[^o],ho[^s],m[^s],ms[^g],s[^eh],se[^m],sh[^m]}}** w,

  deny /sys/[^f]** wklx,
  deny /sys/f[^s]** wklx,
  deny /sys/fs/[^c]** wklx,
  deny /sys/fs/c[^g]** wklx,
  deny /sys/{{firmware,kernel/security,devices/virtual/powercap}}/** rwklx,
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(asked: Option<Profile>, privileged: bool, want: Option<&str>) {
        let security = SecurityRequest { apparmor: asked, privileged, ..Default::default() };
        assert_eq!(apparmor_profile(&security, &Policy::default()), want, "{security:?}");
    }

    #[test]
    fn who_gets_which_profile() {
        let ours = Some("longshore-default");
        let mine = || Some(Profile::Localhost("localhost/mine".to_owned()));
        check(None, false, ours);
        check(Some(Profile::RuntimeDefault), false, ours);
        check(Some(Profile::Unconfined), false, None);
        check(mine(), false, Some("mine"));
        check(Some(Profile::Localhost("mine".to_owned())), false, Some("mine"));
        // A default is not for the privileged; a profile they name is.
        check(None, true, None);
        check(Some(Profile::RuntimeDefault), true, None);
        check(mine(), true, Some("mine"));
    }

    #[test]
    fn the_kernels_list_is_read() {
        let list = "longshore-default (enforce)\n/usr/bin/man (complain)\na (b) (kill)\n\nbroken\n";
        let names: Vec<_> = loaded_profiles(list).collect();
        assert_eq!(names, ["longshore-default", "/usr/bin/man", "a (b)"]);
    }

    #[test]
    fn the_profile_has_the_name_it_is_asked_for_by() {
        let text = default_apparmor_profile("mine");
        assert!(text.starts_with("profile \"mine\" "));
        assert!(text.contains("ptrace (trace, read, tracedby, readby) peer=\"mine\","));
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
