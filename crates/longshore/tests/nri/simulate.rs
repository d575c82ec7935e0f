//! Plugins against a pod on paper, and that it is the truth.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use nri_sdk::Creation;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};
use testkit::{GoTool, Node, rounds, sdk_example, skip};

use crate::{
    LONGSHORE,
    act::{Act, Wish, install},
    probe::{connect, script},
};

const POD: &str = r#"
metadata:
  name: web
  annotations:
    ulimits.noderesource.dev/container.nginx: '[{type: nofile, hard: 4096, soft: 1024}]'
spec:
  containers:
  - name: helper
    args: [sleep, "1"]
  - name: nginx
    args: [nginx]
    env: [{ name: OLD, value: "1" }, { name: KEPT, value: "2" }]
    resources: { limits: { cpu: 500m, memory: 64Mi } }
"#;

/// A directory with plugins and a pod.
struct Desk {
    dir: tempfile::TempDir,
}

/// What a simulation said.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Desk {
    fn new(pod: &str) -> Self {
        let desk = Self { dir: tempfile::tempdir().unwrap() };
        fs::write(desk.path("pod.yaml"), pod).unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn plugin(&self, id: &str, act: &Act) -> PathBuf {
        install(self.dir.path(), id, act)
    }

    fn simulate(&self, plugins: &[&Path], more: &[&str]) -> Said {
        self.run(plugins, &[&["--pod", "pod.yaml"], more].concat())
    }

    fn run(&self, plugins: &[&Path], more: &[&str]) -> Said {
        let mut command = Command::new(LONGSHORE);
        command.args(["nri", "simulate", "--plugin-config-dir", "conf.d"]).args(more);
        if !more.contains(&"--request-timeout") {
            // The machine may be busy with a build.
            command.args(["--request-timeout", "60s"]);
        }
        command.args(plugins.iter().flat_map(|plugin| [Path::new("--plugin"), plugin]));
        let output = command.current_dir(self.dir.path()).output().unwrap();
        Said {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn json(&self, plugins: &[&Path], more: &[&str]) -> Value {
        let said = self.simulate(plugins, &[more, &["--json"]].concat());
        serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {} {}", said.out, said.err))
    }
}

fn env(key: &str, value: &str) -> Act {
    let wish = Wish { env: [(key.into(), value.into())].into(), ..Wish::default() };
    Act { wish, ..Act::default() }
}

/// The step of an event, about a container or about the pod.
fn step<'a>(report: &'a Value, event: &str, container: &str) -> &'a Value {
    let mut steps = report["steps"].as_array().unwrap().iter();
    let found = steps.find(|step| step["event"] == event && step["container"] == container);
    found.unwrap_or_else(|| panic!("no {event} of {container:?} in {report:#}"))
}

