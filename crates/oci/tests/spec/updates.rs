//! What changes after a spec was made: limits of a running container, processes that join it.

use base::Kind;
use oci::{
    Accounts, ExecRequest, Limits, OciError, Process, Resources, Updated, UserRef, UserRequest,
    exec_process, resources_of, update,
};
use serde_json::{Value, json};

use crate::world::World;

/// A container that has these limits.
fn limited(world: &World) -> oci::Built {
    let mut world = world.clone();
    world.request.resources = Resources {
        cpu_shares: Some(100),
        cpu_quota: Some(10_000),
        cpu_period: Some(50_000),
        memory_limit: Some(1000),
        oom_score_adj: Some(5),
        ..Resources::default()
    };
    world.build().unwrap()
}

fn change(world: &World, asked: &Resources) -> (oci::Spec, Result<Updated, OciError>) {
    let limits = Limits { host: &world.host, handler: &world.handler, policy: &world.policy };
    let mut spec = limited(world).spec;
    let result = update(&mut spec, asked, limits);
    (spec, result)
}

#[track_caller]
fn check(asked: &Resources, want: &Value) {
    let (spec, result) = change(&World::new(), asked);
    let resources = result.unwrap().resources;
    let (cpu, memory) = (resources.cpu().clone(), resources.memory());
    assert_eq!(json!({ "cpu": cpu, "memory": memory }), *want);
    assert!(resources.devices().is_none());
    let linux = spec.linux().clone().unwrap().resources().clone().unwrap();
    assert_eq!((linux.cpu(), linux.memory()), (&cpu, memory));
    assert!(linux.devices().is_some());
}

#[test]
fn absent_is_unchanged_and_the_answer_is_whole() {
    let memory = json!({ "limit": 1000, "swap": 1000 });
    check(
        &Resources { cpu_quota: Some(20_000), ..Resources::default() },
        &json!({ "cpu": { "shares": 100, "quota": 20_000, "period": 50_000 }, "memory": memory }),
    );
    check(
        &Resources { cpu_quota: Some(-1), cpu_shares: Some(2), ..Resources::default() },
        &json!({ "cpu": { "shares": 2, "quota": -1, "period": 50_000 }, "memory": memory }),
    );
}

#[test]
fn a_limit_without_swap_allows_none() {
    let cpu = json!({ "shares": 100, "quota": 10_000, "period": 50_000 });
    check(
        &Resources { memory_limit: Some(2000), ..Resources::default() },
        &json!({ "cpu": cpu, "memory": { "limit": 2000, "swap": 2000 } }),
    );
    check(
        &Resources { memory_limit: Some(2000), memory_swap: Some(3000), ..Resources::default() },
        &json!({ "cpu": cpu, "memory": { "limit": 2000, "swap": 3000 } }),
    );
    check(
        &Resources { memory_swap: Some(3000), ..Resources::default() },
        &json!({ "cpu": cpu, "memory": { "limit": 1000, "swap": 3000 } }),
    );
}

#[test]
fn swap_that_is_not_counted_is_not_limited() {
    let mut world = World::new();
    world.host.cgroup.swap = false;
    let asked =
        Resources { memory_limit: Some(2000), memory_swap: Some(2000), ..Resources::default() };
    let resources = change(&world, &asked).1.unwrap().resources;
    assert_eq!(json!(resources.memory()), json!({ "limit": 2000 }));
}

#[test]
fn unified_is_merged() {
    let unified = |pairs: &[(&str, &str)]| Resources {
        unified: pairs.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect(),
        ..Resources::default()
    };
    let world = World::new();
    let limits = Limits { host: &world.host, handler: &world.handler, policy: &world.policy };
    let mut spec = limited(&world).spec;
    update(&mut spec, &unified(&[("memory.high", "1"), ("cpu.idle", "0")]), limits).unwrap();
    let all = update(&mut spec, &unified(&[("memory.high", "2")]), limits).unwrap();
    assert_eq!(json!(all.resources.unified()), json!({ "memory.high": "2", "cpu.idle": "0" }));
}

