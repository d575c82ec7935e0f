//! Made-up worlds for the tests of the checks.

use crate::metadata::{
    Dependency, DependencyKind, Metadata, Node, NodeDependency, NodeDependencyKind, Package,
    Resolve,
};

#[derive(Default)]
pub(crate) struct World {
    packages: Vec<Package>,
    members: Vec<String>,
    edges: Vec<(String, String)>,
}

impl World {
    /// A crate of ours. A dependency is `name`, `dev name` or `build name`; after a `^` it comes
    /// from outside.
    pub(crate) fn member(mut self, name: &str, dependencies: &[&str]) -> Self {
        let mut package = package(&format!("{name} 0.1.0"), None, None);
        package.dependencies = dependencies.iter().map(|text| dependency(text)).collect();
        self.members.push(package.id.clone());
        self.packages.push(package);
        self
    }

    /// A crate that is not ours, named `name version`; an empty licence is none.
    pub(crate) fn outside(mut self, id: &str, licence: &str, source: &str) -> Self {
        let licence = (!licence.is_empty()).then(|| licence.to_owned());
        self.packages.push(package(id, licence, Some(source.to_owned())));
        self
    }

    /// A resolved normal dependency between two `name version`.
    pub(crate) fn edge(mut self, from: &str, to: &str) -> Self {
        self.edges.push((from.to_owned(), to.to_owned()));
        self
    }

    pub(crate) fn metadata(self) -> Metadata {
        let nodes = self.packages.iter().map(|package| {
            let below = self.edges.iter().filter(|(from, _)| *from == package.id);
            Node { id: package.id.clone(), deps: below.map(|(_, to)| resolved(to)).collect() }
        });
        let resolve = Resolve { nodes: nodes.collect() };
        Metadata { packages: self.packages, workspace_members: self.members, resolve }
    }
}

fn package(id: &str, license: Option<String>, source: Option<String>) -> Package {
    let (name, version) = id.split_once(' ').expect("an id is a name and a version");
    Package {
        id: id.to_owned(),
        name: name.to_owned(),
        version: version.to_owned(),
        source,
        license,
        manifest_path: String::new(),
        dependencies: Vec::new(),
        targets: Vec::new(),
    }
}

fn dependency(text: &str) -> Dependency {
    let (kind, name) = match text.split_once(' ') {
        Some(("dev", name)) => (Some(DependencyKind::Dev), name),
        Some(("build", name)) => (Some(DependencyKind::Build), name),
        _ => (None, text),
    };
    match name.strip_prefix('^') {
        Some(name) => Dependency { name: name.to_owned(), kind, path: None },
        None => Dependency { name: name.to_owned(), kind, path: Some(String::new()) },
    }
}

fn resolved(to: &str) -> NodeDependency {
    NodeDependency { pkg: to.to_owned(), dep_kinds: vec![NodeDependencyKind { kind: None }] }
}
