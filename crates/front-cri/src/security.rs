//! Who a container is and what it may do.

use api_cri::v1::{self, security_profile::ProfileType};
use oci::{
    CapabilityRequest, GroupRef, GroupsPolicy, Profile, SecurityRequest, SelinuxRequest, UserRef,
    UserRequest,
};

use crate::{
    field::{Invalid, Result, Under, known, not_empty, number, set},
    namespace::{self, PodNamespaces},
};

#[derive(Debug)]
pub(crate) struct PodSecurity {
    pub(crate) namespaces: PodNamespaces,
    pub(crate) privileged: bool,
    pub(crate) selinux: Option<SelinuxRequest>,
    pub(crate) seccomp: Option<Profile>,
    pub(crate) apparmor: Option<Profile>,
}

/// User, groups and root file system are those of a pause container, and there is none:
/// they are checked and else not used.
pub(crate) fn of_pod(context: Option<v1::LinuxSandboxSecurityContext>) -> Result<PodSecurity> {
    #[expect(deprecated, reason = "old clients still send the path")]
    let v1::LinuxSandboxSecurityContext {
        namespace_options,
        selinux_options,
        run_as_user,
        run_as_group,
        readonly_rootfs: _,
        supplemental_groups,
        supplemental_groups_policy,
        privileged,
        seccomp,
        apparmor,
        seccomp_profile_path,
    } = context.unwrap_or_default();
    user(run_as_user, run_as_group, String::new())?;
    groups(supplemental_groups)?;
    known::<v1::SupplementalGroupsPolicy>(
        "supplemental_groups_policy",
        supplemental_groups_policy,
    )?;
    Ok(PodSecurity {
        namespaces: namespace::of_pod(namespace_options).under("namespace_options")?,
        privileged,
        selinux: selinux_options.and_then(selinux),
        seccomp: profile("seccomp", seccomp, ("seccomp_profile_path", seccomp_profile_path))?,
        apparmor: profile("apparmor", apparmor, ("", String::new()))?,
    })
}

pub(crate) fn of_container(
    context: Option<v1::LinuxContainerSecurityContext>,
) -> Result<SecurityRequest> {
    #[expect(deprecated, reason = "old clients still send the paths")]
    let v1::LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options,
        selinux_options,
        run_as_user,
        run_as_group,
        run_as_username,
        readonly_rootfs,
        supplemental_groups,
        supplemental_groups_policy,
        no_new_privs,
        masked_paths,
        readonly_paths,
        seccomp,
        apparmor,
        apparmor_profile,
        seccomp_profile_path,
    } = context.unwrap_or_default();
    Ok(SecurityRequest {
        privileged,
        capabilities: capabilities_of(capabilities.unwrap_or_default()),
        user: user(run_as_user, run_as_group, run_as_username)?,
        supplemental_groups: groups(supplemental_groups)?,
        groups_policy: match known("supplemental_groups_policy", supplemental_groups_policy)? {
            v1::SupplementalGroupsPolicy::Merge => GroupsPolicy::Merge,
            v1::SupplementalGroupsPolicy::Strict => GroupsPolicy::Strict,
        },
        no_new_privileges: no_new_privs,
        readonly_rootfs,
        // Clients send our defaults where they want them; an empty list means none.
        masked_paths: Some(masked_paths),
        readonly_paths: Some(readonly_paths),
        seccomp: profile("seccomp", seccomp, ("seccomp_profile_path", seccomp_profile_path))?,
        apparmor: profile("apparmor", apparmor, ("apparmor_profile", apparmor_profile))?,
        selinux: selinux_options.and_then(selinux),
        namespaces: namespace::of_container(namespace_options).under("namespace_options")?,
    })
}

fn capabilities_of(capability: v1::Capability) -> CapabilityRequest {
    let v1::Capability { add_capabilities, drop_capabilities, add_ambient_capabilities } =
        capability;
    CapabilityRequest {
        add: add_capabilities,
        drop: drop_capabilities,
        ambient: add_ambient_capabilities,
    }
}