#[test]
fn a_refused_update_changes_nothing() {
    let world = World::new();
    let asked = Resources {
        cpu_shares: Some(7),
        memory_limit: Some(10),
        memory_swap: Some(5),
        ..Resources::default()
    };
    let (spec, result) = change(&world, &asked);
    assert_eq!(result.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(spec, limited(&world).spec);
}

#[test]
fn the_score_of_a_live_process_stays() {
    let asked = Resources { oom_score_adj: Some(1000), ..Resources::default() };
    let (spec, result) = change(&World::new(), &asked);
    result.unwrap();
    assert_eq!(resources_of(&spec).oom_score_adj, Some(5));
}

#[test]
fn a_status_reads_back_what_was_asked() {
    let world = World::with(|w| {
        w.v1();
        w.policy.ignore_hugepages = false;
    });
    let asked = Resources {
        cpu_shares: Some(2),
        cpu_quota: Some(2000),
        cpu_period: Some(3000),
        cpu_realtime_runtime: Some(4),
        cpu_realtime_period: Some(5),
        cpuset_cpus: Some("0".into()),
        cpuset_mems: Some("1".into()),
        memory_limit: Some(6),
        memory_reservation: Some(7),
        memory_swap: Some(8),
        memory_swappiness: Some(9),
        oom_kill_disable: Some(false),
        oom_score_adj: Some(10),
        hugepages: vec![oci::HugepageLimit { page_size: "1GB".into(), limit: 11 }],
        pids_limit: Some(12),
        ..Resources::default()
    };
    let mut world = world;
    world.request.resources = asked.clone();
    assert_eq!(resources_of(&world.build().unwrap().spec), asked);
}

#[test]
fn what_has_no_effect_is_said() {
    let world = World::with(|w| {
        w.host.cgroup.controllers.clear();
        w.request.resources = Resources {
            cpu_shares: Some(2),
            memory_reservation: Some(1),
            memory_swappiness: Some(1),
            oom_kill_disable: Some(true),
            hugepages: vec![oci::HugepageLimit { page_size: "1GB".into(), limit: 1 }],
            ..Resources::default()
        };
    });
    let built = world.build().unwrap();
    let fields: Vec<_> = built.ignored.iter().map(|ignored| ignored.field).collect();
    assert_eq!(
        fields,
        [
            "resources.cpu_shares",
            "resources.memory_reservation",
            "resources.memory_swappiness",
            "resources.oom_kill_disable",
            "resources.hugepages"
        ]
    );
    assert_eq!(resources_of(&built.spec), Resources::default());
}

// === exec ===

fn exec(world: &World, request: &ExecRequest) -> Result<Process, OciError> {
    exec_process(&world.build().unwrap().spec, request, &world.accounts, &world.host)
}

fn command() -> ExecRequest {
    ExecRequest { command: vec!["true".into()], ..ExecRequest::default() }
}

#[test]
fn an_exec_is_as_the_first_process_but_for_its_command() {
    let world = World::with(|w| {
        w.request.tty = true;
        w.request.security.user.user = Some(UserRef::Id(1000));
        w.request.security.no_new_privileges = true;
    });
    let first = world.build().unwrap().spec.process().clone().unwrap();
    let mut process = exec(&world, &command()).unwrap();
    assert_eq!((process.args(), process.terminal()), (&Some(vec!["true".into()]), None));
    process.set_args(first.args().clone()).set_terminal(first.terminal());
    assert_eq!(process, first);
}

#[test]
fn an_exec_may_say_more() {
    let request = ExecRequest {
        tty: true,
        env: vec![("LANG".into(), None), ("X".into(), Some("1".into()))],
        working_dir: Some("/tmp".into()),
        user: UserRequest { user: Some(UserRef::Name("app".into())), group: None },
        privileged: true,
        ..command()
    };
    let world = World::new();
    let process = exec(&world, &request).unwrap();
    let env = process.env().clone().unwrap();
    assert!(env.ends_with(&["HOSTNAME=shop-0".into(), "TERM=xterm".into(), "X=1".into()]));
    assert_eq!(process.cwd().to_str(), Some("/tmp"));
    assert_eq!((process.user().uid(), process.user().gid()), (1000, 1000));
    assert_eq!(process.user().additional_gids(), &Some(vec![1000, 44]));
    let bounding = process.capabilities().clone().unwrap().bounding().clone().unwrap();
    assert_eq!(bounding.len(), world.host.capabilities.len());
}

#[test]
fn a_bad_exec_is_refused() {
    let world = World::new();
    let refused = |request: &ExecRequest| exec(&world, request).unwrap_err().to_string();
    assert_eq!(refused(&ExecRequest::default()), "command: no command specified");
    let dir = ExecRequest { working_dir: Some("x".into()), ..command() };
    assert_eq!(refused(&dir), "working_dir: x is not an absolute path");
    let user = UserRequest { user: Some(UserRef::Name("x".into())), group: None };
    let user = ExecRequest { user, ..command() };
    let spec = world.build().unwrap().spec;
    let error = exec_process(&spec, &user, &Accounts::default(), &world.host).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}
