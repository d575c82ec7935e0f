//! Whom a container runs as: the request, else the image, looked up in the image's own files.
//!
//! The files are whatever is in the image, so a line that makes no sense is skipped and nothing in
//! them can fail a container that does not ask about it.

use crate::{
    error::{OciError, Result},
    facts::Accounts,
    request::{
        GroupRef, GroupsPolicy, IdMapping, IdMappings, SecurityRequest, UserRef, UserRequest,
    },
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedUser {
    pub uid: u32,
    pub gid: u32,
    /// All supplementary groups. `gid` is the first: a process that gives up its primary group
    /// must still be known by it.
    pub groups: Vec<u32>,
}

/// Means "no change" to the kernel, so it can be nobody's.
const NOBODY_AT_ALL: u32 = u32::MAX;

struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
}

struct GroupEntry<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

/// Who was meant, before anything is looked up, and how the request spells it.
struct Asked {
    user: UserRef,
    group: Option<GroupRef>,
    user_field: &'static str,
    group_field: &'static str,
}

pub(crate) fn resolve(
    request: &SecurityRequest,
    image_user: &str,
    accounts: &Accounts,
) -> Result<ResolvedUser> {
    let asked = asked(&request.user, image_user)?;
    let mut user = find(&asked, accounts, request.groups_policy)?;
    for (i, group) in request.supplemental_groups.iter().enumerate() {
        let gid = find_group(group, accounts, &format!("security.supplemental_groups[{i}]"))?;
        push_new(&mut user.groups, gid);
    }
    Ok(user)
}

/// The user of an exec, with the groups the image gives it.
pub(crate) fn resolve_exec(request: &UserRequest, accounts: &Accounts) -> Result<ResolvedUser> {
    find(&asked(request, "")?, accounts, GroupsPolicy::Merge)
}

/// The kernel refuses ids that a user namespace does not map, with a word that explains nothing.
pub(crate) fn check_mapped(user: &ResolvedUser, mappings: &IdMappings) -> Result<()> {
    let unmapped = |what: &str, id: u32| {
        let why = format!("{what} {id} is not mapped in the pod's user namespace");
        Err(OciError::invalid("security.user", why))
    };
    if !maps(&mappings.uids, user.uid) {
        return unmapped("uid", user.uid);
    }
    match user.groups.iter().find(|&&gid| !maps(&mappings.gids, gid)) {
        Some(&gid) => unmapped("gid", gid),
        None => Ok(()),
    }
}

pub(crate) fn maps(ranges: &[IdMapping], id: u32) -> bool {
    ranges.iter().any(|range| id.checked_sub(range.container).is_some_and(|n| n < range.len))
}

fn asked(request: &UserRequest, image_user: &str) -> Result<Asked> {
    if let Some(user) = &request.user {
        return Ok(Asked {
            user: user.clone(),
            group: request.group.clone(),
            user_field: "security.user.user",
            group_field: "security.user.group",
        });
    }
    if request.group.is_some() {
        return Err(OciError::invalid("security.user.group", "a group needs a user beside it"));
    }
    let UserRequest { user, group } = UserRequest::of_text(image_user);
    let user = user.unwrap_or(UserRef::Id(0));
    Ok(Asked { user, group, user_field: "image.user", group_field: "image.user" })
}

impl UserRequest {
    /// As images and Docker clients write it: `user`, `user:group`, names or numbers.
    pub fn of_text(text: &str) -> Self {
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        Self {
            user: (!user.is_empty()).then(|| UserRef::Name(user.to_owned())),
            group: (!group.is_empty()).then(|| GroupRef::Name(group.to_owned())),
        }
    }
}

fn find(asked: &Asked, accounts: &Accounts, policy: GroupsPolicy) -> Result<ResolvedUser> {
    let entry = find_user(&asked.user, accounts, asked.user_field)?;
    let gid = match &asked.group {
        Some(group) => find_group(group, accounts, asked.group_field)?,
        None => entry.gid,
    };
    let mut groups = vec![gid];
    if policy == GroupsPolicy::Merge && !entry.name.is_empty() {
        let has = |group: &GroupEntry<'_>| group.members.split(',').any(|m| m.trim() == entry.name);
        groups_of(accounts).filter(has).for_each(|group| push_new(&mut groups, group.gid));
    }
    Ok(ResolvedUser { uid: entry.uid, gid, groups })
}

fn push_new(groups: &mut Vec<u32>, gid: u32) {
    if !groups.contains(&gid) {
        groups.push(gid);
    }
}

