//! What each handler can do: rows for the report, and a table for documentation.

use std::ffi::OsStr;

use engine::ForeignShim;
use oci::Abilities;
use probe::{Row, Runtime, Verdict};

use crate::config::{HandlerSettings, Handlers};

/// A handler, as it was found here.
#[derive(Debug)]
pub(super) struct Found {
    name: String,
    /// Of its own; a shim may have none.
    runtime: Option<Tried>,
    /// `None`: ours.
    shim: Option<Result<ForeignShim, String>>,
    abilities: Abilities,
}

#[derive(Debug)]
struct Tried {
    version: String,
    works: bool,
}

/// Those that are configured, or without any the runtimes that were looked for. Asks foreign shims
/// for their version. Blocking.
pub(super) fn find(handlers: &Handlers, runtimes: &[Runtime], path: &OsStr) -> Vec<Found> {
    match handlers {
        Handlers::Search => runtimes.iter().map(|r| found(&r.name, Some(r), None)).collect(),
        Handlers::Given { handlers, .. } => {
            let one = |given: &HandlerSettings| {
                let runtime = runtimes.iter().find(|runtime| runtime.name == given.name);
                let shim = given.shim.as_ref().map(|shim| {
                    let found = ForeignShim::find(&shim.name, path, shim.config.clone());
                    found.map_err(|why| why.to_string())
                });
                found(&given.name, runtime, shim)
            };
            handlers.iter().map(one).collect()
        }
    }
}

fn found(
    name: &str,
    runtime: Option<&Runtime>,
    shim: Option<Result<ForeignShim, String>>,
) -> Found {
    let features = runtime.and_then(|runtime| runtime.features.as_ref());
    let built_with = runtime.and_then(|runtime| runtime.built_with.as_deref());
    let abilities = Abilities::of_features(features).built_with(built_with);
    let tried = |runtime: &Runtime| Tried {
        version: described(&runtime.path, runtime.version.as_deref()),
        works: runtime.works.is_ok(),
    };
    Found {
        name: name.to_owned(),
        runtime: runtime.map(tried),
        abilities: if shim.is_some() { abilities.behind_foreign_shim() } else { abilities },
        shim,
    }
}

/// A program by its name, and what it says of itself.
fn described(path: &std::path::Path, version: Option<&str>) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    match version.map(|version| version.trim_start_matches(&*name).trim_start()) {
        Some(version) => format!("{name} {}", version.trim_start_matches("version ")),
        None => name.into_owned(),
    }
}

// === rows ===

impl Found {
    /// What it can, and what is known of its shim.
    pub(super) fn rows(&self) -> Vec<Row> {
        let can = self.runtime.as_ref().is_none_or(|runtime| runtime.works).then(|| self.can());
        self.shim.as_ref().map(|shim| self.shim_row(shim)).into_iter().chain(can).collect()
    }

    /// What a handler lacks is refused by name when a container asks for it.
    fn can(&self) -> Row {
        let all = self.abilities.list();
        let of = |wanted: bool| -> Vec<&str> {
            all.iter().filter(|(_, able)| *able == wanted).map(|(name, _)| *name).collect()
        };
        let lacks = of(false);
        Row {
            group: "handlers",
            name: format!("{} can", self.name),
            verdict: Verdict::Ok,
            found: of(true).join(", "),
            reason: match lacks.is_empty() {
                true => String::new(),
                false => format!("not {}", lacks.join(", ")),
            },
            remedy: None,
        }
    }

    fn shim_row(&self, shim: &Result<ForeignShim, String>) -> Row {
        let row = |verdict, found: String, reason: &str| Row {
            group: "handlers",
            name: format!("shim of {}", self.name),
            verdict,
            found,
            reason: reason.to_owned(),
            remedy: None,
        };
        match shim {
            Err(why) => Row {
                remedy: Some(format!("install it, or take out [handlers.{}]", self.name)),
                ..row(Verdict::Warn, String::new(), why)
            },
            Ok(ForeignShim { binary, version: None, .. }) => {
                let why = "it prints no version: whether it runs shows with its first pod";
                row(Verdict::Warn, binary.display().to_string(), why)
            }
            Ok(ForeignShim { binary, version: Some(version), .. }) => {
                let why = match self.runtime {
                    Some(_) => "no pod was run by it; its OCI runtime was tried by itself",
                    None => {
                        "no pod was run by it, and what is below it is not known: it is \
                             asked for no more than every OCI runtime can"
                    }
                };
                row(Verdict::Ok, format!("{} {version}", binary.display()), why)
            }
        }
    }
}

// === the table ===

/// What stands above the abilities.
const HEAD: [&str; 3] = ["OCI runtime", "shim", "a container ran"];

/// Handlers beside each other, one row for each ability.
pub(super) fn markdown(handlers: &[Found]) -> String {
    let names = handlers.iter().map(|handler| handler.name.clone());
    let mut lines = vec![line("", names), line("---", handlers.iter().map(|_| "---".to_owned()))];
    let heads: [fn(&Found) -> String; 3] = [Found::runtime_cell, Found::shim_cell, Found::ran_cell];
    for (name, cell) in HEAD.into_iter().zip(heads) {
        lines.push(line(name, handlers.iter().map(cell)));
    }
    for (at, (name, _)) in Abilities::default().list().into_iter().enumerate() {
        lines.push(line(name, handlers.iter().map(|handler| yes(handler.abilities.list()[at].1))));
    }
    lines.concat()
}

