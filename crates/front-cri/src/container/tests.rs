use engine::phase::{Exited, Reason};
use prost::Message;

use super::*;
use crate::sample;

#[test]
fn every_field_reaches_the_engine() {
    insta::assert_json_snapshot!(request(Some(sample::container_config())).unwrap());
}

#[test]
fn the_least_a_container_needs() {
    let v1::ContainerConfig { metadata, image, .. } = sample::container_config();
    let got = request(Some(v1::ContainerConfig { metadata, image, ..Default::default() })).unwrap();
    let mut want =
        NewContainer { attempt: got.attempt, image: got.image.clone(), ..Default::default() };
    want.container.name = "web".into();
    want.container.security = security::of_container(None).unwrap();
    want.container.resources.oom_score_adj = Some(0);
    assert_eq!(got, want);
}

#[test]
fn status_echoes_what_was_asked() {
    let config = sample::container_config();
    let record = sample::container_record(request(Some(config.clone())).unwrap());
    let got = status(&record);
    assert_eq!(got.id, record.id.to_string());
    assert_eq!(got.metadata, config.metadata);
    assert_eq!(got.labels, config.labels);
    assert_eq!(got.annotations, config.annotations);
    assert_eq!(got.mounts, config.mounts);
    assert_eq!(got.created_at, sample::CREATED_AT);
    assert_eq!(got.log_path, "/var/log/pods/web/0.log");
    assert_eq!(got.resources.unwrap().linux, config.linux.unwrap().resources);
    assert_eq!(got.stop_signal, v1::Signal::Sigquit as i32);
    let user = got.user.unwrap().linux.unwrap();
    assert_eq!((user.uid, user.gid, user.supplemental_groups), (1000, 1001, vec![1001, 2000]));

    let asked = config.image.unwrap();
    let image = got.image.unwrap();
    assert_eq!(image.image, "registry.example/web:1", "the tag, not what was asked for");
    assert_eq!(image.user_specified_image, asked.user_specified_image);
    assert_eq!(image.annotations, asked.annotations);
    assert_eq!(got.image_id, record.image.id.to_string());
    assert_eq!(got.image_ref, record.image.repo_digest);

    let got = item(&record);
    assert_eq!((got.id, got.pod_sandbox_id), (record.id.to_string(), record.pod.to_string()));
    assert_eq!((got.metadata, got.labels), (config.metadata, config.labels));
    assert_eq!((got.annotations, got.created_at), (config.annotations, sample::CREATED_AT));
    assert_eq!(got.image.unwrap().image, asked.image);
    assert_eq!(got.image_id, record.image.id.to_string());
    assert_eq!(got.image_ref, got.image_id);
}

/// State, started, finished, code, reason and message.
type Life = (v1::ContainerState, i64, i64, i32, &'static str, &'static str);

#[track_caller]
fn life_is(phase: ContainerPhase, want: Life) {
    let mut record = sample::container_record(NewContainer::default());
    record.phase = phase;
    let got = status(&record);
    let life = (
        got.state(),
        got.started_at,
        got.finished_at,
        got.exit_code,
        got.reason.as_str(),
        got.message.as_str(),
    );
    assert_eq!(life, want);
    assert_eq!(item(&record).state(), want.0);
}

#[test]
fn phases_as_the_kubelet_reads_them() {
    use v1::ContainerState::{
        ContainerCreated, ContainerExited, ContainerRunning, ContainerUnknown,
    };
    let since = time::from_unix_nanos(7);
    let exited = |code, started: Option<i64>, reason, message: &str| {
        ContainerPhase::Exited(Exited {
            code,
            at: time::from_unix_nanos(9),
            started: started.map(time::from_unix_nanos),
            reason,
            message: message.into(),
        })
    };
    life_is(ContainerPhase::Created, (ContainerCreated, 0, 0, 0, "", ""));
    life_is(ContainerPhase::Starting, (ContainerCreated, 0, 0, 0, "", ""));
    life_is(ContainerPhase::Running { pid: 3, since }, (ContainerRunning, 7, 0, 0, "", ""));
    life_is(exited(0, Some(7), Reason::Completed, ""), (ContainerExited, 7, 9, 0, "Completed", ""));
    life_is(
        exited(137, Some(7), Reason::OOMKilled, ""),
        (ContainerExited, 7, 9, 137, "OOMKilled", ""),
    );
    life_is(
        exited(128, None, Reason::StartError, "no such file"),
        (ContainerExited, 0, 9, 128, "StartError", "no such file"),
    );
    life_is(ContainerPhase::Unknown { started: Some(since) }, (ContainerUnknown, 7, 0, 0, "", ""));
}

