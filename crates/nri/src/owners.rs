//! Who set what: one owner per field, or per entry of a field.
//!
//! A field is claimed once. Who wants it from an earlier plugin must say so: it clears the
//! field, and then only it may claim it. Hooks add up and have all their setters as owners.
//!
//! **Invariant:** an owner in the table is the one plugin whose value the field has; a
//! cleared field is in the table as its clearer with a leading `-`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use nri_wire::api::{CompoundFieldOwners, Field, FieldOwners, OwningPlugins};

/// Owners of the fields of several containers, in the form validators get.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owners {
    containers: BTreeMap<String, FieldOwners>,
}

/// Two plugins want the same thing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugins {claimant:?} and {owner:?} both tried to set {field} of container {container}")]
pub struct Conflict {
    pub container: String,
    pub field: FieldKey,
    pub claimant: String,
    pub owner: String,
}

/// A field, or an entry of one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldKey {
    pub field: Field,
    /// Annotation key, mount destination and so on; `None` for fields without entries.
    pub key: Option<String>,
}

impl Owners {
    /// Whose value the field has; `None` where nobody set it, or somebody cleared it.
    ///
    /// ```
    /// # use nri::{Owners, api::Field};
    /// assert_eq!(Owners::default().owner("c0", Field::Env, Some("PATH")), None);
    /// ```
    pub fn owner(&self, container: &str, field: Field, key: Option<&str>) -> Option<&str> {
        self.entry(container, field, key).filter(|owner| !owner.starts_with('-'))
    }

    /// Owners of all entries of a field, cleared ones left out.
    pub fn entries(&self, container: &str, field: Field) -> impl Iterator<Item = (&str, &str)> {
        let compound = self.containers.get(container);
        let compound = compound.and_then(|fields| fields.compound.get(&(field as i32)));
        let all = compound.into_iter().flat_map(|compound| &compound.owners);
        all.filter(|(_, owner)| !owner.starts_with('-')).map(|(k, o)| (k.as_str(), o.as_str()))
    }

    /// The plugins that set these fields of a container; where nobody did, or no field is
    /// given, all plugins that set anything of it. A field without a key stands for all its
    /// entries.
    pub fn setters(&self, container: &str, fields: &[FieldKey]) -> BTreeSet<&str> {
        let own = || self.iter().filter(|(id, ..)| *id == container);
        let about = |found: &FieldKey| {
            let same = |field: &&FieldKey| {
                field.field == found.field && (field.key.is_none() || field.key == found.key)
            };
            fields.iter().any(|field| same(&field))
        };
        // Hooks have several owners, divided by commas.
        let of_fields: BTreeSet<&str> =
            own().filter(|(_, found, _)| about(found)).flat_map(|(.., by)| by.split(',')).collect();
        match of_fields.is_empty() {
            true => own().flat_map(|(.., by)| by.split(',')).collect(),
            false => of_fields,
        }
    }

    /// Everything, cleared fields left out: container, field, owner.
    pub fn iter(&self) -> impl Iterator<Item = (&str, FieldKey, &str)> {
        self.all().filter(|(_, _, owner)| !owner.starts_with('-'))
    }

    /// Fields of one container that somebody cleared and nobody set again, and who.
    pub(crate) fn cleared(&self, container: &str) -> impl Iterator<Item = (FieldKey, &str)> {
        let own = self.all().filter(move |(id, ..)| *id == container);
        own.filter_map(|(_, field, owner)| Some((field, owner.strip_prefix('-')?)))
    }

    fn all(&self) -> impl Iterator<Item = (&str, FieldKey, &str)> {
        self.containers.iter().flat_map(|(container, fields)| {
            let simple = fields.simple.iter().map(|(field, owner)| (*field, None, owner));
            let compound = fields.compound.iter().flat_map(|(field, entries)| {
                entries.owners.iter().map(|(key, owner)| (*field, Some(key.clone()), owner))
            });
            simple.chain(compound).map(move |(field, key, owner)| {
                let field = Field::try_from(field).unwrap_or(Field::None);
                (container.as_str(), FieldKey { field, key }, owner.as_str())
            })
        })
    }

    pub fn to_wire(&self) -> OwningPlugins {
        OwningPlugins { owners: self.containers.clone() }
    }

    pub fn from_wire(wire: OwningPlugins) -> Self {
        Self { containers: wire.owners }
    }

    pub(crate) fn claim(
        &mut self,
        container: &str,
        field: Field,
        key: Option<&str>,
        plugin: &str,
    ) -> Result<(), Conflict> {
        if let Some(owner) = self.entry(container, field, key)
            && owner.strip_prefix('-') != Some(plugin)
        {
            return Err(Conflict {
                container: container.to_owned(),
                field: FieldKey { field, key: key.map(str::to_owned) },
                claimant: plugin.to_owned(),
                owner: owner.trim_start_matches('-').to_owned(),
            });
        }
        self.set(container, field, key, plugin.to_owned());
        Ok(())
    }

    /// Takes the field from whoever has it; the next claim must be this plugin's.
    pub(crate) fn clear(&mut self, container: &str, field: Field, key: Option<&str>, plugin: &str) {
        self.set(container, field, key, format!("-{plugin}"));
    }

    /// For fields that add up.
    pub(crate) fn accumulate(&mut self, container: &str, field: Field, plugin: &str) {
        let owners = match self.entry(container, field, None) {
            Some(owners) => format!("{owners},{plugin}"),
            None => plugin.to_owned(),
        };
        self.set(container, field, None, owners);
    }

    /// What is known of one container, to be put back by [`Owners::restore`].
    pub(crate) fn save(&self, container: &str) -> Option<FieldOwners> {
        self.containers.get(container).cloned()
    }

