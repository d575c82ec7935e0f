//! Who is told what, and in which order.

use nri::{Ask, api::Event};
use nri_wire::EventMask;

use crate::kit::*;

/// A life: every event there is, once.
async fn live(world: &World) {
    let (p, c, ask) = (pod("pod"), container("c"), Ask::default());
    let nri = &world.nri;
    nri.run_pod(&p, &ask).await.unwrap();
    nri.update_pod(&p, None, None, &ask).await.unwrap();
    nri.post_update_pod(&p).await;
    world.create("c").await.unwrap();
    nri.post_create_container(&p, &c).await;
    nri.start_container(&p, &c, &ask).await.unwrap();
    nri.post_start_container(&p, &c).await;
    nri.update_container(&p, &c, &resources(5), &ask).await.unwrap();
    nri.post_update_container(&p, &c).await;
    nri.stop_container(&p, &c, &ask).await.unwrap();
    nri.remove_container(&p, &c).await;
    nri.stop_pod(&p, &ask).await.unwrap();
    nri.remove_pod(&p).await;
    world.settle().await;
}

/// The events of a life, in order.
const LIFE: [Event; 14] = [
    Event::RunPodSandbox,
    Event::UpdatePodSandbox,
    Event::PostUpdatePodSandbox,
    Event::CreateContainer,
    Event::ValidateContainerAdjustment,
    Event::PostCreateContainer,
    Event::StartContainer,
    Event::PostStartContainer,
    Event::UpdateContainer,
    Event::PostUpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
    Event::StopPodSandbox,
    Event::RemovePodSandbox,
];

fn expected(plugins: &[&str], mask: EventMask) -> Vec<String> {
    let object = |event: Event| {
        let of_pod = event.method().contains("Pod");
        if of_pod { "pod" } else { "c" }
    };
    let name = |event: Event| match event {
        Event::ValidateContainerAdjustment => "Validate",
        event => event.method(),
    };
    let wanted = LIFE.into_iter().filter(|event| mask.contains(*event));
    wanted
        .flat_map(|event| {
            plugins.iter().map(move |plugin| format!("{plugin} {} {}", name(event), object(event)))
        })
        .collect()
}

#[tokio::test]
async fn without_plugins_everything_succeeds() {
    let world = World::new().await;
    live(&world).await;
    assert!(world.nri.journal("c").is_none(), "what is gone is forgotten");
}

#[tokio::test]
async fn a_plugin_gets_exactly_what_it_asks_for() {
    let masks = LIFE.iter().map(|event| EventMask::NONE.with(*event));
    let pods: EventMask = "pod".parse().unwrap();
    for mask in masks.chain([pods, EventMask::ALL]) {
        let world = World::new().await;
        let _plugin = world.plugin("10-a", Script::new(&mask.to_string())).await;
        world.told.clear();
        live(&world).await;
        assert_eq!(world.told.all(), expected(&["10-a"], mask), "{mask}");
    }
}

#[tokio::test]
async fn plugins_are_asked_in_the_order_of_index_then_name() {
    let world = World::new().await;
    let mask = EventMask::ALL.without(Event::ValidateContainerAdjustment);
    let script = || Script::new(&mask.to_string());
    let _c = world.plugin("20-a", script()).await;
    let _a = world.plugin("05-z", script()).await;
    let _b = world.plugin("10-b", script()).await;
    world.told.clear();
    live(&world).await;
    let told = world.told.all();
    let plugins = ["05-z", "10-b", "20-a"];
    // Each plugin sees all in order; what is not waited for may still be in the next plugin
    // when the following request is in the first.
    for plugin in plugins {
        let own: Vec<_> = told.iter().filter(|line| line.starts_with(plugin)).cloned().collect();
        assert_eq!(own, expected(&[plugin], mask));
    }
    for event in mask.iter() {
        let of_event = |line: &&String| line.split(' ').nth(1) == Some(event.method());
        let order: Vec<_> = told.iter().filter(of_event).map(|line| &line[..4]).collect();
        assert_eq!(order, plugins, "{}", event.method());
    }
}

#[tokio::test]
async fn a_plugin_that_knows_only_state_change_gets_all_of_it() {
    let world = World::new().await;
    let mask = EventMask::ALL.without(Event::ValidateContainerAdjustment);
    let script = Script { old: true, ..Script::new(&mask.to_string()) };
    let _plugin = world.plugin("10-a", script).await;
    world.told.clear();
    live(&world).await;
    assert_eq!(world.told.all(), expected(&["10-a"], mask));
}

/// A raw plugin that subscribes by saying nothing need not be a validator.
#[tokio::test]
async fn no_mask_is_all_events_but_no_duty_to_validate() {
    let world = World::new().await;
    let _plugin = world.plugin("10-a", Script::default()).await;
    world.create("c1").await.unwrap();
    world.create("c2").await.unwrap();
    assert_eq!(world.told.count("10-a Validate"), 1, "it is not asked again");
}

#[tokio::test]
async fn ends_are_told_once_and_only_of_what_was_created() {
    let world = World::new().await;
    let _plugin = world.plugin("10-a", Script::new("all")).await;
    world.stop("never").await.unwrap();
    world.remove("never").await;
    world.create("c").await.unwrap();
    world.stop("c").await.unwrap();
    world.stop("c").await.unwrap();
    world.remove("c").await;
    world.remove("c").await;
    world.run("p").await.unwrap();
    world.nri.remove_pod(&pod("p")).await;
    world.nri.remove_pod(&pod("p")).await;
    world.settle().await;
    for (line, times) in [
        ("10-a StopContainer c", 1),
        ("10-a RemoveContainer c", 1),
        ("10-a StopPodSandbox p", 1),
        ("10-a RemovePodSandbox p", 1),
    ] {
        assert_eq!(world.told.count(line), times, "{line}");
    }
    assert_eq!(world.told.all().iter().filter(|line| line.ends_with("never")).count(), 0);
}

