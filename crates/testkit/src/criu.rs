//! Checkpoints on hosts whose kernel no criu knows.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::program;

/// A `criu` that says it works, and a `runc` that is the real one, or another OCI runtime, but for
/// `checkpoint`, which writes what criu would.
#[derive(Debug)]
pub struct FakeCriu {
    dir: PathBuf,
}

impl FakeCriu {
    /// Both programs are put into `dir`.
    pub fn new(dir: &Path) -> Self {
        Self::over(dir, Path::new("runc"))
    }

    /// With another OCI runtime in the place of the real runc.
    pub fn over(dir: &Path, runtime: &Path) -> Self {
        fs::create_dir_all(dir).expect("a directory for programs");
        program(&dir.join("criu"), "#!/bin/sh\nexit 0\n");
        let script = RUNC.replace("DIR", &dir.display().to_string());
        program(&dir.join("runc"), &script.replace("RUNTIME", &runtime.display().to_string()));
        Self { dir: dir.to_owned() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn runc(&self) -> PathBuf {
        self.dir.join("runc")
    }

    /// Runs this, too, at every checkpoint from now on: lines of shell that know `$images`,
    /// `$work`, `$log` and the state of the container by `state`.
    pub fn does(&self, script: &str) {
        fs::write(self.dir.join("does.new"), script).expect("a script");
        fs::rename(self.dir.join("does.new"), self.dir.join("does")).expect("a script");
    }

    /// What is left of checkpoints that have begun.
    pub fn has_begun(&self) -> bool {
        self.dir.join("begun").exists()
    }
}

const RUNC: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
for arg; do
  case $last in
    --root) root=$arg ;;
    --log) log=$arg ;;
    --image-path) images=$arg ;;
    --work-path) work=$arg ;;
  esac
  [ "$arg" = checkpoint ] && checkpoint=1
  last=$arg
done
[ "$checkpoint" ] || exec RUNTIME "$@"
state() { RUNTIME --root "$root" state "$last"; }
: > DIR/begun
state > "$images/state.json"
echo '(00.1) Info  (criu/fake.c:1): no dump at all' > "$work/dump.log"
: > "$work/stats-dump"
[ -e DIR/does ] && . DIR/does
echo memory > "$images/pages-1.img"
"#;
