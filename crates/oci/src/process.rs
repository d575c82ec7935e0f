//! The first process of a container, and those that join it later.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use oci_spec::runtime::{
    Box as ConsoleBox, BoxBuilder, PosixRlimit, PosixRlimitBuilder, PosixRlimitType, Process, Spec,
    User,
};

use crate::{
    builder::Inputs,
    capabilities::{self, Granted},
    error::{OciError, Result},
    facts::{Accounts, HostFacts},
    request::{ConsoleSize, ContainerRequest, ExecRequest, ImageFacts, NamespaceMode, Rlimit},
    user::{self, ResolvedUser},
};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where the reaping program is in a container that asks for one.
pub(crate) const INIT: &str = "/sbin/longshore-init";

/// Everything but user, capabilities, labels and profiles.
pub(crate) fn build(inputs: &Inputs<'_>, base: Option<Process>) -> Result<Process> {
    let request = inputs.request;
    let mut process = base.unwrap_or_else(bare);
    let rlimits = rlimits(process.rlimits().as_deref().unwrap_or_default(), inputs)?;
    let env = environment(process.env().as_deref().unwrap_or_default(), inputs)?;
    let cwd = working_dir(request, inputs.image, process.cwd())?;
    // An operator who forbids it for all is not overruled by a request that does not mention it.
    let no_new_privileges =
        request.security.no_new_privileges || process.no_new_privileges() == Some(true);
    process
        .set_terminal(request.tty.then_some(true))
        .set_console_size(console(request.tty, request.console_size)?)
        .set_args(Some(args(inputs)?))
        .set_env(Some(env))
        .set_cwd(cwd)
        .set_rlimits((!rlimits.is_empty()).then_some(rlimits))
        .set_no_new_privileges(Some(no_new_privileges));
    if let Some(score) = request.resources.oom_score_adj {
        process.set_oom_score_adj(Some(oom_score(score, inputs.host)?));
    }
    Ok(process)
}

/// The library's default process is a shell with a terminal type and limits; ours has nothing.
fn bare() -> Process {
    let mut process = Process::default();
    process
        .set_terminal(None)
        .set_args(None)
        .set_env(None)
        .set_cwd(PathBuf::from("/"))
        .set_capabilities(None)
        .set_rlimits(None)
        .set_no_new_privileges(None);
    process
}

pub(crate) fn user_to_spec(user: &ResolvedUser) -> User {
    let mut spec = User::default();
    spec.set_uid(user.uid).set_gid(user.gid).set_additional_gids(Some(user.groups.clone()));
    spec
}

// === arguments ===

fn args(inputs: &Inputs<'_>) -> Result<Vec<String>> {
    let mut args = command(inputs.request, inputs.image)?;
    if runs_init(inputs.request) {
        args.splice(0..0, [INIT.to_owned(), "--".to_owned()]);
    }
    Ok(args)
}

/// A reaper makes sense only as PID 1.
pub(crate) fn runs_init(request: &ContainerRequest) -> bool {
    request.init && request.security.namespaces.pid == NamespaceMode::Container
}

fn command(request: &ContainerRequest, image: &ImageFacts) -> Result<Vec<String>> {
    let is_reset = |list: &[String]| matches!(list, [one] if one.is_empty());
    let given = !request.command.is_empty();
    let entrypoint = if given { &request.command } else { &image.entrypoint };
    let rest = if given || !request.args.is_empty() { &request.args } else { &image.cmd };

    let entrypoint = entrypoint.as_slice();
    let entrypoint = if is_reset(entrypoint) { &[] } else { entrypoint };
    let args: Vec<String> = entrypoint.iter().chain(rest).cloned().collect();
    if args.is_empty() {
        return Err(OciError::invalid("command", "no command specified"));
    }
    no_nul("command", &args)?;
    Ok(args)
}

fn no_nul(field: &str, args: &[String]) -> Result<()> {
    match args.iter().position(|arg| arg.contains('\0')) {
        Some(i) => Err(OciError::invalid(format!("{field}[{i}]"), "contains a NUL byte")),
        None => Ok(()),
    }
}

fn working_dir(request: &ContainerRequest, image: &ImageFacts, base: &Path) -> Result<PathBuf> {
    match (&request.working_dir, &image.working_dir) {
        (Some(dir), _) => absolute_dir(dir),
        // Images were built with `WORKDIR app` meaning this.
        (None, Some(dir)) => Ok(Path::new("/").join(dir)),
        (None, None) => Ok(base.to_owned()),
    }
}

fn absolute_dir(dir: &Path) -> Result<PathBuf> {
    if !dir.is_absolute() {
        let why = format!("{} is not an absolute path", dir.display());
        return Err(OciError::invalid("working_dir", why));
    }
    Ok(dir.to_owned())
}

fn console(tty: bool, size: Option<ConsoleSize>) -> Result<Option<ConsoleBox>> {
    let Some(size) = size.filter(|_| tty) else { return Ok(None) };
    Ok(Some(BoxBuilder::default().height(size.height).width(size.width).build()?))
}

// === environment ===

/// Pairs in the order they first appeared; a later value takes the place of an earlier one.
#[derive(Default)]
struct Environment(Vec<(String, String)>);

