//! What plugins make of a container.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use nri::{
    Ask, BareHost, DefaultValidator, FieldSet, Kind, MergeError, NriError, OnFailure, PluginPolicy,
    Settings, api::*,
};
use ttrpc::Status;

use crate::kit::*;

fn policies(entries: &[(&str, PluginPolicy)]) -> Settings {
    let plugins = entries.iter().map(|(name, policy)| ((*name).to_owned(), policy.clone()));
    Settings { plugins: plugins.collect(), ..quiet() }
}

#[tokio::test]
async fn adjustments_of_all_plugins_are_in_the_specification() {
    let world = World::new().await;
    let _a =
        world.plugin("10-a", Script::new("CreateContainer").adjusting(|_| env("A", "1"))).await;
    // The second sees what the first did.
    let seen = world.told.clone();
    let second = Script::new("CreateContainer").adjusting(move |container| {
        seen.push(format!("sees {}", container.env.contains(&"A=1".to_owned())));
        ContainerAdjustment {
            annotations: [("b".to_owned(), "2".to_owned())].into(),
            ..env("-TERM", "")
        }
    });
    let _b = world.plugin("20-b", second).await;
    let created = world.create("c").await.unwrap();
    assert!(has_env(&created, "A=1") && !has_env(&created, "TERM=xterm"));
    assert_eq!(created.spec.annotations().as_ref().unwrap()["b"], "2");
    assert_eq!(world.told.count("sees true"), 1);

    let journal = world.nri.journal("c").unwrap();
    let by: Vec<_> = journal.adjustments.iter().map(|a| a.plugin.to_string()).collect();
    assert_eq!(by, ["10-a", "20-b"]);
    assert_eq!(journal.owners.owner("c", Field::Env, Some("A")), Some("10-a"));
    let original = journal.original.unwrap();
    assert!(!original.annotations().iter().flatten().any(|(key, _)| key == "b"));
}

#[tokio::test]
async fn a_conflict_names_both_and_undoes_what_was_begun() {
    let world = World::new().await;
    let mask = "CreateContainer,StopContainer,RemoveContainer";
    let script = |value: &'static str| Script::new(mask).adjusting(move |_| env("E", value));
    let _a = world.plugin("10-a", script("1")).await;
    let _b = world.plugin("20-b", script("2")).await;
    let _c = world.plugin("30-c", Script::new(mask)).await;
    let error = world.create("c").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    let NriError::Merge(MergeError::Conflict(conflict)) = &error else { panic!("{error}") };
    assert_eq!((conflict.claimant.as_str(), conflict.owner.as_str()), ("20-b", "10-a"));
    world.settle().await;
    // Those that were asked are told that it is gone, the third was never asked.
    for plugin in ["10-a", "20-b"] {
        assert_eq!(world.told.count(&format!("{plugin} StopContainer c")), 1);
        assert_eq!(world.told.count(&format!("{plugin} RemoveContainer c")), 1);
    }
    assert_eq!(world.told.count("30-c CreateContainer"), 0);
    assert_eq!(world.told.count("30-c StopContainer"), 0);
    // And it was never there: the same can be tried again.
    assert!(world.nri.journal("c").is_none());
    drop(_b);
    world.wait_for_plugins(&["10-a", "30-c"]).await;
    world.create("c").await.unwrap();
}

#[tokio::test]
async fn a_refusal_fails_and_is_undone() {
    let world = World::new().await;
    let mask = "RunPodSandbox,StopPodSandbox,RemovePodSandbox,CreateContainer,StopContainer";
    let script = Script::new(mask)
        .on_create(|_| async { Err(Status::resource_exhausted("no CPUs left")) })
        .on_event(|change| async move {
            match change.event() {
                Event::RunPodSandbox => Err(Status::unknown("no")),
                _ => Ok(()),
            }
        });
    let _plugin = world.plugin("10-a", script).await;
    let error = world.create("c").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert_eq!(error.to_string(), "plugin 10-a refused CreateContainer: no CPUs left");
    assert_eq!(world.run("p").await.unwrap_err().kind(), Kind::Refused);
    world.settle().await;
    assert_eq!(world.told.count("10-a StopContainer c"), 1);
    assert_eq!(world.told.count("10-a StopPodSandbox p"), 1);
    assert_eq!(world.told.count("10-a RemovePodSandbox p"), 1);
    assert_eq!(world.plugins(), ["10-a"], "a refusal is not held against the plugin");
}