    pub(crate) fn restore(&mut self, container: &str, saved: Option<FieldOwners>) {
        match saved {
            Some(fields) => drop(self.containers.insert(container.to_owned(), fields)),
            None => drop(self.containers.remove(container)),
        }
    }

    fn entry(&self, container: &str, field: Field, key: Option<&str>) -> Option<&str> {
        let fields = self.containers.get(container)?;
        let number = field as i32;
        let owner = match key {
            None => fields.simple.get(&number),
            Some(key) => fields.compound.get(&number)?.owners.get(key),
        };
        owner.map(String::as_str)
    }

    fn set(&mut self, container: &str, field: Field, key: Option<&str>, owner: String) {
        let fields = self.containers.entry(container.to_owned()).or_default();
        let number = field as i32;
        match key {
            None => drop(fields.simple.insert(number, owner)),
            Some(key) => {
                let entries: &mut CompoundFieldOwners = fields.compound.entry(number).or_default();
                entries.owners.insert(key.to_owned(), owner);
            }
        }
    }
}

impl FieldKey {
    pub(crate) fn new(field: Field, key: impl Into<String>) -> Self {
        Self { field, key: Some(key.into()) }
    }
}

/// A field with all its entries.
impl From<Field> for FieldKey {
    fn from(field: Field) -> Self {
        Self { field, key: None }
    }
}

impl fmt::Display for FieldKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field.as_str_name())?;
        match &self.key {
            Some(key) => write!(f, " {key:?}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: &str = "c0";

    #[test]
    fn simple_fields_have_one_owner() {
        let mut owners = Owners::default();
        owners.claim(C, Field::CpuShares, None, "10-a").unwrap();
        let conflict = owners.claim(C, Field::CpuShares, None, "20-b").unwrap_err();
        let want = r#"plugins "20-b" and "10-a" both tried to set CPUShares of container c0"#;
        assert_eq!(conflict.to_string(), want);
        owners.claim(C, Field::CpuQuota, None, "20-b").unwrap();
        owners.claim("c1", Field::CpuShares, None, "20-b").unwrap();
        assert_eq!(owners.owner(C, Field::CpuShares, None), Some("10-a"));
        // Not even the owner sets it twice.
        assert!(owners.claim(C, Field::CpuShares, None, "10-a").is_err());
    }

    #[test]
    fn entries_have_owners_of_their_own() {
        let mut owners = Owners::default();
        owners.claim(C, Field::Env, Some("A"), "10-a").unwrap();
        owners.claim(C, Field::Env, Some("B"), "20-b").unwrap();
        let conflict = owners.claim(C, Field::Env, Some("A"), "20-b").unwrap_err();
        assert_eq!(conflict.field.to_string(), r#"Env "A""#);
        assert_eq!(
            owners.entries(C, Field::Env).collect::<Vec<_>>(),
            [("A", "10-a"), ("B", "20-b")]
        );
    }

    #[test]
    fn only_the_clearer_claims_next() {
        let mut owners = Owners::default();
        owners.claim(C, Field::Args, None, "10-a").unwrap();
        owners.clear(C, Field::Args, None, "20-b");
        assert_eq!(owners.owner(C, Field::Args, None), None);
        let conflict = owners.claim(C, Field::Args, None, "30-c").unwrap_err();
        assert_eq!(conflict.owner, "20-b");
        owners.claim(C, Field::Args, None, "20-b").unwrap();
        assert_eq!(owners.owner(C, Field::Args, None), Some("20-b"));
    }

    #[test]
    fn hooks_add_up() {
        let mut owners = Owners::default();
        for plugin in ["plugin0", "plugin1", "plugin2"] {
            owners.accumulate(C, Field::OciHooks, plugin);
        }
        assert_eq!(owners.owner(C, Field::OciHooks, None), Some("plugin0,plugin1,plugin2"));
    }

    #[test]
    fn who_set_a_field_is_known_and_else_who_set_anything() {
        let mut owners = Owners::default();
        owners.claim(C, Field::MemLimit, None, "10-a").unwrap();
        owners.claim(C, Field::Env, Some("X"), "10-a").unwrap();
        owners.claim(C, Field::Env, Some("Y"), "20-b").unwrap();
        owners.accumulate(C, Field::OciHooks, "30-c");
        owners.accumulate(C, Field::OciHooks, "40-d");
        owners.claim("other", Field::CpuQuota, None, "50-e").unwrap();
        #[track_caller]
        fn check(owners: &Owners, fields: &[FieldKey], want: &[&str]) {
            assert_eq!(owners.setters(C, fields).into_iter().collect::<Vec<_>>(), want);
        }
        check(&owners, &[Field::MemLimit.into()], &["10-a"]);
        check(&owners, &[FieldKey::new(Field::Env, "Y")], &["20-b"]);
        check(&owners, &[Field::Env.into()], &["10-a", "20-b"]);
        check(&owners, &[Field::OciHooks.into()], &["30-c", "40-d"]);
        let all = ["10-a", "20-b", "30-c", "40-d"];
        check(&owners, &[], &all);
        check(&owners, &[Field::CpuQuota.into()], &all);
    }

    #[test]
    fn the_wire_form_is_the_table() {
        let mut owners = Owners::default();
        owners.claim(C, Field::Args, None, "10-a").unwrap();
        owners.claim(C, Field::Mounts, Some("/x"), "10-a").unwrap();
        let wire = owners.to_wire();
        assert_eq!(wire.owners[C].simple[&7], "10-a");
        assert_eq!(wire.owners[C].compound[&2].owners["/x"], "10-a");
        assert_eq!(Owners::from_wire(wire), owners);
        assert_eq!(owners.iter().count(), 2);
    }
}
