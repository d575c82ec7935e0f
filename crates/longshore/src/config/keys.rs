//! Which keys there are, and which one a misspelt key was meant to be.

use super::{
    CniConfig, Config, ContainersConfig, CriConfig, DockerConfig, HandlerConfig, LogConfig,
    MetricsConfig, NriConfig, RegistryConfig, StreamingConfig,
    nri::{PolicyConfig, ValidatorConfig},
    settings::Setting,
};

/// A table of the file: its name, with those it lies in, and its keys.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) settings: &'static [Setting],
    /// `[name.ANY]` instead of `[name]`.
    pub(super) named: bool,
}

pub(super) const SECTIONS: &[Section] = &[
    Section { name: "log", settings: LogConfig::SETTINGS, named: false },
    Section { name: "cri", settings: CriConfig::SETTINGS, named: false },
    Section { name: "streaming", settings: StreamingConfig::SETTINGS, named: false },
    Section { name: "docker", settings: DockerConfig::SETTINGS, named: false },
    Section { name: "metrics", settings: MetricsConfig::SETTINGS, named: false },
    Section { name: "nri", settings: NriConfig::SETTINGS, named: false },
    Section { name: "nri.validator", settings: ValidatorConfig::SETTINGS, named: false },
    Section { name: "nri.plugins", settings: PolicyConfig::SETTINGS, named: true },
    Section { name: "cni", settings: CniConfig::SETTINGS, named: false },
    Section { name: "registry", settings: RegistryConfig::SETTINGS, named: false },
    Section { name: "containers", settings: ContainersConfig::SETTINGS, named: false },
    Section { name: "handlers", settings: HandlerConfig::SETTINGS, named: true },
];

/// Keys that stand before the first table.
pub(super) fn top() -> impl Iterator<Item = &'static Setting> {
    Config::SETTINGS.iter().filter(|setting| section(setting.key).is_none())
}

fn section(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.name == name)
}

impl Section {
    /// Its keys without those that are sections of their own.
    pub(super) fn plain(&self) -> impl Iterator<Item = &'static Setting> {
        let name = self.name;
        self.settings.iter().filter(move |s| section(&format!("{name}.{}", s.key)).is_none())
    }
}

/// The first key of `table` that means nothing to us, in full.
pub(super) fn unknown(table: &toml::Table) -> Option<String> {
    unknown_in(Config::SETTINGS, "", table)
}

fn unknown_in(settings: &[Setting], path: &str, table: &toml::Table) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let full = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if !settings.iter().any(|setting| setting.key == key) {
            return Some(full);
        }
        // A section that is no table is a type error, told with its line by serde.
        let (section, inner) = (section(&full)?, value.as_table()?);
        if !section.named {
            return unknown_in(section.settings, &full, inner);
        }
        inner.iter().find_map(|(name, one)| {
            unknown_in(section.settings, &format!("{full}.{name}"), one.as_table()?)
        })
    })
}

/// The known key that `key` most likely was meant to be, if any is close.
pub(super) fn nearest(key: &str) -> Option<String> {
    let (prefix, last) = key.rsplit_once('.').map_or(("", key), |(p, l)| (p, l));
    // The name of one of many is not part of the section's.
    let of_many = prefix.rsplit_once('.').and_then(|(many, _)| section(many));
    let siblings: Vec<&str> = match section(prefix).or(of_many) {
        Some(section) => section.settings.iter().map(|s| s.key).collect(),
        None => Config::SETTINGS.iter().map(|s| s.key).collect(),
    };
    let best = siblings.into_iter().min_by_key(|known| distance(last, known))?;
    // Farther than half its length it would be a guess, not help.
    (distance(last, best) <= best.len() / 2 + 1 && distance(last, best) < last.len())
        .then(|| if prefix.is_empty() { best.to_owned() } else { format!("{prefix}.{best}") })
}

/// Edit distance: insertions, deletions, substitutions.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("socket", "socket"), 0);
        assert_eq!(distance("sokcet", "socket"), 2);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn every_section_of_the_file_is_listed() {
        let value = toml::Table::try_from(Config::default()).unwrap();
        let tables = value.iter().filter(|(_, v)| v.is_table()).count();
        let top = SECTIONS.iter().filter(|section| !section.name.contains('.')).count();
        assert_eq!(tables, top);
    }
}
