//! Containers, both ways, and commands run in them.

use std::time::Duration;

use api_cri::{MAX_MESSAGE_BYTES, v1};
use base::{Labels, time};
use bytes::Bytes;
use engine::{
    phase::ContainerPhase,
    record::ContainerRecord,
    request::{CheckpointRequest, ImageChoice, NewContainer},
    view::{ContainerState, ExecOutput},
};
use oci::{ContainerRequest, DeviceRequest, ExecRequest};

use crate::{
    field::{Invalid, Result, Under, not_empty, not_windows, number, path, set},
    mount, resources, security, signal,
};

const NO_METADATA: Invalid = Invalid::Request("container config must include metadata");

pub(crate) fn request(config: Option<v1::ContainerConfig>) -> Result<NewContainer> {
    let mut config = config.ok_or(NO_METADATA)?;
    let v1::ContainerMetadata { name, attempt } = config.metadata.take().ok_or(NO_METADATA)?;
    let v1::ImageSpec { image, annotations, user_specified_image, .. } =
        config.image.take().unwrap_or_default();
    Ok(NewContainer {
        attempt,
        image: ImageChoice {
            reference: not_empty("image.image", image)?,
            user_specified: user_specified_image,
            annotations: Labels(annotations),
        },
        labels: Labels(std::mem::take(&mut config.labels)),
        log_path: path(std::mem::take(&mut config.log_path)),
        container: container_request(name, config)?,
    })
}

fn container_request(name: String, config: v1::ContainerConfig) -> Result<ContainerRequest> {
    let v1::ContainerConfig {
        metadata: _,
        image: _,
        command,
        args,
        working_dir,
        envs,
        mounts,
        devices,
        labels: _,
        annotations,
        log_path: _,
        stdin,
        stdin_once,
        tty,
        linux,
        windows,
        cdi_devices,
        stop_signal,
    } = config;
    not_windows(windows)?;
    let v1::LinuxContainerConfig { resources, security_context } = linux.unwrap_or_default();
    Ok(ContainerRequest {
        name,
        command,
        args,
        env: each("envs", envs, env)?,
        working_dir: path(working_dir),
        mounts: each("mounts", mounts, mount::request)?,
        devices: each("devices", devices, device)?,
        cdi_devices: each("CDI_devices", cdi_devices, |device| not_empty("name", device.name))?,
        annotations: Labels(annotations),
        tty,
        stdin,
        stdin_once,
        security: security::of_container(security_context).under("linux.security_context")?,
        resources: resources::initial(resources).under("linux.resources")?,
        stop_signal: signal::request(stop_signal)?,
        ..ContainerRequest::default()
    })
}

fn each<W, T>(
    field: &'static str,
    list: Vec<W>,
    translate: impl Fn(W) -> Result<T>,
) -> Result<Vec<T>> {
    let one = |(i, item)| translate(item).under(format_args!("{field}[{i}]"));
    list.into_iter().enumerate().map(one).collect()
}

/// The wire takes any bytes, but a runtime spec is JSON.
fn env(v1::KeyValue { key, value }: v1::KeyValue) -> Result<(String, Option<String>)> {
    let value = String::from_utf8(value.into())
        .map_err(|_| Invalid::new("value", format_args!("the value of {key} is not UTF-8")))?;
    Ok((key, Some(value)))
}

fn device(device: v1::Device) -> Result<DeviceRequest> {
    let v1::Device { container_path, host_path, permissions } = device;
    if let Some(other) = permissions.chars().find(|c| !"rwm".contains(*c)) {
        let why = format_args!("{other:?} is not one of r, w and m");
        return Err(Invalid::new("permissions", why));
    }
    Ok(DeviceRequest {
        host_path: not_empty("host_path", host_path)?.into(),
        container_path: not_empty("container_path", container_path)?.into(),
        permissions,
    })
}

pub(crate) fn item(container: &ContainerRecord) -> v1::Container {
    let id = container.image.id.to_string();
    v1::Container {
        id: container.id.to_string(),
        pod_sandbox_id: container.pod.to_string(),
        metadata: Some(metadata(&container.request)),
        image: Some(image(&container.request.image, &container.request.image.reference)),
        image_ref: id.clone(),
        state: state(container).into(),
        created_at: time::to_unix_nanos(container.created_at),
        labels: container.request.labels.0.clone(),
        annotations: container.request.container.annotations.0.clone(),
        image_id: id,
    }
}

/// Old ways to say what has a field of its own by now, where only the old one is used.
pub(crate) fn outdated(config: Option<&v1::ContainerConfig>) -> Vec<(&'static str, &'static str)> {
    let linux = config.and_then(|config| config.linux.as_ref());
    let Some(security) = linux.and_then(|linux| linux.security_context.as_ref()) else {
        return Vec::new();
    };
    #[expect(deprecated, reason = "this is about them")]
    let (apparmor, seccomp) = (&security.apparmor_profile, &security.seccomp_profile_path);
    let mut met = Vec::new();
    if security.apparmor.is_none() && !apparmor.is_empty() {
        met.push(("cri-apparmor-profile", "clients should send apparmor, not apparmor_profile"));
    }
    if security.seccomp.is_none() && !seccomp.is_empty() {
        met.push((
            "cri-seccomp-profile-path",
            "clients should send seccomp, not seccomp_profile_path",
        ));
    }
    met
}