/// An id nobody has in the file is still an id; its group is root's.
fn find_user<'a>(user: &UserRef, accounts: &'a Accounts, field: &str) -> Result<PasswdEntry<'a>> {
    let (name, id) = match user {
        UserRef::Id(id) => (None, Some(*id)),
        UserRef::Name(name) => (Some(name.as_str()), name.parse().ok()),
    };
    let by_name = name.and_then(|name| users_of(accounts).find(|entry| entry.name == name));
    if let Some(entry) = by_name {
        return Ok(entry);
    }
    match id {
        Some(NOBODY_AT_ALL) => Err(OciError::invalid(field, format!("{NOBODY_AT_ALL} is no id"))),
        Some(id) => {
            let entry = users_of(accounts).find(|entry| entry.uid == id);
            Ok(entry.unwrap_or(PasswdEntry { name: "", uid: id, gid: 0 }))
        }
        None => Err(absent(field, "user", name.unwrap_or_default(), accounts.passwd.is_some())),
    }
}

fn find_group(group: &GroupRef, accounts: &Accounts, field: &str) -> Result<u32> {
    let (name, id) = match group {
        GroupRef::Id(id) => (None, Some(*id)),
        GroupRef::Name(name) => (Some(name.as_str()), name.parse().ok()),
    };
    let by_name = name.and_then(|name| groups_of(accounts).find(|entry| entry.name == name));
    match (by_name, id) {
        (Some(entry), _) => Ok(entry.gid),
        (None, Some(NOBODY_AT_ALL)) => {
            Err(OciError::invalid(field, format!("{NOBODY_AT_ALL} is no id")))
        }
        (None, Some(id)) => Ok(id),
        (None, None) => {
            Err(absent(field, "group", name.unwrap_or_default(), accounts.group.is_some()))
        }
    }
}

fn absent(field: &str, what: &str, name: &str, file_exists: bool) -> OciError {
    let file = if what == "user" { "/etc/passwd" } else { "/etc/group" };
    let why = if file_exists {
        format!("no {what} {name:?} in the image's {file}")
    } else {
        format!("{what} {name:?} cannot be looked up: the image has no {file}")
    };
    OciError::NotFound { field: field.to_owned(), why }
}

// === the files ===

/// `name:password:uid:gid:…`
fn users_of(accounts: &Accounts) -> impl Iterator<Item = PasswdEntry<'_>> {
    let lines = accounts.passwd.as_deref().unwrap_or_default().lines();
    lines.filter_map(|line| {
        let mut fields = line.trim().split(':');
        let name = fields.next()?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        (!name.is_empty() && uid != NOBODY_AT_ALL && gid != NOBODY_AT_ALL).then_some(PasswdEntry {
            name,
            uid,
            gid,
        })
    })
}