#[test]
fn what_each_plugin_asks_for_and_what_comes_of_it_is_shown() {
    let desk = Desk::new(POD);
    let wish = Wish {
        env: [("NEW".into(), "1".into())].into(),
        removes_env: vec!["OLD".into()],
        pids: Some(44),
        ..Wish::default()
    };
    let first = desk.plugin("10-first", &Act { wish, ..Act::default() });
    let second = desk.plugin("20-second", &env("TWO", "2"));
    let report = desk.json(&[&second, &first], &[]);
    assert_eq!(report["ok"], true, "{report:#}");
    let ids: Vec<_> = report["plugins"].as_array().unwrap().iter().map(|p| &p["id"]).collect();
    assert_eq!(ids, ["10-first", "20-second"], "in the order in which they are asked");
    let create = step(&report, "CreateContainer", "nginx");
    assert_eq!(create["answers"][0]["plugin"], "10-first");
    assert_eq!(create["answers"][1]["asked"]["adjust"]["env"][0]["key"], "TWO");
    assert_eq!(create["merged"]["linux"]["resources"]["pids"]["limit"], 44);
    let owners = create["owners"].as_array().unwrap();
    assert!(owners.contains(&json!({ "field": "Env \"TWO\"", "plugin": "20-second" })));
    let changed = |path: &str| {
        let mut all = create["changes"].as_array().unwrap().iter();
        all.find(|change| change["path"] == path).cloned().unwrap_or_default()
    };
    assert_eq!(changed("/process/env")["before"], json!(["OLD=1"]));
    assert_eq!(changed("/process/env")["after"], json!(["NEW=1", "TWO=2"]));
    assert_eq!(changed("/linux/resources/pids")["after"], json!({ "limit": 44 }), "{create:#}");

    let said = desk.simulate(&[&first, &second], &["--container", "nginx"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for part in ["10-first", "Env \"TWO\"", "- /process/env \"OLD=1\"\n", "AFTER"] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    assert!(!said.out.contains("helper"), "{}", said.out);
}

#[test]
fn plugins_in_conflict_are_both_named_with_the_field() {
    let desk = Desk::new(POD);
    let (a, b) = (desk.plugin("10-a", &env("KEY", "1")), desk.plugin("20-b", &env("KEY", "2")));
    let said = desk.simulate(&[&a, &b], &[]);
    assert_eq!(said.code, Some(1));
    let error = said.out.lines().find(|line| line.starts_with("ERROR: ")).unwrap();
    for part in ["10-a", "20-b", "KEY"] {
        assert!(error.contains(part), "{error}");
    }
    let report = desk.json(&[&a, &b], &[]);
    let create = step(&report, "CreateContainer", "nginx");
    assert_eq!(create["answers"].as_array().unwrap().len(), 2, "both were heard: {create:#}");
    assert!(create.get("merged").is_none());
}

#[test]
fn one_that_refuses_crashes_or_hangs_is_named() {
    let desk = Desk::new(POD);
    let good = desk.plugin("10-good", &Act::default());
    let check = |id: &str, act: Act, more: &[&str], want: &str| {
        let bad = desk.plugin(id, &act);
        let said = desk.simulate(&[&good, &bad], more);
        assert_eq!(said.code, Some(1), "{id}: {}", said.out);
        let lines: Vec<_> = said.out.lines().filter(|line| line.contains(id)).collect();
        assert!(lines.iter().any(|line| line.contains(want)), "{id}: {lines:?}");
    };
    let refuses = Some("not here".to_owned());
    check("20-no", Act { refuses, ..Act::default() }, &[], "not here");
    let crashes = "Configure".to_owned();
    check("30-early", Act { crashes, ..Act::default() }, &[], "signal: 6");
    let crashes = "CreateContainer".to_owned();
    check("40-late", Act { crashes, ..Act::default() }, &[], "signal: 6");
    let hangs = "StartContainer".to_owned();
    let quick = &["--request-timeout", "300ms"][..];
    check("50-slow", Act { hangs, ..Act::default() }, quick, "longer than its time limit");
}

#[test]
fn what_a_daemon_would_refuse_is_refused_and_the_plugin_named() {
    let desk = Desk::new(POD);
    let good = desk.plugin("10-good", &env("GOOD", "1"));
    let check = |wish: Wish, want: &str| {
        let bad = desk.plugin("20-bad", &Act { wish, ..Act::default() });
        let said = desk.simulate(&[&good, &bad], &[]);
        assert_eq!(said.code, Some(1), "{want}: {}", said.out);
        let error = said.out.lines().find(|line| line.starts_with("ERROR: ")).unwrap();
        let want = format!("apply what plugin 20-bad asks for: {want}");
        assert!(error.contains(&want), "{want}: {error}");
    };
    let wish = Wish::default;
    check(Wish { memory: Some(-5), ..wish() }, "resources.memory_limit: -5");
    check(Wish { oom: Some(5000), ..wish() }, "OomScoreAdj: 5000 is not in");
    let rlimits = [("RLIMIT_CORE".to_owned(), (20, 10))].into();
    check(Wish { rlimits, ..wish() }, "Rlimits \"RLIMIT_CORE\": soft 20 is above hard 10");
    // Of the names that no variable can have the SDK lets only this one pass.
    let variable = [("A\0".to_owned(), "1".to_owned())].into();
    check(Wish { env: variable, ..wish() }, "Env \"A\\0\": ");
}

#[test]
fn other_containers_are_changed_and_evicted_on_paper() {
    let desk = Desk::new(POD);
    let shrinks = [("helper".to_owned(), 7)].into();
    let shrinker = desk.plugin("10-shrinker", &Act { shrinks, ..Act::default() });
    let report = desk.json(&[&shrinker], &[]);
    let changed = &step(&report, "CreateContainer", "nginx")["changed"][0];
    assert_eq!(changed["by"], "10-shrinker", "{report:#}");
    let asked = "/asked/update/0/linux/resources/pids/limit";
    assert_eq!(changed.pointer(asked), Some(&json!(7)), "{changed:#}");

    let evicts = Some("helper".to_owned());
    let evictor = desk.plugin("20-evictor", &Act { evicts, ..Act::default() });
    let report = desk.json(&[&evictor], &[]);
    assert_eq!(report["ok"], true, "{report:#}");
    let changed = &step(&report, "CreateContainer", "nginx")["changed"][0];
    assert_eq!(changed.pointer("/asked/evict/0/reason"), Some(&json!("makes room")));
}

#[test]
fn a_recording_can_be_edited_and_replayed() {
    let desk = Desk::new(POD);
    let plugin = desk.plugin("10-a", &env("KEY", "1"));
    let first = desk.json(&[&plugin], &["--record", "events"]);
    let events = fs::read_to_string(desk.path("events")).unwrap();
    let kinds: Vec<Value> = events.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(kinds[0]["event"], "RunPodSandbox");
    assert_eq!(kinds.last().unwrap()["event"], "RemovePodSandbox");

    let said = desk.run(&[&plugin], &["--replay", "events", "--json"]);
    let again: Value = serde_json::from_str(&said.out).unwrap();
    let changes = |report: &Value| step(report, "CreateContainer", "nginx")["changes"].clone();
    assert_eq!(changes(&again), changes(&first));

    let update = r#"{"event":"UpdateContainer","container":"nginx","resources":{"cpu_shares":99}}"#;
    let at = events.find(r#"{"event":"StopContainer","container":"nginx"#).unwrap();
    let edited = format!("{}{update}\n{}", &events[..at], &events[at..]);
    fs::write(desk.path("edited"), edited).unwrap();
    let said = desk.run(&[&plugin], &["--replay", "edited", "--json"]);
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(step(&report, "UpdateContainer", "nginx")["error"], Value::Null, "{report:#}");

    fs::write(desk.path("bad"), "{\"event\":\"Nonsense\"}\n").unwrap();
    let said = desk.run(&[&plugin], &["--replay", "bad"]);
    assert!(said.err.contains("replay bad: line 1"), "{}", said.err);
}

#[test]
fn sample_plugins_and_one_in_go_work_without_a_daemon() {
    let desk = Desk::new(POD);
    let ulimits = sdk_example(LONGSHORE, "ulimit-adjuster").unwrap();
    let report = desk.json(&[&ulimits], &[]);
    let create = step(&report, "CreateContainer", "nginx");
    let owner = json!({ "field": "Rlimits \"RLIMIT_NOFILE\"", "plugin": "10-ulimit-adjuster" });
    assert_eq!(create["owners"], json!([owner]), "{report:#}");

    let Some(go) = GoTool::NriPlugin.build().unwrap() else {
        return skip("sample_plugins_and_one_in_go", "Go is not installed");
    };
    let wish = json!({ "env": [{ "key": "GO", "value": "1" }, { "key": "-OLD" }],
                       "linux": { "oomScoreAdj": { "value": 77 } } });
    let annotation = format!("annotations:\n    adjust: '{wish}'");
    fs::write(desk.path("pod.yaml"), POD.replace("annotations:", &annotation)).unwrap();
    let report = desk.json(&[&ulimits, &go], &[]);
    assert_eq!(report["ok"], true, "{report:#}");
    let create = step(&report, "CreateContainer", "nginx");
    let fields = create["owners"].as_array().unwrap().iter();
    let by_go = fields.filter(|owned| owned["plugin"] == "20-nri-go").count();
    assert_eq!(by_go, 2, "what is taken away has no owner: {create:#}");
    let env = json!({ "path": "/process/env", "before": ["OLD=1"], "after": ["GO=1"] });
    assert!(create["changes"].as_array().unwrap().contains(&env), "{create:#}");

    // What no handler can do in cgroup v2 is refused by name here as well.
    fs::create_dir_all(desk.path("conf.d")).unwrap();
    fs::write(desk.path("conf.d/nri-go.conf"), "mode=adjust").unwrap();
    fs::write(desk.path("pod.yaml"), POD).unwrap();
    let said = desk.simulate(&[&go], &[]);
    assert_eq!(said.code, Some(1));
    let want = "ERROR: apply what plugin 10-nri-go asks for: resources.cpu_realtime_runtime";
    assert!(said.out.contains(want), "{}", said.out);
}

#[test]
fn what_is_not_there_is_said() {
    let desk = Desk::new(POD);
    let plugin = desk.plugin("10-a", &Act::default());
    let said = desk.simulate(&[Path::new("./absent")], &[]);
    assert!(said.err.contains("plugin ./absent"), "{}", said.err);
    let said = desk.simulate(&[&plugin], &["--container", "absent"]);
    assert!(said.err.contains("no container \"absent\", only helper, nginx"), "{}", said.err);
    let said = desk.run(&[&plugin], &["--pod", "absent.yaml"]);
    assert!(said.err.contains("read the pod of absent.yaml"), "{}", said.err);
}

// === the truth ===

fn wishes() -> impl Strategy<Value = Wish> {
    let key = prop::sample::select(vec!["A", "B", "OLD", "KEPT"]).prop_map(str::to_owned);
    let map = || prop::collection::btree_map(key.clone(), "[a-z]{1,4}", 0..3);
    let annotations = prop::collection::btree_map("[a-c]\\.example", "[a-z]{1,4}", 0..2);
    let mounts = prop::collection::btree_map("/(x|y|tmp)", Just("/srv".to_owned()), 0..2);
    let limits = prop::sample::select(vec!["RLIMIT_NOFILE", "RLIMIT_CORE"]).prop_map(str::to_owned);
    let rlimits = prop::collection::btree_map(limits, (1_u64..50).prop_map(|n| (n, n + 1)), 0..2);
    let args = prop::collection::vec("[a-z]{1,4}", 0..2);
    let numbers = (
        prop::option::weighted(0.25, 2_u64..2000),
        prop::option::weighted(0.25, (8_i64..64).prop_map(|n| n << 20)),
        prop::option::weighted(0.25, 1_u64..99),
        prop::option::weighted(0.25, 0_i64..1000),
    );
    (
        map(),
        map(),
        prop::collection::vec(key.clone(), 0..2),
        annotations,
        mounts,
        rlimits,
        args,
        numbers,
    )
        .prop_map(
            |(env, takes_env, removes_env, annotations, mounts, rlimits, args, numbers)| {
                let (cpu_shares, memory, pids, oom) = numbers;
                Wish {
                    env,
                    takes_env,
                    removes_env,
                    annotations,
                    args,
                    mounts,
                    rlimits,
                    cpu_shares,
                    memory,
                    pids,
                    oom,
                }
            },
        )
}

/// What must be the same, of a story or of a report of one step.
fn essence(story: &Value, answers: &str) -> Value {
    let asked: Vec<_> = story[answers]
        .as_array()
        .into_iter()
        .flatten()
        .map(|answer| {
            let asked = &answer["asked"];
            let asked = asked.get("adjust").unwrap_or(asked);
            json!({ "plugin": answer["plugin"], "asked": asked })
        })
        .collect();
    json!({ "asked": asked, "owners": story["owners"], "changes": story["changes"] })
}

/// Random wishes of two plugins: what a simulation says is what a daemon does.
#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_tells_the_truth() {
    let Some(node) = Node::start("a_simulation_tells_the_truth", LONGSHORE).await else { return };
    let cri = node.cri().await.unwrap();
    let plugins = [connect(&node, "10-a").await, connect(&node, "20-b").await];
    let pod = cri.run_pod(&node.pod("p")).await.unwrap();
    let text = "metadata: { name: p }\nspec: { containers: [{ name: NAME, args: [/bin/true], \
                env: [{ name: OLD, value: '1' }, { name: KEPT, value: '2' }] }] }";
    let mut random = TestRunner::new(Config::default());
    let (mut agreed, mut conflicts) = (0, 0);
    for round in 0..rounds(16) {
        let pair = (wishes(), wishes()).new_tree(&mut random).unwrap().current();
        let acts = [&pair.0, &pair.1].map(|wish| Act { wish: wish.clone(), ..Act::default() });
        for (probe, act) in plugins.iter().zip(acts.clone()) {
            script(&probe.on_create, move |_| Ok::<Creation, _>(act.wish.creation()));
        }
        let name = format!("c{round}");
        let mut config = node.sh(&name, "");
        config.command = vec!["/bin/true".into()];
        let pair = |key: &str, value: &str| api_cri::v1::KeyValue {
            key: key.into(),
            value: value.to_owned().into(),
        };
        config.envs = vec![pair("OLD", "1"), pair("KEPT", "2")];
        let created = cri.create(&pod, config).await;
        let desk = Desk::new(&text.replace("NAME", &name));
        let programs = [desk.plugin("10-a", &acts[0]), desk.plugin("20-b", &acts[1])];
        let report = desk.json(&[&programs[0], &programs[1]], &[]);
        let create = step(&report, "CreateContainer", &name);
        match created {
            Ok(_) => {
                agreed += 1;
                let explain = ["nri", "explain", &format!("p/{name}"), "--json"];
                let story = crate::commands::longshore(&node, &explain).await;
                let story: Value = serde_json::from_str(&story).unwrap();
                assert_eq!(create["error"], Value::Null, "{acts:#?}");
                if !story["owners"].as_array().unwrap().is_empty() {
                    assert_eq!(essence(create, "answers"), essence(&story, "plugins"), "{acts:#?}");
                }
            }
            Err(error) => {
                conflicts += 1;
                // Ids are not the same.
                let simulated = create["error"].as_str().unwrap_or("no error");
                let essence = simulated.split(" of container").next().unwrap();
                assert!(error.message().contains(essence), "{simulated}: {error}: {acts:#?}");
            }
        }
    }
    assert!(agreed > 0 && conflicts > 0, "{agreed} agreed, {conflicts} did not");
    drop(plugins);
    node.finish().await.unwrap();
}