impl Environment {
    fn of(list: &[String]) -> Self {
        let mut env = Self::default();
        list.iter().filter_map(|pair| pair.split_once('=')).for_each(|(k, v)| env.set(k, v));
        env
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(known, _)| known == key)
    }

    fn set(&mut self, key: &str, value: &str) {
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => value.clone_into(old),
            None => self.0.push((key.to_owned(), value.to_owned())),
        }
    }

    fn remove(&mut self, key: &str) {
        self.0.retain(|(known, _)| known != key);
    }

    fn overlay(&mut self, requested: &[(String, Option<String>)]) -> Result<()> {
        for (i, (key, value)) in requested.iter().enumerate() {
            let field = || format!("env[{i}]");
            if key.is_empty() || key.contains(['=', '\0']) {
                return Err(OciError::invalid(field(), format!("{key:?} is not a name")));
            }
            match value {
                Some(value) if value.contains('\0') => {
                    return Err(OciError::invalid(field(), format!("{key} contains a NUL byte")));
                }
                Some(value) => self.set(key, value),
                None => self.remove(key),
            }
        }
        Ok(())
    }

    fn into_list(self) -> Vec<String> {
        self.0.into_iter().map(|(key, value)| format!("{key}={value}")).collect()
    }
}

fn environment(base: &[String], inputs: &Inputs<'_>) -> Result<Vec<String>> {
    let mut env = Environment::of(base);
    if !env.has("PATH") {
        env.set("PATH", PATH);
    }
    let hostname = match inputs.pod.hostname.as_str() {
        "" => &inputs.host.hostname,
        hostname => hostname,
    };
    env.set("HOSTNAME", hostname);
    if inputs.request.tty {
        env.set("TERM", "xterm");
    }
    for (i, pair) in inputs.image.env.iter().enumerate() {
        if pair.contains('\0') {
            return Err(OciError::invalid(format!("image.env[{i}]"), "contains a NUL byte"));
        }
        if let Some((key, value)) = pair.split_once('=') {
            env.set(key, value);
        }
    }
    env.overlay(&inputs.request.env)?;
    Ok(env.into_list())
}

// === limits ===

/// By name: the base spec's, over them the operator's, over them the request's.
fn rlimits(base: &[PosixRlimit], inputs: &Inputs<'_>) -> Result<Vec<PosixRlimit>> {
    let mut limits = base.to_vec();
    let lists = [("policy.rlimits", &inputs.policy.rlimits), ("rlimits", &inputs.request.rlimits)];
    for (field, list) in lists {
        for (i, asked) in list.iter().enumerate() {
            let limit = rlimit(asked, &format!("{field}[{i}]"))?;
            match limits.iter_mut().find(|known| known.typ() == limit.typ()) {
                Some(known) => *known = limit,
                None => limits.push(limit),
            }
        }
    }
    Ok(limits)
}

fn rlimit(asked: &Rlimit, field: &str) -> Result<PosixRlimit> {
    let upper = asked.name.to_ascii_uppercase();
    let full = if upper.starts_with("RLIMIT_") { upper } else { format!("RLIMIT_{upper}") };
    let typ = full.parse::<PosixRlimitType>().map_err(|_| {
        OciError::invalid(field, format!("{:?} is not a resource limit", asked.name))
    })?;
    if asked.soft > asked.hard {
        let why = format!("soft limit {} is above the hard limit {}", asked.soft, asked.hard);
        return Err(OciError::invalid(field, why));
    }
    Ok(PosixRlimitBuilder::default().typ(typ).soft(asked.soft).hard(asked.hard).build()?)
}

/// Lower than we may go becomes the lowest we may: the kernel would refuse the whole container.
fn oom_score(score: i32, host: &HostFacts) -> Result<i32> {
    if !(-1000..=1000).contains(&score) {
        let why = format!("{score} is not in -1000..=1000");
        return Err(OciError::invalid("resources.oom_score_adj", why));
    }
    Ok(host.oom_score_floor.map_or(score, |floor| score.max(floor)))
}

// === exec ===

/// A process that joins the container `spec` describes. `accounts` is asked only for a user that
/// is given by the request.
pub fn exec_process(
    spec: &Spec,
    request: &ExecRequest,
    accounts: &Accounts,
    host: &HostFacts,
) -> Result<Process> {
    if request.command.is_empty() {
        return Err(OciError::invalid("command", "no command specified"));
    }
    no_nul("command", &request.command)?;
    let Some(mut process) = spec.process().clone() else {
        return Err(OciError::Missing { what: "the container's process".to_owned() });
    };
    let mut env = Environment::of(process.env().as_deref().unwrap_or_default());
    if request.tty && !env.has("TERM") {
        env.set("TERM", "xterm");
    }
    env.overlay(&request.env)?;
    process
        .set_args(Some(request.command.clone()))
        .set_env(Some(env.into_list()))
        .set_terminal(request.tty.then_some(true))
        .set_console_size(console(request.tty, request.console_size)?);
    if let Some(dir) = &request.working_dir {
        process.set_cwd(absolute_dir(dir)?);
    }
    if request.user.user.is_some() || request.user.group.is_some() {
        process.set_user(user_to_spec(&user::resolve_exec(&request.user, accounts)?));
    }
    if request.privileged {
        let all = Granted { all: host.capabilities.clone(), ambient: BTreeSet::new() };
        process.set_capabilities(Some(capabilities::to_spec(&all)));
        process.set_apparmor_profile(None).set_selinux_label(None);
        process.set_no_new_privileges(Some(false));
    }
    Ok(process)
}
