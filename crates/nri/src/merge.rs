//! Many plugins, one answer: what they ask for is merged in their order, and each field has
//! one owner.
//!
//! ```text
//!   request --> plugin 1 --> merge --> plugin 2 --> merge --> ... --> Creation::finish
//!      ^                       |
//!      `-- container as adjusted so far
//! ```
//!
//! [`Creation`] merges answers to CreateContainer, [`Updating`] those to UpdateContainer and
//! StopContainer. Keys with a leading `-` remove. A removal is carried to the end, so that it
//! also takes away what the container had before any plugin was asked; removals are done
//! before additions wherever both are applied.
//!
//! **Invariants:** the owners name exactly the plugins whose values are in the result. After
//! an error the merge is of no use, except that an update with `ignore_failure` that conflicts
//! leaves no trace. Pure: no I/O, no clock, and the same answers give the same result.

mod create;
mod list;
mod resources;
#[cfg(test)]
mod tests;
mod update;

use std::{collections::BTreeSet, fmt, str::FromStr};

use nri_wire::api::{Field, LinuxResources};

pub use create::{Creation, Merged};
pub(crate) use list::removed;
pub use update::{Updates, Updating};

use crate::owners::{Conflict, Owners};

/// Why answers cannot be merged. All but [`MergeError::Forbidden`] name a disagreement that
/// only changing a plugin or its configuration resolves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    #[error(transparent)]
    Conflict(#[from] Conflict),

    #[error("plugin {plugin:?} asked update of {container:?} during creation")]
    UpdateOfCreated { plugin: String, container: String },

    #[error("plugin {plugin:?} asked eviction of {container:?} during creation")]
    EvictionOfCreated { plugin: String, container: String },

    #[error("plugin {plugin:?} may not set {}", field.as_str_name())]
    Forbidden { plugin: String, field: Field },
}

/// The plugin whose answer is merged.
#[derive(Clone, Copy, Debug)]
pub struct Claimant<'a> {
    /// As owners call it: `NN-name`.
    pub plugin: &'a str,
    /// What it may set; `None` is everything.
    pub fields: Option<&'a FieldSet>,
}

/// Fields a plugin may set.
///
/// ```
/// # use nri::{FieldSet, api::Field};
/// let fields: FieldSet = "env,Mounts,memory".parse()?;
/// assert!(fields.contains(Field::MemSwapLimit) && !fields.contains(Field::Args));
/// # Ok::<(), nri::UnknownField>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(BTreeSet<Field>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no field or group of fields is called {0:?}")]
pub struct UnknownField(pub String);

impl<'a> Claimant<'a> {
    /// A plugin that may set everything.
    pub fn new(plugin: &'a str) -> Self {
        Self { plugin, fields: None }
    }

    fn may(&self, field: Field) -> Result<(), MergeError> {
        match self.fields.is_none_or(|fields| fields.contains(field)) {
            true => Ok(()),
            false => Err(MergeError::Forbidden { plugin: self.plugin.to_owned(), field }),
        }
    }
}

impl FieldSet {
    pub fn contains(&self, field: Field) -> bool {
        self.0.contains(&field)
    }

    /// Every field there is.
    pub fn all() -> Self {
        Self((1..).map_while(|number| Field::try_from(number).ok()).collect())
    }
}

/// Names of fields without regard to case, separated by commas, and the groups `memory` and
/// `cpu`.
impl FromStr for FieldSet {
    type Err = UnknownField;

    fn from_str(text: &str) -> Result<Self, UnknownField> {
        let mut fields = BTreeSet::new();
        for name in text.split(',').map(str::trim) {
            let lower = name.to_ascii_lowercase();
            let wanted = |field: &Field| {
                let field = field.as_str_name().to_ascii_lowercase();
                match lower.as_str() {
                    "memory" => field.starts_with("mem") && field != "memorypolicy",
                    "cpu" => field.starts_with("cpu"),
                    name => field == name,
                }
            };
            let before = fields.len();
            fields.extend(Self::all().0.into_iter().filter(wanted));
            if fields.len() == before && !fields.iter().any(wanted) {
                return Err(UnknownField(name.to_owned()));
            }
        }
        Ok(Self(fields))
    }
}

impl fmt::Display for FieldSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(Field::as_str_name).collect();
        f.write_str(&names.join(","))
    }
}

/// Sets in `base` what `update` has set, whoever wants it.
pub(crate) fn overlay_unclaimed(base: &mut LinuxResources, update: &LinuxResources) {
    let mut nobody = Owners::default();
    let by = Claimant::new("");
    let mut ledger = Ledger { owners: &mut nobody, container: "", by };
    // One claimant may do everything, and conflicts only with itself.
    let _ = resources::overlay(&mut ledger, base, update);
}

/// The owners of one container, as one plugin changes them.
struct Ledger<'a> {
    owners: &'a mut Owners,
    container: &'a str,
    by: Claimant<'a>,
}

impl Ledger<'_> {
    fn claim(&mut self, field: Field) -> Result<(), MergeError> {
        self.by.may(field)?;
        Ok(self.owners.claim(self.container, field, None, self.by.plugin)?)
    }

    fn claim_entry(&mut self, field: Field, key: &str) -> Result<(), MergeError> {
        self.by.may(field)?;
        Ok(self.owners.claim(self.container, field, Some(key), self.by.plugin)?)
    }

    fn clear(&mut self, field: Field) -> Result<(), MergeError> {
        self.by.may(field)?;
        self.owners.clear(self.container, field, None, self.by.plugin);
        Ok(())
    }

    fn clear_entry(&mut self, field: Field, key: &str) -> Result<(), MergeError> {
        self.by.may(field)?;
        self.owners.clear(self.container, field, Some(key), self.by.plugin);
        Ok(())
    }

    fn accumulate(&mut self, field: Field) -> Result<(), MergeError> {
        self.by.may(field)?;
        self.owners.accumulate(self.container, field, self.by.plugin);
        Ok(())
    }
}
