//! Devices that vendors describe in files (CDI, Container Device Interface): a qualified name
//! stands for edits to the spec.
//!
//! ```text
//!  /etc/cdi/*.{json,yaml}   < /var/run/cdi/*.{json,yaml}      later directories win
//!        vendor.com/class=name  →  the file's edits, then the device's
//! ```
//!
//! **Invariant:** a file that cannot be used takes nothing with it but its own devices, and a name
//! that two files of one directory claim is nobody's.

mod edits;
mod inject;
mod load;
mod model;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use edits::{Target, apply};
pub use inject::Injection;
pub use load::{FileError, load};

use crate::{
    error::{OciError, Result},
    request::ContainerRequest,
};
use model::{Edits, File};

/// All devices of all files, by their qualified names.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    files: Vec<File>,
    devices: BTreeMap<String, Place>,
}

/// Indices into the files and into a file's devices.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: usize,
    device: usize,
}

impl Registry {
    /// Qualified names, for people and for Docker's `info`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.devices.keys().map(String::as_str)
    }

    /// All edits of these devices in order. A file's own come once, before its first device's.
    pub(crate) fn edits(&self, names: &[Name]) -> Result<Vec<&Edits>> {
        let mut edits = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            let Some(place) = self.devices.get(&name.text) else {
                let why = format!("no CDI device {:?}", name.text);
                return Err(OciError::NotFound { field: name.field.clone(), why });
            };
            let file = &self.files[place.file];
            if seen.insert(place.file) {
                edits.push(&file.container_edits);
            }
            edits.push(&file.devices[place.device].container_edits);
        }
        Ok(edits)
    }
}

/// A name that somebody asked for, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) text: String,
    field: String,
}

/// How device plugins asked before there was a field for it.
const ANNOTATION_PREFIX: &str = "cdi.k8s.io/";

/// Whether the request names any.
pub fn is_asked(request: &ContainerRequest) -> bool {
    let by_annotation = |(key, _): (&String, &String)| key.starts_with(ANNOTATION_PREFIX);
    !request.cdi_devices.is_empty() || request.annotations.into_iter().any(by_annotation)
}

/// Every device of the request once, by field or by annotation.
pub(crate) fn names(request: &ContainerRequest) -> Result<Vec<Name>> {
    let by_field = request
        .cdi_devices
        .iter()
        .enumerate()
        .map(|(i, text)| (text.as_str(), format!("cdi_devices[{i}]")));
    let by_annotation = request
        .annotations
        .into_iter()
        .filter(|(key, _)| key.starts_with(ANNOTATION_PREFIX))
        .flat_map(|(key, value)| {
            value.split(',').map(move |text| (text, format!("annotations[{key:?}]")))
        });
    let mut names: Vec<Name> = Vec::new();
    for (text, field) in by_field.chain(by_annotation) {
        if !is_qualified(text) {
            let why = format!("{text:?} is not a name such as vendor.com/class=name");
            return Err(OciError::invalid(field, why));
        }
        if !names.iter().any(|name| name.text == text) {
            names.push(Name { text: text.to_owned(), field });
        }
    }
    Ok(names)
}

/// `vendor/class=name`.
fn is_qualified(text: &str) -> bool {
    let parts = text.split_once('=').and_then(|(kind, name)| Some((kind.split_once('/')?, name)));
    parts.is_some_and(|((vendor, class), name)| {
        is_kind_part(vendor) && is_kind_part(class) && is_device_name(name)
    })
}

fn is_kind_part(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && is_word(text, "._-")
}

fn is_device_name(text: &str) -> bool {
    is_word(text, "._-:")
}

/// Letters and digits, and others of these in between.
fn is_word(text: &str, between: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || between.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualified_names() {
        for name in ["a/b=c", "vendor.com/gpu=0", "v-1.com/net_x=a:b.c-d", "nvidia.com/gpu=all"] {
            assert!(is_qualified(name), "{name}");
        }
        for name in ["", "gpu=0", "a/b", "a/b=", "/b=c", "1a/b=c", "a/b=-c", "a./b=c", "a/b=c d"] {
            assert!(!is_qualified(name), "{name}");
        }
    }

    #[test]
    fn names_come_from_both_places_once() {
        let request = ContainerRequest {
            cdi_devices: vec!["a/b=1".into(), "a/b=2".into()],
            annotations: [("cdi.k8s.io/x", "a/b=2,a/b=3"), ("other", "a/b=4")]
                .into_iter()
                .collect(),
            ..ContainerRequest::default()
        };
        let names = names(&request).unwrap();
        let texts: Vec<_> = names.iter().map(|name| name.text.as_str()).collect();
        assert_eq!(texts, ["a/b=1", "a/b=2", "a/b=3"]);
    }
}