#[tokio::test]
async fn what_cannot_be_applied_fails_and_is_undone() {
    let world = World::new().await;
    let cdi = |_: &Container_| ContainerAdjustment {
        cdi_devices: vec![CdiDevice { name: "v/c=d".to_owned() }],
        ..Default::default()
    };
    let _plugin =
        world.plugin("10-a", Script::new("CreateContainer,StopContainer").adjusting(cdi)).await;
    assert!(matches!(world.create("c").await, Err(NriError::Apply { .. })));
    world.settle().await;
    assert_eq!(world.told.count("10-a StopContainer c"), 1);
}

#[tokio::test]
async fn fields_outside_the_allow_list_are_refused_or_ignored() {
    let only_mounts: FieldSet = "Mounts".parse().unwrap();
    for (on_failure, works) in
        [(None, false), (Some(OnFailure::Fail), false), (Some(OnFailure::Ignore), true)]
    {
        let policy =
            PluginPolicy { fields: Some(only_mounts.clone()), on_failure, ..Default::default() };
        let world = World::with(policies(&[("10-a", policy)])).await;
        let _a =
            world.plugin("10-a", Script::new("CreateContainer").adjusting(|_| env("A", "1"))).await;
        let created = world.create("c").await;
        assert_eq!(created.is_ok(), works);
        assert!(!created.is_ok_and(|created| has_env(&created, "A=1")));
    }
}

#[tokio::test]
async fn a_container_that_exists_is_not_created_again() {
    let world = World::new().await;
    world.create("c").await.unwrap();
    assert!(matches!(world.create("c").await, Err(NriError::Exists(id)) if id == "c"));
}

// === validation ===

fn validator(
    verdict: impl Fn(&ValidateContainerAdjustmentRequest) -> Option<&'static str>
    + Send
    + Sync
    + 'static,
) -> Script {
    Script::new("ValidateContainerAdjustment").on_validate(move |request| {
        let reason = verdict(&request);
        async move {
            let (reject, reason) = (reason.is_some(), reason.unwrap_or_default().to_owned());
            Ok(ValidateContainerAdjustmentResponse { reject, reason })
        }
    })
}

#[tokio::test]
async fn validators_see_everything_and_one_no_is_enough() {
    let world = World::new().await;
    let _a = world
        .plugin("10-a", Script::new("CreateContainer").adjusting(|c| env(&c.id.clone(), "1")))
        .await;
    let _idle = world.plugin("15-idle", Script::new("StartContainer")).await;
    let judge = validator(|request| {
        let owner =
            &request.owners.as_ref().unwrap().owners[&request.container.as_ref().unwrap().id];
        assert_eq!(
            owner.compound[&(Field::Env as i32)].owners.values().collect::<Vec<_>>(),
            ["10-a"]
        );
        assert!(
            !request.container.as_ref().unwrap().env.iter().any(|e| e.ends_with("=1")),
            "pristine"
        );
        let names: Vec<_> = request.plugins.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["a", "idle", "no", "yes"], "those that answered, and those not asked");
        let bad = request.adjust.as_ref().unwrap().env.iter().any(|e| e.key == "bad");
        bad.then_some("because")
    });
    let _no = world.plugin("20-no", judge).await;
    let _yes = world.plugin("30-yes", validator(|_| None)).await;
    world.create("good").await.unwrap();
    let error = world.create("bad").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"validator "20-no" rejected container adjustment, reason: because"#
    );
    assert_eq!(error.kind(), Kind::Refused);
}

