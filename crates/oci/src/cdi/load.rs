//! The one place of this crate that reads files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use super::{Place, Registry, model::File};

/// A vendor's file is a few kilobytes; what is larger than this is something else.
const MAX_SIZE: u64 = 8 << 20;

/// Why a file, or one device in two files, is of no use. The others are not affected.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than {MAX_SIZE} bytes", .path.display())]
    TooLarge { path: PathBuf },
    #[error("{}: {why}", .path.display())]
    Malformed { path: PathBuf, why: String },
    #[error("device {name} is in both {} and {}", .first.display(), .second.display())]
    Conflict { name: String, first: PathBuf, second: PathBuf },
}

/// Reads all files of these directories, later directories winning over earlier ones. A directory
/// that does not exist is empty. Blocking.
pub fn load(dirs: &[PathBuf]) -> (Registry, Vec<FileError>) {
    let mut gathered = Gathered::default();
    for (rank, dir) in dirs.iter().enumerate() {
        match files_of(dir) {
            Ok(paths) => paths.into_iter().for_each(|path| gathered.add(rank, path)),
            Err(source) => gathered.errors.push(FileError::Read { path: dir.clone(), source }),
        }
    }
    gathered.finish()
}

/// In order of their names, so that errors come in the same order every time.
fn files_of(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let known = path.extension().is_some_and(|e| ["json", "yaml"].iter().any(|k| e == *k));
        if known && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<File, FileError> {
    let fault = |source| FileError::Read { path: path.to_owned(), source };
    if fs::metadata(path).map_err(fault)?.len() > MAX_SIZE {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    let text = fs::read_to_string(path).map_err(fault)?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    parse(&text, is_json).map_err(|why| FileError::Malformed { path: path.to_owned(), why })
}

fn parse(text: &str, is_json: bool) -> Result<File, String> {
    let file: File = if is_json {
        serde_json::from_str(text).map_err(|error| error.to_string())?
    } else {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())?
    };
    match file.fault() {
        Some(why) => Err(why),
        None => Ok(file),
    }
}

#[derive(Default)]
struct Gathered {
    registry: Registry,
    /// Of each file in the registry: its directory's rank and its path.
    origins: Vec<(usize, PathBuf)>,
    /// Claimed twice at this rank.
    disputed: BTreeMap<String, usize>,
    errors: Vec<FileError>,
}

impl Gathered {
    fn add(&mut self, rank: usize, path: PathBuf) {
        let file = match read(&path) {
            Ok(file) => file,
            Err(error) => return self.errors.push(error),
        };
        let index = self.registry.files.len();
        for (i, device) in file.devices.iter().enumerate() {
            let name = format!("{}={}", file.kind, device.name);
            let place = Place { file: index, device: i };
            let Some(other) = self.registry.devices.insert(name.clone(), place) else { continue };
            let (other_rank, first) = &self.origins[other.file];
            if *other_rank == rank {
                let (first, second) = (first.clone(), path.clone());
                self.errors.push(FileError::Conflict { name: name.clone(), first, second });
                self.disputed.insert(name, rank);
            }
        }
        self.registry.files.push(file);
        self.origins.push((rank, path));
    }

    /// A later directory settles what an earlier one left in dispute.
    fn finish(mut self) -> (Registry, Vec<FileError>) {
        let Self { registry, origins, disputed, .. } = &mut self;
        let unsettled: BTreeSet<_> = disputed.iter().map(|(name, &rank)| (name, rank)).collect();
        registry.devices.retain(|name, place| !unsettled.contains(&(name, origins[place.file].0)));
        (self.registry, self.errors)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(kind: &str, devices: &[&str]) -> String {
        let devices: String = devices
            .iter()
            .map(|name| format!("- name: {name}\n  containerEdits:\n    env: [\"A=b\"]\n"))
            .collect();
        format!("cdiVersion: 0.6.0\nkind: {kind}\ndevices:\n{devices}")
    }

    #[track_caller]
    fn check(files: &[(&str, &str)], names: &[&str], errors: &[&str]) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let dirs = ["a", "b", "absent"].map(|dir| root.path().join(dir));
        let (registry, faults) = load(&dirs);
        assert_eq!(registry.names().collect::<Vec<_>>(), names);
        let faults: Vec<_> = faults
            .iter()
            .map(|f| f.to_string().replace(root.path().to_str().unwrap(), ""))
            .collect();
        assert_eq!(faults.len(), errors.len(), "{faults:?}");
        for (fault, error) in faults.iter().zip(errors) {
            assert!(fault.contains(error), "{fault:?} does not say {error:?}");
        }
    }

    #[test]
    fn yaml_and_json_are_read_and_others_are_not() {
        let json = r#"{"cdiVersion": "1.0.0", "kind": "v.com/net", "devices": [
            {"name": "eth1", "containerEdits": {"env": ["X=1"], "new": 1}}]}"#;
        let gpus = spec("v.com/gpu", &["\"0\"", "all"]);
        check(
            &[("a/g.yaml", &gpus), ("a/n.json", json), ("a/x.txt", "nonsense"), ("b/d/x.json", "")],
            &["v.com/gpu=0", "v.com/gpu=all", "v.com/net=eth1"],
            &[],
        );
    }

    #[test]
    fn a_bad_file_takes_no_other_with_it() {
        check(
            &[
                ("a/1.yaml", "kind: ["),
                ("a/2.yaml", "kind: v/gpu"),
                ("a/3.yaml", &spec("gpu", &["x"])),
                ("a/4.yaml", &spec("v/gpu", &["x", "x"])),
                ("a/5.json", r#"{"cdiVersion": "0.2.0", "kind": "v/gpu"}"#),
                ("a/6.yaml", &spec("v/gpu", &["good"])),
                (
                    "a/7.json",
                    r#"{"cdiVersion": "0.6.0", "kind": "v/g", "devices": [{"name": "x"}]}"#,
                ),
            ],
            &["v/gpu=good"],
            &[
                "/a/1.yaml: ",
                "/a/2.yaml: cdiVersion \"\" is not one we know",
                "/a/3.yaml: kind \"gpu\" is not of the form vendor/class",
                "/a/4.yaml: device \"x\" is there twice",
                "/a/5.json: cdiVersion \"0.2.0\" is not one we know",
                "/a/7.json: device \"x\" has no edits",
            ],
        );
    }

    #[test]
    fn a_name_in_dispute_is_nobodys_unless_a_later_directory_has_it() {
        let (one, two) = (spec("v/gpu", &["x", "y"]), spec("v/gpu", &["x", "z"]));
        let files = [("a/1.yaml", one.as_str()), ("a/2.yaml", two.as_str())];
        let why = "device v/gpu=x is in both /a/1.yaml and /a/2.yaml";
        check(&files, &["v/gpu=y", "v/gpu=z"], &[why]);
        let later = spec("v/gpu", &["x"]);
        let settled = [files[0], files[1], ("b/1.yaml", later.as_str())];
        check(&settled, &["v/gpu=x", "v/gpu=y", "v/gpu=z"], &[why]);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-zA-Z0-9:\\-\\[\\]\\{\\}\"'&*!|> \n]{0,80}", is_json: bool) {
            let _ = parse(&text, is_json);
        }
    }
}
