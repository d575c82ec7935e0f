use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use base::Span;
use clap::Args;
use engine::{
    nri::{Notice, PluginId, PluginPolicy, Settings, Watch, WatchEnd},
    simulate::{Simulation, Step},
};

use super::{
    pod_file,
    report::{Outcome, Report},
};

/// Run plugins against a pod that exists on paper only: no daemon, no root, no containers.
///
/// The plugins are started as the daemon starts them, with a socket as descriptor 3. They
/// hear of the whole life of the pod, and their answers go through the daemon's own code, on
/// a host that can do everything. Shown is what each plugin asked for, what all of it came to,
/// who owns which field, and what became of the OCI spec. Ends with 1 if plugins are in
/// conflict, refuse, crash or hang.
///
///     $ cat pod.yaml
///     metadata:
///       name: web
///       annotations:
///         ulimits.noderesource.dev/container.nginx: '[{type: nofile, hard: 4096, soft: 1024}]'
///     spec:
///       containers:
///       - name: nginx
///         args: [nginx, -g, daemon off;]
///         env: [{name: TZ, value: UTC}]
///         resources: {limits: {cpu: 500m, memory: 64Mi}}
///
///     $ longshore nri simulate --plugin ./ulimit-adjuster --pod pod.yaml
///     $ longshore nri simulate --plugin 10-a=./a --plugin 20-b=./b --pod pod.yaml --json
///
/// A recording is a file of events, a line of JSON each; it can be edited and replayed:
///
///     $ longshore nri simulate --plugin ./a --pod pod.yaml --record events
///     $ longshore nri simulate --plugin ./a --replay events
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(in crate::cli) struct Simulate {
    /// A program, or NN-name=PROGRAM. Without a number they are asked in the order given.
    #[arg(long = "plugin", required = true, value_name = "[NN-name=]PATH")]
    plugins: Vec<String>,
    /// Where their configuration is: NN-name.conf or name.conf.
    #[arg(long, value_name = "DIR")]
    plugin_config_dir: Option<PathBuf>,
    /// A pod as Kubernetes describes it, in YAML or JSON.
    #[arg(long, required_unless_present = "replay", conflicts_with = "replay")]
    pod: Option<PathBuf>,
    /// Only this container of it.
    #[arg(long, value_name = "NAME", conflicts_with = "replay")]
    container: Option<String>,
    /// Write the events that are sent to a file.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Send the events of a recording.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// For one answer of a plugin.
    #[arg(long, default_value = "2s", value_name = "TIME")]
    request_timeout: Span,
    /// For programs.
    #[arg(long)]
    json: bool,
}