pub(crate) fn attributes(container: &ContainerRecord) -> v1::ContainerAttributes {
    v1::ContainerAttributes {
        id: container.id.to_string(),
        metadata: Some(metadata(&container.request)),
        labels: container.request.labels.0.clone(),
        annotations: container.request.container.annotations.0.clone(),
    }
}

pub(crate) fn status(container: &ContainerRecord) -> v1::ContainerStatus {
    let ContainerRecord { request, image: pinned, phase, made, .. } = container;
    let exited = match phase {
        ContainerPhase::Exited(exited) => Some(exited),
        _ => None,
    };
    let log_path = container.log_path.as_ref();
    v1::ContainerStatus {
        id: container.id.to_string(),
        metadata: Some(metadata(request)),
        state: state(container).into(),
        created_at: time::to_unix_nanos(container.created_at),
        started_at: time::to_wire(phase.started()),
        finished_at: time::to_wire(exited.map(|exited| exited.at)),
        exit_code: exited.map_or(0, |exited| exited.code),
        image: Some(image(&request.image, &pinned.name)),
        image_ref: pinned.repo_digest.clone(),
        reason: exited.map_or("", |exited| exited.reason.as_str()).to_owned(),
        message: exited.map(|exited| exited.message.clone()).unwrap_or_default(),
        labels: request.labels.0.clone(),
        annotations: request.container.annotations.0.clone(),
        mounts: mounts(container),
        log_path: log_path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
        resources: Some(v1::ContainerResources {
            linux: Some(resources::wire(&made.resources)),
            windows: None,
        }),
        image_id: pinned.id.to_string(),
        user: Some(v1::ContainerUser {
            linux: Some(v1::LinuxContainerUser {
                uid: made.uid.into(),
                gid: made.gid.into(),
                supplemental_groups: made.groups.iter().map(|&group| group.into()).collect(),
            }),
        }),
        stop_signal: signal::wire(&made.stop_signal).into(),
    }
}

/// As they were asked for, images with what they were.
fn mounts(container: &ContainerRecord) -> Vec<v1::Mount> {
    let mut mounts: Vec<_> = container.request.container.mounts.iter().map(mount::wire).collect();
    for (number, shown) in &container.made.images {
        if let Some(image) = mounts.get_mut(*number).and_then(|mount| mount.image.as_mut()) {
            image.image_ref.clone_from(&shown.repo_digest);
        }
    }
    mounts
}

fn metadata(request: &NewContainer) -> v1::ContainerMetadata {
    v1::ContainerMetadata { name: request.container.name.clone(), attempt: request.attempt }
}

/// As the client asked for it, under the given name.
fn image(choice: &ImageChoice, name: &str) -> v1::ImageSpec {
    v1::ImageSpec {
        image: name.to_owned(),
        annotations: choice.annotations.0.clone(),
        user_specified_image: choice.user_specified.clone(),
        ..Default::default()
    }
}

fn state(container: &ContainerRecord) -> v1::ContainerState {
    match container.state() {
        ContainerState::Created => v1::ContainerState::ContainerCreated,
        ContainerState::Running => v1::ContainerState::ContainerRunning,
        ContainerState::Exited => v1::ContainerState::ContainerExited,
        ContainerState::Unknown => v1::ContainerState::ContainerUnknown,
    }
}

/// No time at all, or less, is an immediate SIGKILL.
pub(crate) fn grace(seconds: i64) -> Duration {
    Duration::from_secs(seconds.try_into().unwrap_or(0))
}

/// The command and, unless it may run for ever, its time limit.
/// The id of a container, and what is wanted of it.
pub(crate) fn checkpoint(
    request: v1::CheckpointContainerRequest,
) -> Result<(String, CheckpointRequest)> {
    let v1::CheckpointContainerRequest { container_id, location, timeout } = request;
    let id = not_empty("container_id", container_id)?;
    let location = not_empty("location", location)?.into();
    let limit = set(number("timeout", timeout)?).map(Duration::from_secs);
    Ok((id, CheckpointRequest { location, limit }))
}

pub(crate) fn exec(cmd: Vec<String>, timeout: i64) -> Result<(ExecRequest, Option<Duration>)> {
    if cmd.is_empty() {
        return Err(Invalid::new("cmd", "must not be empty"));
    }
    let limit = set(number("timeout", timeout)?).map(Duration::from_secs);
    Ok((ExecRequest { command: cmd, ..Default::default() }, limit))
}

/// What a message holds beside the two streams, generously.
const REST_BYTES: usize = 1024;

/// The streams, cut where the message would be more than a client takes: half an output
/// tells more than an error that there was too much of it.
pub(crate) fn exec_response(output: ExecOutput) -> v1::ExecSyncResponse {
    let ExecOutput { mut stdout, mut stderr, code } = output;
    let room = MAX_MESSAGE_BYTES - REST_BYTES;
    // Whatever one leaves of its half is the other's.
    let for_stderr = stderr.len().min(room.saturating_sub(stdout.len()).max(room / 2));
    stderr.truncate(for_stderr);
    stdout.truncate(room - for_stderr);
    v1::ExecSyncResponse {
        stdout: Bytes::from(stdout),
        stderr: Bytes::from(stderr),
        exit_code: code,
    }
}

#[cfg(test)]
mod tests;