/// `name:password:gid:member,member`
fn groups_of(accounts: &Accounts) -> impl Iterator<Item = GroupEntry<'_>> {
    let lines = accounts.group.as_deref().unwrap_or_default().lines();
    lines.filter_map(|line| {
        let mut fields = line.trim().split(':');
        let name = fields.next()?;
        let gid = fields.nth(1)?.parse().ok()?;
        let members = fields.next().unwrap_or_default();
        (!name.is_empty() && gid != NOBODY_AT_ALL).then_some(GroupEntry { name, gid, members })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
        # a comment\n\
        broken\n\
        daemon:x:one:1::/:\n\
        app:x:1000:1001:An App:/home/app:/bin/sh\n\
        1000:x:77:78::/:\n\
        last:x:5:6";
    const GROUP: &str = "root:x:0:\n\
        wheel:x:10:root\n\
        broken\n\
        app:x:1001:\n\
        audio:x:29: app ,other\n\
        video:x:44:app\n\
        staff:x:50:root";

    fn files() -> Accounts {
        Accounts { passwd: Some(PASSWD.to_owned()), group: Some(GROUP.to_owned()) }
    }

    fn by_request(user: Option<UserRef>, group: Option<GroupRef>) -> SecurityRequest {
        SecurityRequest { user: UserRequest { user, group }, ..SecurityRequest::default() }
    }

    fn name(name: &str) -> Option<UserRef> {
        Some(UserRef::Name(name.to_owned()))
    }

    #[track_caller]
    fn check(request: &SecurityRequest, image: &str, accounts: &Accounts, want: &str) {
        let got = match resolve(request, image, accounts) {
            Ok(user) => format!("{}:{} {:?}", user.uid, user.gid, user.groups),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want);
    }

    #[track_caller]
    fn check_image(image: &str, want: &str) {
        check(&SecurityRequest::default(), image, &files(), want);
    }

    #[test]
    fn the_image_says() {
        check_image("", "0:0 [0, 10, 50]");
        check_image("app", "1000:1001 [1001, 29, 44]");
        check_image("app:video", "1000:44 [44, 29]");
        check_image("last", "5:6 [6]");
        check_image("2000", "2000:0 [0]");
        check_image("2000:3000", "2000:3000 [3000]");
        check_image(":video", "0:44 [44, 10, 50]");
        check_image("nobody", "image.user: no user \"nobody\" in the image's /etc/passwd");
        check_image("app:nogroup", "image.user: no group \"nogroup\" in the image's /etc/group");
        check_image("4294967295", "image.user: 4294967295 is no id");
    }

    #[test]
    fn a_name_of_digits_is_a_name_first() {
        check_image("1000", "77:78 [78]");
        check(&by_request(Some(UserRef::Id(1000)), None), "", &files(), "1000:1001 [1001, 29, 44]");
    }

    #[test]
    fn the_request_wins() {
        check(&by_request(name("app"), None), "root", &files(), "1000:1001 [1001, 29, 44]");
        let both = by_request(Some(UserRef::Id(5)), Some(GroupRef::Id(9)));
        check(&both, "app", &files(), "5:9 [9]");
        let alone = by_request(None, Some(GroupRef::Id(9)));
        check(&alone, "app", &files(), "security.user.group: a group needs a user beside it");
    }

    #[test]
    fn strict_takes_no_group_of_the_image() {
        let mut request = by_request(name("app"), None);
        request.supplemental_groups =
            vec![GroupRef::Id(7), GroupRef::Name("staff".into()), GroupRef::Id(7)];
        check(&request, "", &files(), "1000:1001 [1001, 29, 44, 7, 50]");
        request.groups_policy = GroupsPolicy::Strict;
        check(&request, "", &files(), "1000:1001 [1001, 7, 50]");
        request.supplemental_groups.push(GroupRef::Name("gone".into()));
        let why = "no group \"gone\" in the image's /etc/group";
        check(&request, "", &files(), &format!("security.supplemental_groups[3]: {why}"));
    }

    #[test]
    fn without_files_numbers_still_work() {
        let none = Accounts::default();
        check(&SecurityRequest::default(), "", &none, "0:0 [0]");
        check(&SecurityRequest::default(), "7:8", &none, "7:8 [8]");
        let why = "user \"app\" cannot be looked up: the image has no /etc/passwd";
        check(&by_request(name("app"), None), "", &none, &format!("security.user.user: {why}"));
    }

    #[test]
    fn an_unmapped_id_is_refused() {
        let range = |len| vec![IdMapping { container: 0, host: 100_000, len }];
        let mappings = IdMappings { uids: range(1000), gids: range(50) };
        let user = |uid, groups: &[u32]| ResolvedUser { uid, gid: 0, groups: groups.to_vec() };
        assert!(check_mapped(&user(999, &[0, 49]), &mappings).is_ok());
        let error = |user| check_mapped(&user, &mappings).unwrap_err().to_string();
        let end = "is not mapped in the pod's user namespace";
        assert_eq!(error(user(1000, &[0])), format!("security.user: uid 1000 {end}"));
        assert_eq!(error(user(0, &[0, 50])), format!("security.user: gid 50 {end}"));
    }

    proptest! {
        #[test]
        fn no_file_panics(passwd: String, group: String, image in "[a-z0-9:]{0,12}") {
            let accounts = Accounts { passwd: Some(passwd), group: Some(group) };
            let _ = resolve(&SecurityRequest::default(), &image, &accounts);
        }

        #[test]
        fn the_primary_group_comes_first_and_none_twice(
            lines in proptest::collection::vec("[ab:]{0,4}x:[0-9]{1,3}:[0-9]{0,3}:[ab,]{0,6}", 0..8),
            image in "([ab]|[0-9]{1,3})",
        ) {
            let text = lines.join("\n");
            let accounts = Accounts { passwd: Some(text.clone()), group: Some(text) };
            if let Ok(user) = resolve(&SecurityRequest::default(), &image, &accounts) {
                prop_assert_eq!(user.groups[0], user.gid);
                let mut seen = user.groups.clone();
                seen.sort_unstable();
                seen.dedup();
                prop_assert_eq!(seen.len(), user.groups.len());
            }
        }
    }
}