#[tokio::test]
async fn a_rejection_without_reason_has_one() {
    let world = World::new().await;
    let _no = world.plugin("20-no", validator(|_| Some(""))).await;
    let error = world.create("c").await.unwrap_err();
    assert!(error.to_string().ends_with("reason: unknown rejection reason"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_validator_that_is_silent_fails_the_creation_whatever_its_policy() {
    let policy = PluginPolicy { on_failure: Some(OnFailure::Ignore), ..Default::default() };
    let world = World::with(policies(&[("20-v", policy)])).await;
    let _v = world
        .plugin("20-v", Script::new("ValidateContainerAdjustment").slow(Duration::from_secs(60)))
        .await;
    let error = world.create("c").await.unwrap_err();
    assert!(matches!(error, NriError::Validator { .. }), "{error}");
    assert_eq!(error.kind(), Kind::Unavailable);
    // It is dropped, and the next creation has no validator.
    world.wait_for_plugins(&[]).await;
    world.create("c").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn validators_are_asked_at_the_same_time() {
    let world = World::new().await;
    let slow = || Script::new("ValidateContainerAdjustment").slow(Duration::from_secs(1));
    let _a = world.plugin("10-a", slow()).await;
    let _b = world.plugin("20-b", slow()).await;
    let _c = world.plugin("30-c", slow()).await;
    let begun = tokio::time::Instant::now();
    world.create("c").await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 1);
}

#[tokio::test]
async fn updates_are_validated_by_who_wants_to() {
    let wants = PluginPolicy { validates_updates: true, ..Default::default() };
    let world = World::with(policies(&[("20-wants", wants)])).await;
    let judge = || validator(|request| request.adjust.is_none().then_some("no updates"));
    let _usual = world.plugin("10-usual", judge()).await;
    world.create("c").await.unwrap();
    let ask = Ask::default();
    world.nri.update_container(&pod("pod"), &container("c"), &resources(2), &ask).await.unwrap();
    let _wants = world.plugin("20-wants", judge()).await;
    let error = world.nri.update_container(&pod("pod"), &container("c"), &resources(2), &ask).await;
    assert!(matches!(error, Err(NriError::Rejected { validator, .. }) if validator == "20-wants"));
}

#[tokio::test]
async fn the_built_in_validator_judges_creations() {
    let validator = DefaultValidator {
        reject_oci_hooks: true,
        required_plugins: vec!["needed".to_owned()],
        tolerate_missing_annotation: Some("tolerate".to_owned()),
        ..Default::default()
    };
    let world = World::with(Settings { validator, ..quiet() }).await;
    let error = world.create("c").await.unwrap_err();
    assert_eq!(error.to_string(), "validation error: required but not consulted: needed");
    let annotations = BTreeMap::from([("tolerate".to_owned(), "true".to_owned())]);
    let tolerant = nri::Pod { annotations, ..pod("pod") };
    let host = Arc::new(BareHost);
    world.nri.create_container(&tolerant, &container("t"), host, &Ask::default()).await.unwrap();
    let _needed = world.plugin("10-needed", Script::new("CreateContainer")).await;
    world.create("c").await.unwrap();
    let hook = Hook { path: "/h".to_owned(), ..Default::default() };
    let hooks = Some(Hooks { prestart: vec![hook], ..Default::default() });
    let adjust = ContainerAdjustment { hooks, ..Default::default() };
    let _hooks = world
        .plugin("20-hooks", Script::new("CreateContainer").adjusting(move |_| adjust.clone()))
        .await;
    let error = world.create("d").await.unwrap_err();
    assert_eq!(error.to_string(), "validation error: 20-hooks may not inject OCI hooks");
}

#[tokio::test(start_paused = true)]
async fn a_required_plugin_that_did_not_answer_was_not_consulted() {
    let validator =
        DefaultValidator { required_plugins: vec!["slow".to_owned()], ..Default::default() };
    let world = World::with(Settings { validator, ..quiet() }).await;
    let _slow =
        world.plugin("10-slow", Script::new("CreateContainer").slow(Duration::from_secs(60))).await;
    let error = world.create("c").await.unwrap_err();
    assert!(matches!(error, NriError::Invalid(_)), "{error}");
}