/// A name wins over a number.
fn user(
    id: Option<v1::Int64Value>,
    group: Option<v1::Int64Value>,
    name: String,
) -> Result<UserRequest> {
    let id = id.map(|id| number("run_as_user", id.value)).transpose()?;
    let group = group.map(|id| number("run_as_group", id.value)).transpose()?;
    let user = set(name).map(UserRef::Name).or(id.map(UserRef::Id));
    if group.is_some() && user.is_none() {
        return Err(Invalid::new("run_as_group", "needs run_as_user"));
    }
    Ok(UserRequest { user, group: group.map(GroupRef::Id) })
}

fn groups(ids: Vec<i64>) -> Result<Vec<GroupRef>> {
    ids.into_iter().map(|id| number("supplemental_groups", id).map(GroupRef::Id)).collect()
}

fn selinux(option: v1::SeLinuxOption) -> Option<SelinuxRequest> {
    let v1::SeLinuxOption { user, role, r#type, level } = option;
    set(SelinuxRequest { user, role, kind: r#type, level, disable: false })
}

/// The structured form, else the text that came before it.
fn profile(
    field: &'static str,
    structured: Option<v1::SecurityProfile>,
    (old_field, old): (&'static str, String),
) -> Result<Option<Profile>> {
    match structured {
        Some(wire) => structured_profile(wire).under(field).map(Some),
        None => set(old).map(|text| profile_text(old_field, &text)).transpose(),
    }
}

/// The prefix of the old form is found in front of names of the new one, too.
const LOCALHOST: &str = "localhost/";

fn structured_profile(wire: v1::SecurityProfile) -> Result<Profile> {
    let v1::SecurityProfile { profile_type, localhost_ref } = wire;
    let kind = known("profile_type", profile_type)?;
    if kind != ProfileType::Localhost && !localhost_ref.is_empty() {
        return Err(Invalid::new("localhost_ref", "only goes with the type Localhost"));
    }
    Ok(match kind {
        ProfileType::RuntimeDefault => Profile::RuntimeDefault,
        ProfileType::Unconfined => Profile::Unconfined,
        ProfileType::Localhost => {
            let name = not_empty("localhost_ref", localhost_ref)?;
            Profile::Localhost(name.strip_prefix(LOCALHOST).unwrap_or(&name).to_owned())
        }
    })
}

fn profile_text(field: &'static str, text: &str) -> Result<Profile> {
    match (text, text.strip_prefix(LOCALHOST)) {
        ("runtime/default" | "docker/default", _) => Ok(Profile::RuntimeDefault),
        ("unconfined", _) => Ok(Profile::Unconfined),
        (_, Some(name)) if !name.is_empty() => Ok(Profile::Localhost(name.to_owned())),
        _ => Err(Invalid::new(field, format_args!("{text:?} is not a profile"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Context = v1::LinuxContainerSecurityContext;

    fn int(value: i64) -> Option<v1::Int64Value> {
        Some(v1::Int64Value { value })
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Context), want: &str) {
        let mut asked = Context::default();
        change(&mut asked);
        assert_eq!(of_container(Some(asked)).unwrap_err().to_string(), want);
    }

    #[track_caller]
    fn pod_refused(change: impl FnOnce(&mut v1::LinuxSandboxSecurityContext), want: &str) {
        let mut asked = v1::LinuxSandboxSecurityContext::default();
        change(&mut asked);
        assert_eq!(of_pod(Some(asked)).unwrap_err().to_string(), want);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        refused(|c| c.run_as_group = int(1), "run_as_group: needs run_as_user");
        refused(|c| c.run_as_user = int(-1), "run_as_user: -1 is out of range");
        refused(|c| c.run_as_user = int(1 << 32), "run_as_user: 4294967296 is out of range");
        refused(|c| c.supplemental_groups = vec![1, -7], "supplemental_groups: -7 is out of range");
        refused(
            |c| c.supplemental_groups_policy = 2,
            "supplemental_groups_policy: unknown value 2",
        );
        refused(
            |c| {
                c.namespace_options =
                    Some(v1::NamespaceOption { network: 8, ..Default::default() });
            },
            "namespace_options.network: unknown value 8",
        );
        pod_refused(|c| c.run_as_group = int(0), "run_as_group: needs run_as_user");
        pod_refused(|c| c.run_as_user = int(-2), "run_as_user: -2 is out of range");
        pod_refused(
            |c| c.supplemental_groups = vec![-1],
            "supplemental_groups: -1 is out of range",
        );
        pod_refused(
            |c| c.supplemental_groups_policy = -1,
            "supplemental_groups_policy: unknown value -1",
        );
    }

    #[track_caller]
    fn user_is(change: impl FnOnce(&mut Context), want: &UserRequest) {
        let mut asked = Context::default();
        change(&mut asked);
        assert_eq!(of_container(Some(asked)).unwrap().user, *want);
    }

    #[test]
    fn users() {
        let group = Some(GroupRef::Id(7));
        user_is(|_| {}, &UserRequest::default());
        // Root is a user, not "unset": the wire wraps the number.
        user_is(
            |c| c.run_as_user = int(0),
            &UserRequest { user: Some(UserRef::Id(0)), group: None },
        );
        let named = UserRequest { user: Some(UserRef::Name("web".into())), group };
        user_is(
            |c| {
                c.run_as_username = "web".into();
                c.run_as_user = int(5);
                c.run_as_group = int(7);
            },
            &named,
        );
    }

    #[track_caller]
    fn profile_is(kind: i32, localhost_ref: &str, old: &str, want: Result<Option<Profile>, &str>) {
        let localhost_ref = localhost_ref.to_owned();
        let structured =
            (kind >= 0).then_some(v1::SecurityProfile { profile_type: kind, localhost_ref });
        let got = profile("seccomp", structured, ("seccomp_profile_path", old.to_owned()));
        assert_eq!(got.map_err(|e| e.to_string()), want.map_err(str::to_owned));
    }

    #[test]
    fn profiles_old_and_new() {
        let localhost = |name: &str| Ok(Some(Profile::Localhost(name.into())));
        profile_is(-1, "", "", Ok(None));
        profile_is(0, "", "", Ok(Some(Profile::RuntimeDefault)));
        profile_is(1, "", "runtime/default", Ok(Some(Profile::Unconfined)));
        profile_is(2, "/etc/p.json", "", localhost("/etc/p.json"));
        profile_is(2, "localhost//etc/p.json", "", localhost("/etc/p.json"));
        profile_is(-1, "", "runtime/default", Ok(Some(Profile::RuntimeDefault)));
        profile_is(-1, "", "docker/default", Ok(Some(Profile::RuntimeDefault)));
        profile_is(-1, "", "unconfined", Ok(Some(Profile::Unconfined)));
        profile_is(-1, "", "localhost/p", localhost("p"));
        profile_is(2, "", "", Err("seccomp.localhost_ref: must not be empty"));
        profile_is(3, "", "", Err("seccomp.profile_type: unknown value 3"));
        profile_is(0, "x", "", Err("seccomp.localhost_ref: only goes with the type Localhost"));
        profile_is(-1, "", "strict", Err("seccomp_profile_path: \"strict\" is not a profile"));
        profile_is(-1, "", LOCALHOST, Err("seccomp_profile_path: \"localhost/\" is not a profile"));
    }

    #[test]
    fn path_lists_are_always_said() {
        let got = of_container(None).unwrap();
        assert_eq!((got.masked_paths, got.readonly_paths), (Some(vec![]), Some(vec![])));
    }
}
