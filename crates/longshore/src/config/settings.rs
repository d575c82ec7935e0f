//! One declaration per section gives its struct, its defaults, its place in the sample
//! file and the list of known keys: they cannot drift apart.

use serde::Serialize;

/// One key of a section, as the sample file shows it.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) key: &'static str,
    pub(super) doc: &'static [&'static str],
    /// The default as TOML; `Err` is what an unset key works out to on a plain host.
    pub(super) default: fn() -> Result<String, &'static str>,
}

/// ```text
/// settings! {
///     /// Doc of the struct.
///     NriConfig {
///         /// Doc of the key, printed in the sample.
///         key: Type = default;
///         /// A key whose default follows from others; what it comes to is shown.
///         other: Option<Type> => "\"/run/x.sock\"";
///     }
/// }
/// ```
macro_rules! settings {
    ($(#[doc = $about:literal])* $name:ident {
        $( $(#[doc = $doc:literal])* $key:ident : $ty:ty $(= $default:expr)? $(=> $shown:literal)? ; )*
    }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $( $(#[doc = $doc])* pub $key: $ty, )* }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $key: $crate::config::settings::default_of!($($default)?), )* }
            }
        }

        impl $name {
            pub(in crate::config) const SETTINGS: &[$crate::config::settings::Setting] = &[
                $( $crate::config::settings::Setting {
                    key: stringify!($key),
                    doc: &[$($doc),*],
                    default: || $crate::config::settings::shown!(
                        $name, $key $(, $shown)?
                    ),
                }, )*
            ];
        }
    };
}

macro_rules! default_of {
    () => {
        None
    };
    ($default:expr) => {
        $default
    };
}

macro_rules! shown {
    ($name:ident, $key:ident) => {
        Ok($crate::config::settings::as_toml(&$name::default().$key))
    };
    ($name:ident, $key:ident, $shown:literal) => {
        Err($shown)
    };
}

pub(super) use {default_of, settings, shown};

pub(super) fn as_toml(value: &impl Serialize) -> String {
    let value = toml::Value::try_from(value).expect("settings are strings, numbers and lists");
    value.to_string()
}
