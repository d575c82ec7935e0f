//! Archives become layers: honest ones as they say, hostile ones not at all or harmlessly.
//!
//! Needs root, because files get owners here; nothing is mounted.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking, like tests")]

mod apply;
mod hostile;
mod tarball;
mod tree;

use std::path::{Path, PathBuf};

use snapshot::{
    ApplyError, ApplyOptions, Form, LayerDir, Limits, Usage, apply_layer, rebase_layer,
};

/// A directory with layers in it and something beside them that nobody may touch.
struct Bench {
    dir: tempfile::TempDir,
    form: Form,
    limits: Limits,
    /// Lowest first.
    layers: Vec<LayerDir>,
}

impl Bench {
    fn new(form: Form) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("outside/dir")).unwrap();
        std::fs::write(dir.path().join("outside/secret"), "secret").unwrap();
        Self { dir, form, limits: Limits::default(), layers: Vec::new() }
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    /// Applies one more layer onto those there are.
    fn add(&mut self, archive: &[u8]) -> Result<Usage, ApplyError> {
        let path = self.dir.path().join(format!("layer-{}", self.layers.len()));
        std::fs::create_dir(&path).unwrap();
        let layer = LayerDir::new(path, self.form);
        let options = ApplyOptions { limits: self.limits, diff_id: None };
        let below: Vec<_> = self.layers.iter().rev().cloned().collect();
        self.layers.push(layer.clone());
        let applied = apply_layer(archive, &layer, &options)?;
        rebase_layer(&layer, applied, &below)
    }

    fn top(&self) -> &Path {
        &self.layers.last().expect("a layer was added").path
    }

    fn tree(&self) -> tree::Tree {
        tree::read(self.top())
    }
}

fn skipped(test: &str) -> bool {
    let skipped = !testkit::is_root();
    if skipped {
        testkit::skip(test, "needs root");
    }
    skipped
}