impl Simulate {
    pub(super) fn run(self, out: &mut impl Write) -> Result<ExitCode> {
        let (steps, unseen) = self.steps()?;
        if let Some(path) = &self.record {
            record(path, &steps).with_context(|| format!("record to {}", path.display()))?;
        }
        let dir = tempfile::tempdir().context("make a directory for the plugins")?;
        let plugins = self.install(dir.path())?;
        let settings = self.settings(dir.path(), &plugins);
        let mut report = crate::cli::block_on(simulate(settings, &steps))?;
        report.complete(plugins, unseen);
        if self.json {
            writeln!(out, "{:#}", report.json())?;
        } else {
            report.print(out)?;
        }
        Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// What is to happen, and what of the pod cannot.
    fn steps(&self) -> Result<(Vec<Step>, Vec<String>)> {
        if let Some(path) = &self.replay {
            let doing = || format!("replay {}", path.display());
            let text = fs::read_to_string(path).with_context(doing)?;
            return Ok((replay(&text).with_context(doing)?, Vec::new()));
        }
        let path = self.pod.as_deref().unwrap_or(Path::new("-"));
        let doing = || format!("read the pod of {}", path.display());
        let text = fs::read_to_string(path).with_context(doing)?;
        let described = pod_file::parse(&text).with_context(doing)?;
        let mut containers = described.containers;
        if let Some(name) = &self.container {
            let names: Vec<_> = containers.iter().map(|c| c.container.name.clone()).collect();
            containers.retain(|container| container.container.name == *name);
            if containers.is_empty() {
                bail!("the pod has no container {name:?}, only {}", names.join(", "));
            }
        }
        Ok((Step::life(described.pod, containers), described.unseen))
    }

    /// Puts the programs where plugins are looked for, under the names they are to have.
    fn install(&self, dir: &Path) -> Result<Vec<PluginId>> {
        let mut ids = Vec::new();
        for (number, given) in self.plugins.iter().enumerate() {
            let (id, path) = named(given, number)?;
            let program = fs::canonicalize(path).with_context(|| format!("plugin {path}"))?;
            if ids.contains(&id) {
                bail!("two plugins are called {id}: give one another name, {id}=PATH");
            }
            symlink(program, dir.join(id.to_string())).context("install a plugin")?;
            ids.push(id);
        }
        Ok(ids)
    }

    fn settings(&self, dir: &Path, plugins: &[PluginId]) -> Settings {
        let request_timeout = self.request_timeout.0.max(Duration::from_millis(1));
        let usual = Settings::default().registration_timeout;
        // What crashes is to be seen, not to be tried again.
        let once = PluginPolicy { restart: None, ..PluginPolicy::default() };
        Settings {
            socket: None,
            plugin_dirs: vec![dir.to_owned()],
            config_dirs: self.plugin_config_dir.iter().cloned().collect(),
            show_stderr: true,
            registration_timeout: request_timeout.max(usual),
            request_timeout,
            plugins: plugins.iter().map(|id| (id.to_string(), once.clone())).collect(),
            ..Settings::default()
        }
    }
}

/// `NN-name=PATH`, or a path whose last part may be `NN-name`.
fn named(given: &str, number: usize) -> Result<(PluginId, &str)> {
    if let Some((id, path)) = given.split_once('=')
        && let Ok(id) = id.parse()
    {
        return Ok((id, path));
    }
    let name = Path::new(given).file_name().unwrap_or_default().to_string_lossy();
    if let Ok(id) = name.parse() {
        return Ok((id, given));
    }
    let index = format!("{:02}", (number + 1) * 10 % 100);
    let id = PluginId::new(&index, &name);
    Ok((id.with_context(|| format!("plugin {given}: give it a name, 10-name={given}"))?, given))
}

fn record(path: &Path, steps: &[Step]) -> Result<()> {
    let lines = steps.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(fs::write(path, lines.join("\n") + "\n")?)
}

fn replay(text: &str) -> Result<Vec<Step>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let step = |(number, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("line {}", number + 1))
    };
    lines.map(step).collect()
}

async fn simulate(settings: Settings, steps: &[Step]) -> Result<Report> {
    let (simulation, mut watch) = Simulation::open(settings).await?;
    let mut report = Report::default();
    report.joined = joined(&simulation);
    report.notices.extend(drain(&mut watch)?);
    for step in steps {
        let done = simulation.act(step).await;
        let stop = matches!((&done, step), (Err(_), Step::RunPodSandbox { .. }));
        report.outcomes.push(Outcome::new(step, done, drain(&mut watch)?));
        if stop {
            break;
        }
    }
    simulation.close().await;
    report.notices.extend(drain(&mut watch)?);
    Ok(report)
}

fn joined(simulation: &Simulation) -> BTreeMap<String, String> {
    let plugins = simulation.plugins().into_iter().filter(|plugin| plugin.active);
    plugins.map(|plugin| (plugin.id.to_string(), plugin.events.to_string())).collect()
}

fn drain(watch: &mut Watch) -> Result<Vec<Notice>> {
    let mut notices = Vec::new();
    loop {
        match watch.try_next() {
            Ok(Some(notice)) => notices.push(Notice::clone(&notice)),
            Ok(None) | Err(WatchEnd::Stopped) => return Ok(notices),
            Err(error) => return Err(error).context("follow the plugins"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_has_the_name_it_is_given() {
        #[track_caller]
        fn check(given: &str, number: usize, want: (&str, &str)) {
            let (id, path) = named(given, number).unwrap();
            assert_eq!((id.to_string().as_str(), path), want);
        }
        check("./a", 0, ("10-a", "./a"));
        check("./a", 2, ("30-a", "./a"));
        check("/x/45-b", 0, ("45-b", "/x/45-b"));
        check("07-c=/x/45-b", 0, ("07-c", "/x/45-b"));
        let error = named("./odd=name", 0).unwrap_err().to_string();
        assert_eq!(error, "plugin ./odd=name: give it a name, 10-name=./odd=name");
    }
}
