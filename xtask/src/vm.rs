//! `make test-vm`: the tests of containers on a machine as clusters have it: pure cgroup v2,
//! systemd as PID 1, AppArmor on; and a part of them on one with SELinux.
//!
//! ```text
//!   debootstrap ──> root.img ──┐ (cached; never written to by a run)
//!   cargo test --no-run ─┐     ├──> qemu ──serial port──> lines, counted
//!   tools built from Go ─┴─> payload.img ─┘
//! ```
//!
//! The machine is emulated in software, so that it is the same on every host and needs nothing of
//! it. Programs lie inside under the path they have outside: tests know each other by those.

mod chosen;
mod image;
mod machine;
mod payload;
mod script;

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use self::{
    chosen::Chosen,
    machine::{Machine, show},
};
use crate::{bin_dir, setup, tally::Tally};

pub(crate) fn run(root: &Path, args: &[&str]) -> Result<()> {
    let machines = Chosen::parse(args)?;
    setup::run_for_vm()?;
    ensure!(setup::is_root()?, "the file systems of a machine are made by root");
    let bins = bin_dir()?;
    let cache = bins.parent().context("programs lie in a directory of the target")?.join("vm");
    let image = image::get(&cache)?;
    let programs = payload::build(root, &bins, &machines)?;
    let mut runs = Vec::new();
    for chosen in &machines {
        runs.push((chosen.lsm, chosen.runs(&programs)?));
    }
    let payload = payload::pack(&cache, &programs, &runs)?;
    let mut sum = Tally::default();
    for (lsm, runs) in &runs {
        let names: Vec<_> = runs.iter().map(|run| run.name.clone()).collect();
        let console = cache.join(format!("console-{}.log", lsm.name()));
        sum += machine::run(
            &Machine { image: &image, payload: &payload, lsm: *lsm },
            &names,
            &console,
        )?;
    }
    fs::remove_file(&payload).with_context(show("remove", &payload))?;
    println!("{sum}");
    ensure!(sum.failed == 0, "a run is red");
    Ok(())
}