fn line(first: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!(" {cell} |")).collect();
    format!("| {first} |{cells}\n").replace("|  |", "| |")
}

fn yes(able: bool) -> String {
    if able { "yes" } else { "no" }.to_owned()
}

impl Found {
    fn runtime_cell(&self) -> String {
        self.runtime.as_ref().map_or_else(|| "none".to_owned(), |tried| tried.version.clone())
    }

    fn shim_cell(&self) -> String {
        match &self.shim {
            None => "ours".to_owned(),
            Some(Ok(shim)) => described(&shim.binary, shim.version.as_deref()),
            Some(Err(_)) => "missing".to_owned(),
        }
    }

    fn ran_cell(&self) -> String {
        match &self.runtime {
            Some(tried) => yes(tried.works),
            None => "not tried".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler(name: &str, shim: Option<Result<ForeignShim, String>>) -> Found {
        let tried = Tried { version: "runc 1.1.5".to_owned(), works: true };
        Found { runtime: Some(tried), ..found(name, None, shim) }
    }

    fn foreign(version: Option<&str>) -> Option<Result<ForeignShim, String>> {
        Some(Ok(ForeignShim {
            binary: "/usr/bin/containerd-shim-runc-v2".into(),
            version: version.map(str::to_owned),
            form: Default::default(),
            config: None,
            sandbox: Default::default(),
        }))
    }

    #[test]
    fn handlers_stand_beside_each_other() {
        let table = markdown(&[
            handler("own", None),
            handler("go", foreign(Some("1.6.20"))),
            Found { runtime: None, ..handler("kata", Some(Err("no such shim".to_owned()))) },
        ]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines[0], "| | own | go | kata |");
        assert_eq!(lines[1], "| --- | --- | --- | --- |");
        assert_eq!(lines[2], "| OCI runtime | runc 1.1.5 | runc 1.1.5 | none |");
        assert_eq!(lines[3], "| shim | ours | containerd-shim-runc-v2 1.6.20 | missing |");
        assert_eq!(lines[4], "| a container ran | yes | yes | not tried |");
        // Our shim gives the priorities that an old runtime cannot.
        assert!(lines.contains(&"| scheduler | yes | no | no |"), "{table}");
        assert_eq!(lines.len(), 2 + HEAD.len() + Abilities::default().list().len());
    }

    #[test]
    fn what_is_not_known_of_a_shim_is_said() {
        let row = |shim| handler("go", shim).rows().remove(0);
        let known = row(foreign(Some("1.6.20")));
        assert_eq!((known.verdict, &*known.name), (Verdict::Ok, "shim of go"));
        assert_eq!(known.found, "/usr/bin/containerd-shim-runc-v2 1.6.20");
        assert!(known.reason.contains("no pod was run by it"), "{known:?}");
        assert_eq!(row(foreign(None)).verdict, Verdict::Warn);
        let missing = row(Some(Err("no such shim".to_owned())));
        assert_eq!((missing.verdict, &*missing.reason), (Verdict::Warn, "no such shim"));
        assert_eq!(missing.remedy.as_deref(), Some("install it, or take out [handlers.go]"));
        let bare = Found { runtime: None, ..handler("kata", foreign(Some("3"))) };
        assert!(bare.rows()[0].reason.contains("what is below it is not known"));
    }

    #[test]
    fn programs_are_named_once() {
        let path = std::path::Path::new("/usr/sbin/runc");
        assert_eq!(described(path, Some("runc version 1.1.5")), "runc 1.1.5");
        assert_eq!(described(path, Some("1.1.5")), "runc 1.1.5");
        assert_eq!(described(path, None), "runc");
    }

    /// The table in the documentation was made by this code, on whatever machine that was: it has
    /// the rows that this code makes, and the handlers whose configuration stands above it.
    #[test]
    fn the_documented_table_has_our_rows() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/handlers.md");
        let text = std::fs::read_to_string(docs).unwrap();
        let (_, part) = text.split_once("longshore check --abilities").unwrap();
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let lines = part.lines().skip_while(|line| !line.starts_with('|'));
        let table: Vec<_> = lines.take_while(|line| line.starts_with('|')).map(cells).collect();
        let rows: Vec<_> = table[2..].iter().map(|row| row[0].as_str()).collect();
        let abilities = Abilities::default().list();
        let want: Vec<_> =
            HEAD.into_iter().chain(abilities.iter().map(|(name, _)| *name)).collect();
        assert_eq!(rows, want);
        for row in &table[2 + HEAD.len()..] {
            assert!(row[1..].iter().all(|cell| ["yes", "no"].contains(&cell.as_str())), "{row:?}");
        }
        let sections = part.lines().filter_map(|l| l.strip_prefix("[handlers.")?.split(']').next());
        assert_eq!(table[0][1..], sections.map(str::to_owned).collect::<Vec<_>>());
    }
}
