use std::{collections::BTreeMap, io::Write, process::ExitCode, time::Duration};

use api_admin::v1::{ListStagesRequest, ListStagesResponse, Stage};
use api_cri::v1::{
    Container, ContainerState, PodSandbox, PodSandboxState, PodSandboxStatusRequest,
};
use base::time::{self, Timestamp};
use clap::Args;
use serde_json::{Value, json};
use tonic::{Code, Streaming};

use super::{
    client::{Client, DaemonArgs, Refusal, Told},
    find::{Objects, container_state, metadata, pod_metadata, pod_state, short},
    screen::Screen,
    table::{Table, age},
};

/// List pods and containers.
///
///     longshore ps -a
///     longshore ps --stages --watch
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Ps {
    /// Also what has ended.
    #[arg(short, long)]
    all: bool,
    /// What is in flight instead: each operation, the step it is at, and since when it runs.
    #[arg(short, long)]
    stages: bool,
    /// Show it again at each change, until Ctrl-C.
    #[arg(short, long)]
    watch: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Lists come from the daemon's memory: asking again costs little.
const LOOK: Duration = Duration::from_millis(500);

impl Ps {
    pub(super) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        super::block_on(async {
            let client = self.daemon.connect().await?;
            match (self.stages, self.watch) {
                (false, false) => write!(out, "{}", self.list(&client).await?)?,
                (false, true) => self.watch_lists(&client, out).await?,
                (true, false) => {
                    let stages = client.admin().list_stages(ListStagesRequest {}).await;
                    write!(out, "{}", self.show_stages(&stages.told("list stages")?))?;
                }
                (true, true) => self.watch_stages(&client, out).await?,
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    async fn list(&self, client: &Client) -> anyhow::Result<String> {
        let mut objects = client.objects().await?;
        if !self.all {
            leave_out_ended(&mut objects);
        }
        sort(&mut objects);
        let ips = addresses(client, &objects).await?;
        Ok(match self.json {
            true => pretty(&json_of(&objects, &ips)),
            false => table(&objects, &ips, Timestamp::now()),
        })
    }

    fn show_stages(&self, list: &ListStagesResponse) -> String {
        match self.json {
            true => pretty(&list.stages.iter().map(json_of_stage).collect()),
            false => stage_table(&list.stages, Timestamp::now()),
        }
    }

    async fn watch_lists(&self, client: &Client, out: &mut impl Write) -> anyhow::Result<()> {
        let mut screen = Screen::default();
        loop {
            screen.show(out, self.list(client).await?)?;
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn watch_stages(&self, client: &Client, out: &mut impl Write) -> anyhow::Result<()> {
        let stages = client.admin().watch_stages(ListStagesRequest {}).await;
        let mut stages: Streaming<_> = stages.told("watch stages")?;
        let (mut screen, mut last) = (Screen::default(), ListStagesResponse::default());
        loop {
            tokio::select! {
                message = stages.message() => match message.map_err(Refusal)? {
                    Some(list) => last = list,
                    None => return Ok(()),
                },
                // Their ages change all the time.
                () = tokio::time::sleep(LOOK), if !last.stages.is_empty() && !self.json => {}
            }
            screen.show(out, self.show_stages(&last))?;
        }
    }
}

/// The first addresses of pods that are on a network of their own, by pod.
type Addresses = BTreeMap<String, String>;

/// Lists do not tell addresses; each answer comes from the daemon's memory.
async fn addresses(client: &Client, objects: &Objects) -> anyhow::Result<Addresses> {
    let ready = objects.pods.iter().filter(|pod| pod.state() == PodSandboxState::SandboxReady);
    let mut ips = Addresses::new();
    for pod in ready {
        let request = PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: false };
        match client.cri().pod_sandbox_status(request).await {
            Ok(answer) => {
                let network = answer.into_inner().status.and_then(|status| status.network);
                let ip = network.map(|network| network.ip).filter(|ip| !ip.is_empty());
                ips.extend(ip.map(|ip| (pod.id.clone(), ip)));
            }
            // Gone since it was listed.
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(Refusal(status).into()),
        }
    }
    Ok(ips)
}

fn leave_out_ended(objects: &mut Objects) {
    objects.pods.retain(|pod| pod.state() == PodSandboxState::SandboxReady);
    let live = [ContainerState::ContainerCreated, ContainerState::ContainerRunning];
    objects.containers.retain(|container| live.contains(&container.state()));
}

/// The oldest first, so that what is new is where people look: at the end.
fn sort(objects: &mut Objects) {
    objects.pods.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    objects.containers.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
}

fn table(objects: &Objects, ips: &Addresses, now: Timestamp) -> String {
    let mut table = Table::new(["NAME", "ID", "STATE", "AGE", "IP", "IMAGE"]);
    for pod in &objects.pods {
        let PodSandbox { id, created_at, .. } = pod;
        table.row([
            pod_metadata(pod).name,
            short(id).to_owned(),
            pod_state(pod.state()).to_owned(),
            age_at(*created_at, now),
            ips.get(id).cloned().unwrap_or_default(),
            String::new(),
        ]);
        objects.of_pod(pod).for_each(|container| table.row(row(objects, container, now)));
    }
    // Of pods that are not listed.
    let known =
        |container: &Container| objects.pods.iter().any(|pod| pod.id == container.pod_sandbox_id);
    for container in objects.containers.iter().filter(|container| !known(container)) {
        table.row(row(objects, container, now));
    }
    table.to_string()
}

fn row(objects: &Objects, container: &Container, now: Timestamp) -> [String; 6] {
    let image = container.image.as_ref().map(|spec| {
        if spec.user_specified_image.is_empty() { &spec.image } else { &spec.user_specified_image }
    });
    [
        objects.container_name(container),
        short(&container.id).to_owned(),
        container_state(container.state()).to_owned(),
        age_at(container.created_at, now),
        String::new(),
        image.cloned().unwrap_or_default(),
    ]
}

fn stage_table(stages: &[Stage], now: Timestamp) -> String {
    if stages.is_empty() {
        return "nothing is in flight\n".to_owned();
    }
    let mut table = Table::new(["OPERATION", "STEP", "SINCE", "ID", "NAME"]);
    for Stage { id, name, operation, step, since } in stages {
        table.row([
            operation.clone(),
            step.clone(),
            age_at(*since, now),
            short(id).to_owned(),
            name.clone(),
        ]);
    }
    table.to_string()
}

fn age_at(nanos: i64, now: Timestamp) -> String {
    let passed = now.duration_since(time::from_unix_nanos(nanos));
    // Clocks that were set back make nothing younger than new.
    age(Duration::try_from(passed).unwrap_or_default())
}

fn json_of(objects: &Objects, ips: &Addresses) -> Value {
    let pods = objects.pods.iter().map(|pod| {
        let meta = pod_metadata(pod);
        let containers: Vec<_> = objects.of_pod(pod).map(json_of_container).collect();
        json!({
            "id": pod.id,
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "attempt": meta.attempt,
            "state": pod_state(pod.state()),
            "createdAt": time::from_unix_nanos(pod.created_at).to_string(),
            "handler": pod.runtime_handler,
            "ip": ips.get(&pod.id),
            "labels": pod.labels,
            "containers": containers,
        })
    });
    pods.collect()
}

fn json_of_container(container: &Container) -> Value {
    let meta = metadata(container);
    json!({
        "id": container.id,
        "name": meta.name,
        "attempt": meta.attempt,
        "state": container_state(container.state()),
        "createdAt": time::from_unix_nanos(container.created_at).to_string(),
        "image": container.image.as_ref().map(|spec| &spec.image),
        "imageId": container.image_id,
        "labels": container.labels,
    })
}

fn json_of_stage(stage: &Stage) -> Value {
    json!({
        "id": stage.id,
        "name": stage.name,
        "operation": stage.operation,
        "step": stage.step,
        "since": time::from_unix_nanos(stage.since).to_string(),
    })
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::{super::find::tests as sample, *};

    const SECOND: i64 = 1_000_000_000;

    fn objects() -> Objects {
        let mut objects = Objects {
            pods: vec![
                sample::pod(&"b".repeat(64), "new", "ns", 3600 * SECOND),
                sample::pod(&"a".repeat(64), "old", "ns", 0),
            ],
            containers: vec![
                sample::container(&"d".repeat(64), &"b".repeat(64), "app", 7000 * SECOND),
                sample::container(&"c".repeat(64), &"a".repeat(64), "done", 2 * SECOND),
            ],
        };
        objects.pods[1].set_state(PodSandboxState::SandboxNotready);
        objects.containers[0].set_state(ContainerState::ContainerRunning);
        objects.containers[1].set_state(ContainerState::ContainerExited);
        sort(&mut objects);
        objects
    }

    fn ips() -> Addresses {
        Addresses::from([("b".repeat(64), "10.1.2.3".to_owned())])
    }

    fn now() -> Timestamp {
        time::from_unix_nanos(7200 * SECOND)
    }

    #[test]
    fn pods_come_with_their_containers_oldest_first() {
        let want = "\
NAME      ID            STATE      AGE   IP        IMAGE
old       aaaaaaaaaaaa  not ready  2h
old/done  cccccccccccc  exited     119m
new       bbbbbbbbbbbb  ready      60m   10.1.2.3
new/app   dddddddddddd  running    3m
";
        assert_eq!(table(&objects(), &ips(), now()), want);
    }

    #[test]
    fn what_has_ended_is_shown_on_demand() {
        let mut objects = objects();
        leave_out_ended(&mut objects);
        let text = table(&objects, &ips(), now());
        assert!(text.contains("new/app") && !text.contains("old"), "{text}");
        // A container may run in a pod that is lost: it must not be hidden.
        objects.pods.clear();
        assert!(table(&objects, &ips(), now()).contains("/app"));
    }

    #[test]
    fn stages_say_how_far_they_are() {
        let stage = Stage {
            id: "e".repeat(64),
            name: "web/app".into(),
            operation: "start-container".into(),
            step: "create-task".into(),
            since: 7199 * SECOND + SECOND / 2,
        };
        let want = "\
OPERATION        STEP         SINCE  ID            NAME
start-container  create-task  500ms  eeeeeeeeeeee  web/app
";
        assert_eq!(stage_table(&[stage], now()), want);
        assert_eq!(stage_table(&[], now()), "nothing is in flight\n");
    }

    #[test]
    fn json_has_whole_ids_and_times() {
        let value = json_of(&objects(), &ips());
        assert_eq!(value[0]["name"], "old");
        assert_eq!(value[0]["createdAt"], "1970-01-01T00:00:00Z");
        assert_eq!((&value[0]["ip"], &value[1]["ip"]), (&Value::Null, &json!("10.1.2.3")));
        assert_eq!(value[1]["containers"][0]["id"], "d".repeat(64));
        assert_eq!(value[1]["containers"][0]["state"], "running");
    }
}