#[tokio::test]
async fn a_removal_without_a_stop_brings_its_stop() {
    let world = World::new().await;
    let _plugin = world.plugin("10-a", Script::new("StopContainer,RemoveContainer")).await;
    world.create("c").await.unwrap();
    world.told.clear();
    world.remove("c").await;
    world.settle().await;
    assert_eq!(world.told.all(), ["10-a StopContainer c", "10-a RemoveContainer c"]);
}

#[tokio::test]
async fn every_plugin_hears_of_an_end_though_one_refuses_it() {
    let world = World::new().await;
    let refuse = || Script::new("all").on_event(|_| async { Err(ttrpc::Status::internal("no")) });
    let stop_refused = refuse().on_stop(|_| async { Err(ttrpc::Status::internal("no")) });
    let mut a = stop_refused.clone();
    a.events = "StopContainer,RemoveContainer".parse::<EventMask>().unwrap().to_wire();
    let _a = world.plugin("10-a", a.clone()).await;
    let _b = world.plugin("20-b", a).await;
    let _c = world.plugin("30-c", Script::new("StopContainer,RemoveContainer")).await;
    world.create("c").await.unwrap();
    let errors = world.stop("c").await.unwrap_err();
    assert!(matches!(&errors, nri::NriError::Several(all) if all.len() == 2), "{errors}");
    world.remove("c").await;
    world.settle().await;
    assert_eq!(world.told.count("30-c StopContainer c"), 1);
    assert_eq!(world.told.count("30-c RemoveContainer c"), 1);
}

#[tokio::test]
async fn trace_context_and_time_reach_the_plugin() {
    // The handler of the kit does not see metadata, so this plugin is served by hand.
    use nri_wire::{Trunk, api};
    struct Traced(Told);
    impl api::Plugin for Traced {
        async fn configure(
            &self,
            _: ttrpc::ServerContext,
            _: api::ConfigureRequest,
        ) -> Result<api::ConfigureResponse, ttrpc::Status> {
            let events = EventMask::NONE.with(Event::StartContainer);
            Ok(api::ConfigureResponse { events: events.to_wire(), failure_policy: None })
        }
        async fn synchronize(
            &self,
            _: ttrpc::ServerContext,
            _: api::SynchronizeRequest,
        ) -> Result<api::SynchronizeResponse, ttrpc::Status> {
            Ok(api::SynchronizeResponse::default())
        }
        async fn start_container(
            &self,
            ctx: ttrpc::ServerContext,
            _: api::StartContainerRequest,
        ) -> Result<api::StartContainerResponse, ttrpc::Status> {
            self.0.push(ctx.metadata.get("traceparent").unwrap_or("none"));
            assert!(ctx.remaining().unwrap() <= std::time::Duration::from_secs(2));
            Ok(api::StartContainerResponse {})
        }
    }
    let world = World::new().await;
    let (near, far) = tokio::io::duplex(1 << 16);
    let (runtime, _trunk) = Trunk::plugin(far, Traced(world.told.clone()));
    let register = async {
        runtime.register_plugin(&ttrpc::Context::timeout(SOON), &Default::default()).await
    };
    let attach = world.nri.attach("10-a".parse().unwrap(), "", near);
    let (joined, registered) = tokio::join!(attach, register);
    joined.unwrap();
    registered.unwrap();
    world.create("c").await.unwrap();
    let trace = vec![("traceparent".to_owned(), "00-1".to_owned())];
    let ask = Ask { trace, ..Ask::default() };
    world.nri.start_container(&pod("pod"), &container("c"), &ask).await.unwrap();
    assert_eq!(world.told.all(), ["00-1"]);
}

#[tokio::test]
async fn every_operation_is_counted() {
    let world = World::new().await;
    let script = Script::new("all")
        .on_create(|_| async {
            let (update, evict) = (vec![update("x", 1)], vec![eviction("y", "")]);
            Ok(nri::api::CreateContainerResponse { adjust: None, update, evict })
        })
        .on_sync(|_| async {
            Ok(nri::api::SynchronizeResponse { update: vec![update("x", 1)], more: false })
        });
    let _plugin = world.plugin("10-a", script).await;
    live(&world).await;
    let text = world.metrics();
    let operations = LIFE.iter().map(|event| event.method()).chain(["Synchronize"]);
    for operation in operations {
        let labels = format!(r#"{{plugin="10-a",operation="{operation}""#);
        let calls =
            format!(r#"nri_plugin_invocations_total{labels},status="success",error=""}} 1"#);
        assert!(text.contains(&calls), "{calls}\n{text}");
        let took = format!("nri_plugin_latency_seconds_count{labels}}} 1");
        assert!(text.contains(&took), "{took}\n{text}");
    }
    for line in [
        r#"nri_plugin_adjustments_total{plugin="10-a",operation="CreateContainer",type="update"} 1"#,
        r#"nri_plugin_adjustments_total{plugin="10-a",operation="CreateContainer",type="evict"} 1"#,
        r#"nri_plugin_adjustments_total{plugin="10-a",operation="Synchronize",type="update"} 1"#,
        "nri_active_plugins 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