#[track_caller]
fn refused(change: impl FnOnce(&mut v1::ContainerConfig), want: &str) {
    let mut config = sample::container_config();
    change(&mut config);
    assert_eq!(request(Some(config)).unwrap_err().to_string(), want);
}

#[test]
fn what_cannot_be_meant_is_refused_by_name() {
    assert_eq!(request(None), Err(NO_METADATA));
    refused(|c| c.metadata = None, "container config must include metadata");
    refused(|c| c.image = None, "image.image: must not be empty");
    refused(
        |c| c.envs[1].value = vec![b'a', 0xff].into(),
        "envs[1].value: the value of EMPTY is not UTF-8",
    );
    refused(|c| c.mounts[1].propagation = 5, "mounts[1].propagation: unknown value 5");
    refused(|c| c.devices[0].host_path.clear(), "devices[0].host_path: must not be empty");
    refused(
        |c| c.devices[0].container_path.clear(),
        "devices[0].container_path: must not be empty",
    );
    refused(
        |c| c.devices[0].permissions = "rx".into(),
        "devices[0].permissions: 'x' is not one of r, w and m",
    );
    refused(|c| c.cdi_devices[0].name.clear(), "CDI_devices[0].name: must not be empty");
    refused(|c| c.stop_signal = 99, "stop_signal: unknown value 99");
    refused(
        |c| c.linux.as_mut().unwrap().resources.as_mut().unwrap().cpu_quota = -7,
        "linux.resources.cpu_quota: -7 is out of range",
    );
    refused(
        |c| {
            let context = c.linux.as_mut().unwrap().security_context.as_mut().unwrap();
            context.seccomp = Some(v1::SecurityProfile { profile_type: 8, ..Default::default() });
        },
        "linux.security_context.seccomp.profile_type: unknown value 8",
    );
    refused(
        |c| {
            let security_context = Some(v1::WindowsContainerSecurityContext {
                host_process: true,
                ..Default::default()
            });
            c.windows = Some(v1::WindowsContainerConfig { security_context, resources: None });
        },
        "windows: this is a Linux node",
    );
}

#[test]
fn times_of_a_stop_and_of_a_command() {
    assert_eq!(grace(30), Duration::from_secs(30));
    assert_eq!(grace(0), Duration::ZERO);
    assert_eq!(grace(-1), Duration::ZERO);
    let limit = |timeout| exec(vec!["true".into()], timeout).map(|(_, limit)| limit);
    assert_eq!(limit(0), Ok(None));
    assert_eq!(limit(5), Ok(Some(Duration::from_secs(5))));
    assert_eq!(limit(-5).unwrap_err().to_string(), "timeout: -5 is out of range");
    assert_eq!(exec(Vec::new(), 0).unwrap_err().to_string(), "cmd: must not be empty");
}

#[track_caller]
fn streams(stdout: usize, stderr: usize, want: (usize, usize)) {
    let output = ExecOutput { stdout: vec![1; stdout], stderr: vec![2; stderr], code: 3 };
    let got = exec_response(output);
    assert_eq!((got.stdout.len(), got.stderr.len()), want, "of {stdout} and {stderr}");
    assert_eq!(got.exit_code, 3);
    assert!(got.encoded_len() <= MAX_MESSAGE_BYTES);
}

#[test]
fn output_is_cut_to_what_fits_into_a_message() {
    let room = MAX_MESSAGE_BYTES - REST_BYTES;
    let full = 16 << 20;
    streams(0, 0, (0, 0));
    streams(10, 20, (10, 20));
    streams(full, 0, (room, 0));
    streams(0, full, (0, room));
    streams(full, 100, (room - 100, 100));
    streams(100, full, (100, room - 100));
    streams(full, full, (room / 2, room / 2));
}
