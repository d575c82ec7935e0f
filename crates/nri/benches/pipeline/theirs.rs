//! The Go adaptation: a program of its own, `tests/interop/nri-go/bench`.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use crate::{Case, Plugins, Programs, Result, Row};

pub(crate) fn run(case: &Case, programs: &Programs) -> Result<Row> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("s");
    let seconds = case.span.as_secs().max(1);
    let mut adaptation = Command::new(&programs.adaptation)
        .arg(&socket)
        .args([case.plugins, case.in_flight].map(|number| number.to_string()))
        .arg(seconds.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut lines = BufReader::new(adaptation.stdout.take().ok_or("no output")?).lines();
    lines.next().ok_or("the Go adaptation did not start")??;
    let plugins = Plugins::start(case, programs, &socket)?;
    let line = lines.next().ok_or("the Go adaptation failed")??;
    adaptation.wait()?;
    drop(plugins);
    let numbers: Vec<f64> =
        line.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let [count, p50, p99] = numbers[..] else { return Err(format!("it said {line:?}").into()) };
    Ok(Row { rate: count / seconds as f64, p50: p50 / 1e3, p99: p99 / 1e3 })
}
